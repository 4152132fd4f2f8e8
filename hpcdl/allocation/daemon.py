"""The daemon of an allocation: a process of its own on the first node, started again when it dies.

`run.py` starts it, asks it for its status, and stops it before the walltime ends. `hpcdl.daemon.launch` starts one
from the command line.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcdl.client import Client, ClientError
from hpcdl.wire.child import dies_with
from hpcdl.wire.private_files import NotPrivate, make_private_folder, open_private
from hpcdl.wire.readable import readable

READY_S = 300.0
"""A daemon that starts and says nothing for so long is ended; it says what it is at."""
STATUS_S = 2.0
ANSWER_S = 10.0
LAST_ANSWER_S = 1.0
"""At the end each second is one for saving: a daemon that does not answer at once is not waited for."""
PAUSE_S = 1.0
TRIES = 5
LASTED_S = 60.0
LEASE_LOST = 4
"""Exit code of a daemon that another one has replaced."""


class DaemonNotStarted(Exception):
    """The daemon does not run; the message is one line for people. `held`: another one has the lease."""

    def __init__(self, message: str, held: bool = False) -> None:
        super().__init__(message)
        self.held = held


@dataclass(slots=True)
class DaemonProcess:
    """`start`, then `look` again and again, then `stop`. `address`: where it listens; None: as its settings say.
    `moved`: the home is no copy of one that stays."""

    home: Path
    address: str | None
    say: Callable[[str], None]
    moved: bool = False
    monotonic: Callable[[], float] = time.monotonic
    status: dict[str, Any] = field(default_factory=dict)
    """What it said of itself last."""
    over: str = ""
    """Why there will be no daemon any more, in words; "" while there is or will be one."""
    failed: bool = False
    """Whether that is a failure."""
    _process: "subprocess.Popen[bytes] | None" = None
    _client: Client = field(init=False)
    _looked: float = -1e9
    _began: float = 0.0
    _not_before: float = 0.0
    _failed: int = 0
    _code: int | None = None

    def __post_init__(self) -> None:
        self._client = Client(self.home, patience_s=0.0, answer_s=ANSWER_S)

    def start(self) -> None:
        """Returns when it is ready. Raises NotStarted."""
        argv = [sys.executable, "-P", "-m", "hpcdl.daemon", "--home", str(self.home), "--no-agent"]
        argv += ["--moved"] if self.moved else []
        env = dict(os.environ) if self.address is None else {**os.environ, "HPCDL_LISTEN_HOST": self.address}
        try:
            make_private_folder(self.home)
            out = open_private(self.home / "daemon.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        except (NotPrivate, OSError) as error:
            raise DaemonNotStarted(f"cannot use {self.home}: {error}: name another folder with HPCDL_HOME") from None
        ready, told = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*argv, "--ready-fd", str(told)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd="/",
                env=env,
                start_new_session=True,
                pass_fds=(told,),
                # Where the batch job's first process is killed, its nodes are not ours any more.
                preexec_fn=dies_with(os.getpid(), number=signal.SIGTERM),
            )
        finally:
            os.close(told)
            os.close(out)
        try:
            self._await(ready)
        finally:
            os.close(ready)
        self._began = self.monotonic()

    def _await(self, ready: int) -> None:
        end, text = self.monotonic() + READY_S, b""
        while True:
            more = readable([ready], max(0.0, end - self.monotonic()))
            piece = os.read(ready, 65536) if more else b""
            if not piece:
                self.kill()
                late = f"has said nothing for {READY_S:.0f} s" if not more else "ended while starting"
                raise DaemonNotStarted(f"the daemon {late}: see {self.home / 'daemon.log'}")
            *lines, text = (text + piece).split(b"\n")
            for answer in map(json.loads, lines):
                if "error" in answer:
                    self.kill()
                    raise DaemonNotStarted(str(answer["error"]), held="already runs on" in str(answer["error"]))
                if "phase" not in answer:
                    if "note" in answer:
                        self.say(str(answer["note"]))
                    return
                end = self.monotonic() + READY_S  # it is at work

    def look(self) -> None:
        """Hears whether it still runs, starts it again if not, and asks it about itself now and then."""
        if self.over or (self._process is None and self._code is None):
            return
        now = self.monotonic()
        if self._process is not None:
            self._code = self._process.poll()
        code = self._code
        if code is None:
            if now - self._looked >= STATUS_S:
                self._looked = now
                self._ask()
        elif code == 0:
            self.over = "the daemon was stopped"
        elif code == LEASE_LOST:
            self.over, self.failed = "another daemon has replaced this one", True
        elif now >= self._not_before:
            self._again(code, now)

    def _ask(self) -> bool:
        try:
            self.status = self._client.get("/v1/status")
        except (ClientError, OSError):
            self._client.close()
            return False
        return True

    def _again(self, code: int, now: float) -> None:
        if now - self._began >= LASTED_S:
            self._failed = 0
        self._failed += 1
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        try:
            if self._failed <= TRIES:
                self.start()
                self.say(f"the daemon had ended {how}, and was started again")
                return
            why = f"the daemon has ended {how} again and again: see {self.home / 'daemon.log'}"
        except DaemonNotStarted as error:
            self._not_before = now + PAUSE_S * 2.0**self._failed
            if self._failed <= TRIES and not error.held:
                return
            why = str(error)
        self.over, self.failed = why, True

    def stopping(self) -> bool:
        """Whether somebody has stopped it; asked now. One that listens no more has been."""
        if self._process is not None and self._process.poll() is None:
            return not self._ask() or bool(self.status.get("daemon", {}).get("stopping"))
        return self._process is not None and self._process.returncode == 0

    def stop(self, seconds: float, pause: Callable[[float], object]) -> bool:
        """Has it suspend everything and end; whether it has within so many seconds. `pause(s)` waits."""
        self._client.close()
        self._client = Client(self.home, patience_s=0.0, answer_s=LAST_ANSWER_S)
        self._ask()  # `status` is its last word, with what was submitted just now
        self._client.close()
        process = self._process
        if process is None or process.poll() is not None:
            return True
        process.terminate()
        end = self.monotonic() + seconds
        while process.poll() is None:
            if self.monotonic() >= end:
                return False
            pause(0.02)
        return True

    def kill(self) -> None:
        """Ends it at once, whatever it does; what it has recorded is all that counts."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
