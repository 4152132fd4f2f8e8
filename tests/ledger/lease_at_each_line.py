"""Run by test_lease.py: a process that acquires the lease is killed, or stopped while others go on, at lines of it.

Which they are: lines.py. Prints one JSON object of what happened: {"lines": lines of the longest acquire, "bad": [what
went wrong]}.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from hpcdl.ledger.lease import Lease, LeaseHeld
from hpcdl.wire.child import dies_with
from hpcdl.wire.readable import readable
from tests.ledger.lines import chosen, content

ACTING = ("write_new", "atomic_write")  # of wire/private.py; the rest of it only looks
EVERY = 10


def traced_acquire(home: Path, at_line: Callable[[], None]) -> Lease:
    """`at_line` is called before each line. Raises LeaseHeld."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.endswith("ledger/lease.py") and code.co_name not in ACTING:
            return None
        if event == "line":
            at_line()
        return trace

    sys.settrace(trace)
    try:
        return Lease.acquire(home, now=1e9)
    finally:
        sys.settrace(None)


def signalled_acquire(home: Path, line: int, signal_number: int, report: int) -> None:
    """In a child: acquire, with the signal to itself at the given line, and then write the outcome."""
    seen = 0

    def at_line() -> None:
        nonlocal seen
        seen += 1
        if seen == line:
            os.kill(os.getpid(), signal_number)

    try:
        lease = traced_acquire(home, at_line)
    except LeaseHeld:
        outcome: dict[str, object] = {"won": False}
    else:
        outcome = {"won": True, "fence": lease.fence, "holds": lease.holds()}
    os.write(report, json.dumps(outcome).encode())


def lines_of(home: Path, dead_before: bool) -> tuple[int, list[int]]:
    """How many lines an acquire comes to, and those at which the signal comes, each in a home of its own."""
    home.mkdir(mode=0o700)
    if dead_before:
        leave_a_dead_holder(home)
    contents: list[bytes] = []
    traced_acquire(home, lambda: contents.append(content(home))).release()
    return len(contents), chosen(contents, EVERY)


def in_child(home: Path, line: int, signal_number: int) -> tuple[int, int]:
    """(pid, descriptor to read the outcome from)."""
    reader, writer = os.pipe()
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            dies_with(me)()  # also while it is stopped
            signalled_acquire(home, line, signal_number, writer)
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


def killed_at(home: Path, line: int, dead_before: bool, bad: list[str]) -> None:
    """Kill at the line; the next acquire must succeed with a higher fence."""
    home.mkdir(mode=0o700)
    if dead_before:
        leave_a_dead_holder(home)
    pid, reader = in_child(home, line, signal.SIGKILL)
    outcome = os.read(reader, 4096)  # end of file: it was killed
    os.close(reader)
    assert not outcome, f"line {line} was not reached"
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


def stopped_at(home: Path, line: int, dead_before: bool, release: bool, bad: list[str]) -> None:
    """Stop at the line, let another acquire (and release), go on: one of the two holds it."""
    home.mkdir(mode=0o700)
    if dead_before:
        leave_a_dead_holder(home)
    pid, reader = in_child(home, line, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    assert not readable([reader], 0.0), f"line {line} was not reached"
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


def main(folder: Path) -> None:
    bad: list[str] = []
    counts = []
    for dead_before in (False, True):
        name = f"{int(dead_before)}"
        count, lines = lines_of(folder / f"l{name}", dead_before)
        counts.append(count)
        for line in lines:
            killed_at(folder / f"k{name}-{line}", line, dead_before, bad)
            for release in (False, True):
                stopped_at(folder / f"s{name}{int(release)}-{line}", line, dead_before, release, bad)
    print(json.dumps({"lines": max(counts), "bad": bad}))


main(Path(sys.argv[1]))
