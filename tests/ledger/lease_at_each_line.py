"""Run by test_lease.py: a process that acquires the lease is killed, or stopped while others go on, at each line of it.

Prints one JSON object of what happened: {"lines": lines of the longest acquire, "bad": [what went wrong]}.
"""

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from hpcdl.agent.child import dies_with
from hpcdl.ledger.lease import Lease, LeaseHeld
from hpcdl.wire.readable import readable

ACTING = ("write_new", "atomic_write")  # of wire/private.py; the rest of it only looks


def traced_acquire(home: Path, line: int, signal_number: int, report: int) -> None:
    """In a child: acquire, with the signal to itself at the given line, and then write the outcome."""
    seen = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        code = frame.f_code
        if not code.co_filename.endswith("ledger/lease.py") and code.co_name not in ACTING:
            return None
        if event == "line":
            seen += 1
            if seen == line:
                os.kill(os.getpid(), signal_number)
        return trace

    sys.settrace(trace)
    try:
        lease = Lease.acquire(home, now=1e9)
    except LeaseHeld:
        outcome: dict[str, object] = {"won": False}
    else:
        outcome = {"won": True, "fence": lease.fence, "holds": lease.holds()}
    finally:
        sys.settrace(None)
    os.write(report, json.dumps(outcome).encode())


def in_child(home: Path, line: int, signal_number: int) -> tuple[int, int]:
    """(pid, descriptor to read the outcome from)."""
    reader, writer = os.pipe()
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            dies_with(me)()  # also while it is stopped
            traced_acquire(home, line, signal_number, writer)
            os.kill(os.getpid(), signal.SIGSTOP)  # alive until the parent has looked
        finally:
            os._exit(1)
    os.close(writer)
    return pid, reader


def leave_a_dead_holder(home: Path) -> None:
    pid = os.fork()
    if pid == 0:
        Lease.acquire(home, now=1e9)
        os._exit(0)
    os.waitpid(pid, 0)


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def finished(reader: int) -> dict[str, Any]:
    outcome: dict[str, Any] = json.loads(os.read(reader, 4096))
    os.close(reader)
    return outcome


def killed_at(home: Path, line: int, dead_before: bool, bad: list[str]) -> bool:
    """Kill at the line; the next acquire must succeed with a higher fence. True while the line was reached."""
    home.mkdir(mode=0o700)
    if dead_before:
        leave_a_dead_holder(home)
    pid, reader = in_child(home, line, signal.SIGKILL)
    outcome = os.read(reader, 4096)  # end of file: it was killed
    os.close(reader)
    if outcome:
        end(pid)
        return False
    os.waitpid(pid, 0)
    lease = Lease.acquire(home, now=1e9)
    again_was_refused = False
    try:
        Lease.acquire(home, now=1e9)
    except LeaseHeld:
        again_was_refused = True
    names = sorted(name for name in os.listdir(home) if not name.startswith(".fence"))
    if not again_was_refused or not lease.holds() or lease.fence < 1 + dead_before:
        bad.append(f"killed at {line}: {again_was_refused=} {lease.holds()=} {lease.fence=}")
    if names != ["fence", f"lease.{lease.fence}"]:
        bad.append(f"killed at {line}: left {names}")
    lease.release()
    return True


def stopped_at(home: Path, line: int, dead_before: bool, release: bool, bad: list[str]) -> bool:
    """Stop at the line, let another acquire (and release), go on: one of the two holds it. True while reached."""
    home.mkdir(mode=0o700)
    if dead_before:
        leave_a_dead_holder(home)
    pid, reader = in_child(home, line, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)  # at the line, or at its end
    if readable([reader], 0.0):
        os.close(reader)
        end(pid)
        return False
    try:
        mine: Lease | None = Lease.acquire(home, now=1e9)
    except LeaseHeld:
        mine = None
    if mine is not None and release:
        mine.release()
    os.kill(pid, signal.SIGCONT)
    outcome = finished(reader)
    what = f"stopped at {line} ({dead_before=}, {release=}): mine={mine and mine.fence}, other={outcome}"
    if mine is None or release:
        if not outcome["won"] or not outcome["holds"] or (mine is not None and outcome["fence"] <= mine.fence):
            bad.append(what)
    elif outcome["won"] or not mine.holds():
        bad.append(what)
    end(pid)
    if mine is not None:
        mine.release()
    return True


def main(folder: Path) -> None:
    bad: list[str] = []
    lines = 0
    for dead_before in (False, True):
        line = 1
        while killed_at(folder / f"k{int(dead_before)}-{line}", line, dead_before, bad):
            line += 1
        lines = max(lines, line)
        for release in (False, True):
            line = 1
            while stopped_at(folder / f"s{int(dead_before)}{int(release)}-{line}", line, dead_before, release, bad):
                line += 1
    print(json.dumps({"lines": lines, "bad": bad}))


main(Path(sys.argv[1]))
