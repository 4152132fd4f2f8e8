"""Run by test_high_water_mark.py: a process that opens a ledger with its mark and records submits is killed.

A child is killed at lines of FILES that it comes to (lines.py).

Prints one JSON object of what happened: {"lines": by case, how many lines there were, "kills": how many of them a child
was killed at, "bad": [what went wrong]}.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from hpcdl.core.model import events as ev
from hpcdl.core.model.job import JobSpec
from hpcdl.ledger import SqliteJournal
from hpcdl.ledger.integrity import LedgerShrank, UsableLedger, open_resumed
from tests.ledger.lines import chosen, content

FILES = ("ledger/high_water_mark.py", "ledger/integrity.py", "ledger/backup_stamp.py", "ledger/journal.py")
ACTING = ("write_new", "atomic_write", "begin_above")
NOW = 1e9
KNOWN = 9
"""Jobs that were acknowledged before the case begins."""
EVERY = 100


def opened(home: Path, accept_loss: bool) -> UsableLedger:
    return open_resumed(home, lambda: SqliteJournal(home / "ledger.sqlite"), accept_loss=accept_loss, first_job=1)


def begin(resumed: UsableLedger) -> None:
    """As a daemon does."""
    fence = max(resumed.fence, resumed.journal.load().fence) + 1
    started: list[ev.Event] = [ev.DaemonStarted(fence, "1", 1, "h")]
    resumed.journal.append([(NOW, each) for each in (*started, *filter(None, (resumed.raised,)))])


def submit(journal: SqliteJournal) -> int:
    number = journal.load().next_job
    journal.append([(NOW, ev.JobSubmitted(number, JobSpec(("true",), "j", "jo"), f"r{number}"))])
    return number


def acknowledged(home: Path, accept_loss: bool, writer: int, at_line: Callable[[], None]) -> None:
    """Opens the ledger and submits two jobs, whose ids are written down; `at_line` is called before each line."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.endswith(FILES) and code.co_name not in ACTING:
            return None
        if event == "line":
            at_line()
        return trace

    sys.settrace(trace)
    resumed = opened(home, accept_loss)
    begin(resumed)
    for _ in range(2):
        os.write(writer, b"%d\n" % submit(resumed.journal))
    resumed.journal.close()
    sys.settrace(None)


def lines_of(home: Path, accept_loss: bool) -> tuple[int, list[int]]:
    """How many lines there are, and those to be killed at."""
    contents: list[bytes] = []
    with open(os.devnull, "wb") as nowhere:
        acknowledged(home, accept_loss, nowhere.fileno(), lambda: contents.append(content(home)))
    return len(contents), chosen(contents, EVERY)


def killed_at(home: Path, line: int, accept_loss: bool) -> list[int]:
    """The ids that a child acknowledged before it was killed at that line; 0: it comes to its end."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        seen = 0

        def at_line() -> None:
            nonlocal seen
            seen += 1
            if seen == line:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            acknowledged(home, accept_loss, writer, at_line)
        finally:
            os._exit(0)
    os.close(writer)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) == bool(line)
    with os.fdopen(reader) as file:
        return [int(word) for word in file.read().split()]


def check(case: str, home: Path, line: int, answered: list[int], bad: list[str]) -> None:
    """The next daemon starts, knows what was acknowledged or jumps over it, and gives only new ids."""
    loss = case.startswith("loss")
    try:
        resumed = opened(home, accept_loss=False)
    except LedgerShrank as error:
        if not loss or answered:
            bad.append(f"{case}, line {line}: {error}")
            return
        resumed = opened(home, accept_loss=True)
    with resumed.journal as journal:
        if resumed.raised is not None and not (loss or case == "backup"):
            bad.append(f"{case}, line {line}: {resumed.raised}")
        begin(resumed)
        world = journal.load()
        if missing := [number for number in answered if number not in world.jobs]:
            bad.append(f"{case}, line {line}: jobs {missing} are lost")
        number = submit(journal)
        if number <= max([KNOWN, *answered]) or number > KNOWN + 4:
            bad.append(f"{case}, line {line}: {answered} were given, then {number}")
        raised = [record for record in journal.read(0, 1000) if record.event.kind == "IdsRaised"]
        if len(raised) != (1 if loss or case == "backup" else 0):
            bad.append(f"{case}, line {line}: ids were raised {len(raised)} times")


def prepare(case: str, home: Path) -> None:
    """A home in which nine jobs were acknowledged."""
    resumed = opened(home, accept_loss=False)
    begin(resumed)
    for number in range(KNOWN):
        submit(resumed.journal)
        if case == "backup" and number == 4:
            resumed.journal.close()
            from hpcdl.ledger.maintenance import back_up

            backup = home.with_name(f"{home.name}-backup")
            backup.mkdir(mode=0o700)
            back_up(home / "ledger.sqlite", backup, lambda text: None)
            resumed = opened(home, accept_loss=False)
            begin(resumed)
    resumed.journal.close()
    if case == "backup":
        shutil.copy(home.with_name(f"{home.name}-backup") / "ledger.sqlite", home)
    elif case == "loss of all":
        os.truncate(home / "ledger.sqlite", 0)
    elif case == "old home":
        for name in ("mark.json", "mark.now"):
            (home / name).unlink()


def main(folder: Path) -> None:
    bad: list[str] = []
    counts: dict[str, int] = {}
    kills: dict[str, int] = {}
    home = folder / "home"
    for case in ("whole", "backup", "loss of all", "old home"):
        template = folder / case.replace(" ", "-")
        prepare(case, template)
        shutil.copytree(template, home)
        counts[case], lines = lines_of(home, accept_loss=case.startswith("loss"))
        shutil.rmtree(home)
        for line in (*lines, 0):
            shutil.copytree(template, home)
            answered = killed_at(home, line, accept_loss=case.startswith("loss"))
            check(case, home, line, answered, bad)
            shutil.rmtree(home)
        kills[case] = len(lines)
    print(json.dumps({"lines": counts, "kills": kills, "bad": bad}))


if __name__ == "__main__":
    os.fsync = lambda fd: None  # a kill loses nothing that was written: only a power failure would
    main(Path(sys.argv[1]))
