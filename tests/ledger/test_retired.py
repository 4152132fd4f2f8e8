"""Jobs that have left the world: their rows, which verify and rebuild know, and what a crash leaves."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.core.controller.journal import JournalError, Stamped
from hpcdl.core.fold.fold import Draft
from hpcdl.core.model import events as ev
from hpcdl.core.model.events import JobsRetired
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.transitions import IllegalEvent
from hpcdl.core.model.world import Job, JobState, World
from hpcdl.ledger import SqliteJournal, maintenance, migrations, schema, snapshots
from hpcdl.ledger import journal as journals
from hpcdl.ledger.database import close_database, open_database
from hpcdl.ledger.records import every_job, retired_rows
from hpcdl.ledger.series import SeriesTable
from hpcdl.ledger.trim import trim
from tests.ledger.histories import NOW
from tests.ledger.test_journal import after_every_kind, edit, opened
from tests.ledger.test_retention import rows

ENV = (("HOME", "/home/jo"), ("KEY", "secret-\udcff"))
SPEC = JobSpec(("/bin/sh", "caf\u00e9", "\udcff"), "train", "jo", env=ENV)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "ledger.sqlite"


def lives(numbers: Sequence[int]) -> list[Stamped]:
    """Jobs that come and end."""
    found: list[Stamped] = []
    for number in numbers:
        spec = replace(SPEC, name=f"j{number}", env=ENV if number % 2 else ())
        found.append((NOW + number, ev.JobSubmitted(number, spec, f"r{number}")))
        found.append((NOW + number, ev.JobEnded(number, JobState.FAILED if number % 3 else JobState.DONE, "why")))
    return found


def retired(*numbers: int) -> Stamped:
    return NOW + 1000, JobsRetired.of(numbers)


def jobs_of(events: Sequence[Stamped]) -> dict[int, Job]:
    """What there would be of them, had none left."""
    draft = Draft(World())
    for at, event in events:
        draft.add(event, at)
    return draft.world.jobs


@pytest.mark.parametrize("each_alone", [False, True])
def test_they_are_kept_as_they_were(path: Path, each_alone: bool) -> None:
    events = lives(range(1, 8))
    was = jobs_of(events)
    everything = [*events, retired(1, 2, 3), retired(5)]
    with opened(path) as ledger:
        for piece in [[each] for each in everything] if each_alone else [everything]:
            ledger.append(piece)
        assert list(ledger.load().jobs) == [4, 6, 7]
    with opened(path) as ledger:  # opened: it verifies, too
        world = ledger.load()
        assert (list(world.jobs), world.next_job, world.retired) == ([4, 6, 7], 8, {"FAILED": 3, "DONE": 1})
        assert ledger.retired() == [was[5], was[3], was[2], was[1]]
        assert ledger.retired(before=3) == [was[2], was[1]]
        assert ledger.retired(before=5, limit=2) == [was[3], was[2]]
        assert ledger.retired((2, 99, 4, 5)) == [was[2], was[5]]
        assert ledger.retired(()) == []
        assert ledger.retired(range(1, 5000)) == [was[1], was[2], was[3], was[5]]
        assert {job.id: job for job in every_job(ledger)} == was
        ledger.snapshot(world)
    assert rows(path, "SELECT count(*) FROM environment") == [(2,)], "each once"
    assert rows(path, "SELECT state FROM job WHERE id IN (2, 3)") == [("FAILED",), ("DONE",)]
    assert "j3" not in rows(path, "SELECT body FROM snapshot")[0][0]


def test_an_event_that_may_not_be_changes_nothing(path: Path) -> None:
    with opened(path) as ledger:
        ledger.append(lives((1, 2)))
        with pytest.raises(IllegalEvent, match="job 9 is not a finished one"):
            ledger.append([retired(1, 9)])
        assert (list(ledger.load().jobs), ledger.retired()) == ([1, 2], [])


@pytest.mark.parametrize("table", ["retired", "environment", "job"])
def test_a_commit_that_fails_leaves_all_in_the_world(path: Path, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as ledger:
        ledger.append(lives(range(1, 5)))
        before = ledger.load()
        with monkeypatch.context() as patched:
            patched.setitem(schema.PUT_ROW, table, "INSERT INTO nowhere VALUES (?, ?)")
            with pytest.raises(JournalError, match="nowhere"):
                ledger.append([retired(1, 2), *lives((5,))])
        assert (ledger.load(), ledger.retired()) == (before, [])
    with opened(path) as ledger:
        assert (ledger.load(), ledger.retired()) == (before, [])
        ledger.append([retired(1, 2)])
        assert [job.id for job in ledger.retired()] == [2, 1]
        assert ledger.append(lives((5,)))[0][0].version == 1


def test_nothing_is_counted_of_them_any_more(path: Path) -> None:
    with opened(path) as ledger:
        ledger.append(lives(range(1, 5)))
        ledger.snapshot(ledger.load())
        ledger.archive(5)
        ledger.append([retired(1, 3)])
        assert "job/1" not in ledger._known().versions
        ledger.snapshot(ledger.load())
        ledger.archive(10)
    assert rows(path, "SELECT name FROM stream ORDER BY name") == [("daemon",), ("job/2",), ("job/4",)]
    with opened(path) as ledger:
        assert set(ledger._known().versions) == {"daemon", "job/2", "job/4"}
        assert [record.event.kind for record in ledger.read(job=1)] == ["JobSubmitted", "JobEnded"]
        ledger.append([retired(2)])
    with opened(path) as ledger:
        assert set(ledger._known().versions) == {"daemon", "job/4"}


def test_what_is_wrong_is_found_without_being_shown_and_made_anew(path: Path) -> None:
    with opened(path) as ledger:
        ledger.append([*lives(range(1, 5)), retired(1, 2)])
        was = ledger.retired()
    for damage, where in (
        ("UPDATE retired SET body = replace(body, 'j2', 'secret') WHERE job = 2", "retired 2"),
        ("DELETE FROM retired WHERE job = 1", "retired 1"),
        ("UPDATE environment SET body = '[]' WHERE body LIKE '%HOME%'", "environment "),
    ):
        edit(path, damage)
        with pytest.raises(JournalError, match=f"{where}.*: the table and the events differ: hpcdl ledger") as error:
            maintenance.verify(path, lambda text: None)
        assert "secret" not in str(error.value)
        found = maintenance.rebuild(path, lambda text: None)
        assert (found.jobs, maintenance.verify(path, lambda text: None).jobs) == (4, 4)
    with opened(path) as ledger:
        assert ledger.retired() == was
    for body in ("{}", "[]", "7"):
        edit(path, f"UPDATE retired SET body = '{body}' WHERE job = 2")
        with SqliteJournal(path) as ledger, pytest.raises(JournalError, match="a retired job cannot be read"):
            ledger.retired()


def test_a_row_has_nothing_that_is_so_by_default() -> None:
    job = Job(7, JobSpec(("train",), "j"), NOW)
    assert retired_rows(job)[0][2] == f'{{"id":7,"spec":{{"command":["train"],"name":"j"}},"submitted_at":{NOW}}}'


@pytest.mark.parametrize("seed", range(3))
def test_any_history_is_the_same_from_its_snapshot(path: Path, seed: int) -> None:
    events = after_every_kind(seed, 40)
    with SqliteJournal(path) as ledger:
        for start in range(0, len(events), 20):
            ledger.append(events[start : start + 20])
            ledger.snapshot(ledger.load())
            ledger.archive(start)
        world, past = ledger.load(), ledger.retired()
    with opened(path) as ledger:
        assert (ledger.load(), ledger.retired()) == (world, past)
    assert sum(world.retired.values()) == len(past) > 0


def test_archive_files_are_asked_for_the_jobs_that_they_hold(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "_ARCHIVED_AT_ONCE", 10)
    with opened(path) as ledger:
        ledger.append([*lives(range(1, 11)), *[(NOW, ev.PolicyChosen("marble"))] * 10, *lives(range(11, 21))])
        ledger.snapshot(ledger.load())
        ledger.archive(1000)
    edit(path, "UPDATE archive SET lowest = NULL, highest = NULL WHERE first = 31")  # as an earlier version wrote it
    read: list[int] = []
    with SqliteJournal(path) as ledger:
        of_file = ledger._archived

        def noted(name: str, first: int, last: int) -> object:
            read.append(first)
            return of_file(name, first, last)

        monkeypatch.setattr(ledger, "_archived", noted)
        for number, files in ((1, [1, 31]), (7, [11, 31]), (12, [31]), (15, [31]), (20, [31, 41])):
            read.clear()
            assert [record.event.kind for record in ledger.read(job=number)] == ["JobSubmitted", "JobEnded"]
            assert read == files
        read.clear()
        assert len(ledger.read()) == 50
        assert read == [1, 11, 21, 31, 41]


def test_events_that_move_to_a_file_meanwhile_are_read_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as ledger:
        records = ledger.append(lives(range(1, 6)))[0]
        ledger.snapshot(ledger.load())
        once = iter([True])
        of_all = ledger._rows

        def moving(after: int, page: int, stream: str | None) -> object:
            found = of_all(after, page, stream)
            if next(once, False):
                assert next(iter(of_all(after, page, stream)))  # the files were looked at before they moved
                ledger.archive(8)
                return iter([])
            return found

        with monkeypatch.context() as patched:
            patched.setattr(ledger, "_rows", moving)
            assert ledger.read() == records


def test_a_ledger_of_the_version_before(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        for function in (migrations.migrate, migrations.check):
            patched.setattr(function, "__defaults__", (migrations.STEPS[:1],))
        patched.setattr(SeriesTable, "load", lambda table, connection: None)  # that version had no such table
        connection, _ = open_database(path)
        close_database(connection)
        with SqliteJournal(path) as ledger:
            ledger.append(lives(range(1, 5)))
            world = ledger.load()
    edit(path, "INSERT INTO archive VALUES (1, 0, 'none')")  # files that it wrote; here of no event
    edit(path, "DELETE FROM archive")
    with monkeypatch.context() as patched:
        patched.setattr(SqliteJournal, "rebuild", None)  # nothing has to be read for the new tables
        with opened(path) as ledger:
            assert ledger.load() == world
            ledger.append([retired(1, 2)])
    with opened(path) as ledger:
        assert [job.id for job in ledger.retired()] == [2, 1]
    assert rows(migrations.backup_of(path, 1), "SELECT count(*) FROM event") == [(8,)]


def test_their_logs_and_scripts_go_in_their_time(path: Path) -> None:
    home, day = path.parent, 86_400.0
    script = "a" * 64 + ".sh"
    with opened(path) as ledger:
        ledger.append([(NOW, ev.JobSubmitted(1, replace(SPEC, command=("/bin/sh", f"/x/{script}")), "r"))])
        ledger.append([(NOW, ev.JobEnded(1, JobState.DONE)), retired(1)])
        for each in (home / "logs" / "1" / "1.n1.log", home / "scripts" / script):
            each.parent.mkdir(0o700, parents=True)
            each.write_text("x")
        (home / "logs").chmod(0o700)

        def left(days: float) -> int:
            now = NOW + days * day
            trim(home, every_job(ledger), now, keep_days=30, log_days=40)
            return sum(each.exists() for each in (home / "logs" / "1", home / "scripts" / script))

        os.utime(home / "scripts" / script, (NOW - day, NOW - day))
        assert left(29) == 2
        assert left(31) == 1
        assert left(41) == 0


def test_a_snapshot_holds_what_is_in_the_world_only(path: Path) -> None:
    events = lives(range(1, 101))
    with opened(path) as ledger:
        ledger.append(events)
        whole = len(snapshots.body_of(ledger.load()))
        ledger.append([retired(*range(1, 91))])
        assert len(snapshots.body_of(ledger.load())) < whole / 4
