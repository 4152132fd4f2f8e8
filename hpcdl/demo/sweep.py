"""Processes of the demo's own daemons: found by their tag or by the folder that they were started for, and ended."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Process:
    """A process by pid and start time, so that another one with a used pid is not taken for it."""

    pid: int
    started: int
    command: str


def find(home: Path, instance: str) -> list[Process]:
    """This user's processes that bear the tag of `instance`, or are modules of hpcdl that were given `home`."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid() and (process := _look(int(name), home, instance)) is not None:
            found.append(process)
    return found


def _look(pid: int, home: Path, instance: str) -> Process | None:
    folder = f"/proc/{pid}"
    try:
        if os.stat(folder).st_uid != os.getuid():
            return None
        with open(f"{folder}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open(f"{folder}/cmdline", "rb") as file:
            command = [os.fsdecode(part) for part in file.read().split(b"\0") if part]
        with open(f"{folder}/environ", "rb") as file:
            environ = file.read().split(b"\0")
    except OSError:
        return None  # it is gone, or not ours to look at
    if fields[0] == b"Z":
        return None
    tagged = instance and any(entry.startswith(f"HPCDL_TAG={instance}:".encode()) for entry in environ)
    # A pager that the user opened on the daemon's log names the folder, too, but runs no module of ours.
    module = any(flag == "-m" and name.startswith("hpcdl.") for flag, name in pairwise(command))
    named = module and any(part == str(home) or part.startswith(f"{home}/") for part in command)
    return Process(pid, int(fields[19]), " ".join(command)) if tagged or named else None


def await_none(home: Path, instance: str, wait_s: float) -> list[Process]:
    """What is left after at most `wait_s` seconds; empty as soon as nothing is."""
    end = time.monotonic() + wait_s
    while (left := find(home, instance)) and time.monotonic() < end:
        time.sleep(_POLL_S)
    return left


def end(home: Path, instance: str, say: Callable[[str], None], wait_s: float) -> list[Process]:
    """Kills what is left, and what that may have started meanwhile; tells of each. What was not gone in `wait_s`."""
    until = time.monotonic() + wait_s
    told: set[Process] = set()
    while (left := find(home, instance)) and time.monotonic() < until:
        for process in left:
            if process not in told:
                told.add(process)
                say(f"ending process {process.pid}, which was left: {process.command}")
            _kill(process, home, instance)
        time.sleep(_POLL_S)
    return left


def _kill(process: Process, home: Path, instance: str) -> None:
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        # The descriptor is of whatever has the pid now: only if that is still the process that was found.
        if _look(process.pid, home, instance) == process:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        pass  # it is gone
    finally:
        os.close(descriptor)
