"""Starting and stopping a daemon from the command line: `hpcdl daemon start`, `stop`, and a job script.

The daemon is a process of its own, in the background, that says over a pipe when it is ready (`ready`).
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hpcdl.client import Client, DaemonAway
from hpcdl.wire.last_start import BY_HAND, remember_start
from hpcdl.wire.private_files import NotPrivate, make_private_folder, open_private
from hpcdl.wire.readable import readable

LOOK_S = 1.0

SLOW_S = 10.0
"""So long a start takes before it says what it waits for, and again and again while that changes."""

STUCK_S = 300.0
"""A daemon of which nothing moves for so long, no CPU time, no byte and no word, is not waited for any more."""

PHASE_LIMIT = 200

STOP_S = 60.0
"""Beyond what the daemon said that its end may take."""


class LaunchError(Exception):
    """The daemon did not start or stop; one line with the next step."""


def start(
    home: Path,
    emulate_gpus: int | None = None,
    node_name: str | None = None,
    foreground: bool = False,
    accept_loss: bool = False,
    moved: bool = False,
) -> dict[str, Any]:
    """Starts a daemon on `home`, with an agent on this machine, and waits until both are ready, however long that takes
    while it is at work: it is never ended from here. What it does is said on standard error when it takes long.

    `accept_loss`: it goes on with a ledger that has lost events. `moved`: the home is no copy of one that stays.
    Returns {"pid", "home", "nodes", "fence"}. In the foreground it returns when the daemon has ended, with
    {"exit_code"}. Raises LaunchError; KeyboardInterrupt after a line that says what goes on.
    """
    # -P: what lies in the folder that this is called in, /tmp maybe, is not to be imported.
    argv = [sys.executable, "-P", "-m", "hpcdl.daemon", "--home", str(home)]
    if emulate_gpus is not None:
        argv += ["--emulate-gpus", str(emulate_gpus)]
    if node_name is not None:
        argv += ["--node", node_name]
    argv += ["--accept-loss"] if accept_loss else []
    argv += ["--moved"] if moved else []
    try:
        make_private_folder(home)
        out = open_private(home / "daemon.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        remember_start(home, BY_HAND)
    except NotPrivate as error:
        raise LaunchError(f"cannot use this folder: {error}") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise LaunchError(f"cannot use {home}: {reason}: name another folder with --home or HPCDL_HOME") from error
    if foreground:
        os.close(out)
        return {"exit_code": _foreground([*argv, "--foreground"])}
    ready, told = os.pipe()
    try:
        process = subprocess.Popen(
            [*argv, "--ready-fd", str(told)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
            start_new_session=True,
            pass_fds=(told,),
        )
    finally:
        os.close(out)
        os.close(told)
    try:
        return _await_ready(ready, process, home)
    finally:
        os.close(ready)


def _foreground(argv: list[str]) -> int:
    """Ctrl-C reaches the daemon too, which suspends everything; so it is waited for."""
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def _await_ready(ready: int, process: "subprocess.Popen[bytes]", home: Path) -> dict[str, Any]:
    log, who = home / "daemon.log", f"the daemon (pid {process.pid})"
    began = time.monotonic()
    activity, told_at, told, phase, text = Activity(process.pid, began), began, "", "starting", b""
    try:
        while True:
            more = readable([ready], LOOK_S)
            now = time.monotonic()
            if more:
                piece = os.read(ready, 65536)
                if not piece:
                    raise LaunchError(f"the daemon ended while starting: see {log}")
                activity.moved(now)
                *lines, text = (text + piece).split(b"\n")
                for line in lines:
                    answer: dict[str, Any] = json.loads(line)
                    if "error" in answer:
                        raise LaunchError(str(answer["error"]))
                    if "phase" not in answer:
                        return answer
                    phase = str(answer["phase"])[:PHASE_LIMIT]
            if activity.still_s(now) > STUCK_S:
                raise LaunchError(
                    f"{who} has not moved for {STUCK_S:.0f} s ({phase}) and was left as it is: see {log}; "
                    f"kill {process.pid} ends it"
                )
            if now - told_at > SLOW_S and phase != told:
                told_at, told = now, phase
                sys.stderr.write(f"hpcdl: {who} is not ready yet, after {now - began:.0f} s: {phase}\n")
                sys.stderr.flush()
    except KeyboardInterrupt:
        sys.stderr.write(
            f"hpcdl: not waited for any more: {who} goes on starting ({phase}); hpcdl daemon status says when it is "
            f"ready, kill {process.pid} ends it before\n"
        )
        raise


def stop(home: Path, now: bool = False) -> dict[str, Any]:
    """Stops the daemon of `home` and waits until it is gone: suspends everything; `now`: leaves the last checkpoints.

    Returns {"pid", "stopped": True, "left": [...]}: the nodes with trainers whose agents were away and could not
    pass it on; they checkpoint and end by themselves. Raises DaemonAway without a daemon, LaunchError if it does not
    end.
    """
    client = Client(home, patience_s=0.0)
    status = client.get("/v1/status")
    pid = int(status["daemon"]["pid"])
    away = {agent["node"] for agent in status["agents"] if not agent["connected"]}
    rows = client.get("/v1/jobs")["jobs"] if away else []
    left = sorted({node for row in rows for node in row.get("placement") or () if node in away})
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return {"pid": pid, "stopped": True, "left": left}
    try:
        within_s = 0.0
        try:
            within_s = float(client.request("POST", "/v1/stop", {"now": now})["within_s"])
        except DaemonAway:
            pass  # it ended before it could answer, which is what was wanted
        client.close()  # the server waits for its connections
        ended = readable([descriptor], within_s + STOP_S)
    finally:
        os.close(descriptor)
    if not ended:
        late = f"has not ended after {within_s + STOP_S:.0f} s"
        raise LaunchError(f"the daemon (pid {pid}) {late}: see {home / 'daemon.log'}")
    return {"pid": pid, "stopped": True, "left": left}


Work = tuple[float, ...]


class Activity:
    """Whether a process is at work: it lives, and uses a CPU, or reads and writes. Times are any monotonic clock's."""

    def __init__(self, pid: int, now: float) -> None:
        self._pid = pid
        self._work: Work = ()
        self._moved_at = now

    def moved(self, now: float) -> None:
        """It said something itself."""
        self._moved_at = now

    def still_s(self, now: float) -> float:
        """Seconds for which nothing of it has moved, as far as looks show."""
        work = _work(self._pid)
        if work != self._work:
            self._work, self._moved_at = work, now
        return now - self._moved_at


def _work(pid: int) -> Work:
    """CPU seconds, and where the kernel says so bytes and calls of reads and writes; () where it is gone."""
    import psutil

    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
    except psutil.Error:
        return ()
    try:
        return (times.user, times.system, *process.io_counters())
    except (psutil.Error, OSError, AttributeError, RuntimeError, ValueError):  # kernels without them, /proc of others
        return (times.user, times.system)
