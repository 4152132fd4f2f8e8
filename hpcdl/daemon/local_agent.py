"""The agent on the daemon's own machine: started where there is none, and again when it dies.

The agent outlives the daemon; the next daemon finds it there. Trainers do not depend on it: their supervisors outlive
it. Agents of other nodes are started by pilots and job scripts.
"""

import logging
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from hpcdl.daemon.launch import Activity

log = logging.getLogger("hpcdl.daemon")

ANOTHER_RUNS = 3
"""Exit code of an agent that found another one of its node."""

OUT = "agent.out"

PAUSE_S, PAUSE_MAX_S = 0.5, 30.0

FINISH_S = 5.0

FAILURES = 3
"""So many agents in a row that end at once: this node's does not start."""


class LocalAgent:
    """Starts this node's agent when there is none, and again when it died. `look` is called about once a second."""

    def __init__(self, home: Path, node: str, emulate_gpus: int | None, is_connected: Callable[[], bool]) -> None:
        """`is_connected`: whether the node's agent is talking to this daemon."""
        self._home = home
        self._node = node
        self._emulate_gpus = emulate_gpus
        self._is_connected = is_connected
        self._process: subprocess.Popen[bytes] | None = None
        self._pause_s = PAUSE_S
        self._not_before = 0.0
        self._ending = False
        self._activity: Activity | None = None
        self._another = False  # the last one found another agent here, which is to call
        self._failures = 0  # of agents in a row
        self._lock = threading.Lock()

    def look(self, monotonic: float) -> None:
        """Starts an agent if none is here. `monotonic`: seconds of any clock that does not go back."""
        with self._lock:
            if self._ending:
                return
            if self._process is not None and self._process.poll() is not None:
                code, self._process = self._process.returncode, None
                self._another = code == ANOTHER_RUNS
                if not self._another:
                    self._failures += 1
                    log.warning("the agent of %s ended with code %s", self._node, code)
                self._not_before = monotonic + self._pause_s
                self._pause_s = min(PAUSE_MAX_S, self._pause_s * 2)
            if self._is_connected():
                self._pause_s, self._failures = PAUSE_S, 0
            elif self._process is None and monotonic >= self._not_before:
                self._start(monotonic)

    def still_s(self, monotonic: float) -> float:
        """Seconds for which nothing of the agent that was started here has moved; without end where it fails again and
        again."""
        if self._failures >= FAILURES:
            return math.inf
        return 0.0 if self._activity is None else self._activity.still_s(monotonic)

    def last_words(self) -> str:
        """The last line that an agent that failed said before it could log, "" for none."""
        if not self._failures:
            return ""
        try:
            lines = (self._home / OUT).read_bytes()[-4096:].decode("utf-8", "replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")[:300]

    def end(self) -> None:
        """From here on no agent is started."""
        with self._lock:
            self._ending = True

    def finish(self) -> None:
        """Ends the agent that this daemon started, if it still runs: one that only waited for another's place, say.

        Trainers do not depend on it: their supervisors outlive it.
        """
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(FINISH_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self, monotonic: float) -> None:
        argv = [sys.executable, "-P", "-m", "hpcdl.agent", "--home", str(self._home), "--node", self._node]
        argv += ["--daemon", str(os.getpid())]
        if self._emulate_gpus is not None:
            argv += ["--emulate-gpus", str(self._emulate_gpus)]
        out = os.open(self._home / OUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", start_new_session=True
            )
            if not self._another:
                self._activity = Activity(self._process.pid, monotonic)
        except OSError as error:
            log.error("cannot start the agent of %s: %s", self._node, error)
        finally:
            os.close(out)
