"""Rebuilding, shrinking, copying and exporting a ledger; killed in the middle of any, nothing is lost."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hpcdl.core.controller.journal import JournalError
from hpcdl.core.model import events as ev
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.world import World
from hpcdl.ledger import SqliteJournal, maintenance
from hpcdl.ledger.maintenance import jobs_csv, lines
from hpcdl.ledger.offline import Reader, leased
from hpcdl.ledger.trim import trim
from hpcdl.wire.readable import readable
from tests.ledger.histories import EVERY_KIND, NOW, every_kind, submissions
from tests.report.story import set_three

ROOT = Path(__file__).parents[2]
EVENTS = len(EVERY_KIND) + 5
"""Of the ledger that these tests are about."""


def quiet(text: str) -> None:
    pass


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with every kind of event, a snapshot and an archive."""
    path = tmp_path / "home" / "ledger.sqlite"
    with SqliteJournal(path) as journal:
        journal.append(every_kind())
        journal.snapshot(journal.load())
        journal.archive(31)
        journal.append(submissions(5, first=1000))
    return path


def world_of(path: Path) -> World:
    with SqliteJournal(path) as journal:
        return journal.load()


def edit(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_what_is_wrong_is_found_and_rebuilt(path: Path) -> None:
    world = world_of(path)
    assert maintenance.verify(path, quiet).events == EVENTS
    edit(path, "UPDATE job SET name = 'other' WHERE id = 1000")
    with pytest.raises(JournalError, match=r"job 1000: the table says .*other.*: hpcdl ledger rebuild makes"):
        maintenance.verify(path, quiet)
    edit(path, "UPDATE snapshot SET body = replace(body, '\"marble\"', '\"mürble\"')")
    edit(path, "DELETE FROM node")
    found = maintenance.rebuild(path, quiet)
    assert (found.events, found.jobs, found.snapshot) == (EVENTS, len(world.jobs) + sum(world.retired.values()), EVENTS)
    assert maintenance.verify(path, quiet) == found
    assert world_of(path) == world


def test_a_snapshot_that_lies_is_made_anew(path: Path) -> None:
    world = world_of(path)
    with SqliteJournal(path) as journal:
        wrong = journal.load()
        wrong.policy = "other"
        journal.snapshot(wrong)
    with pytest.raises(JournalError, match=f"the snapshot at seq {EVENTS} differs from the events"):
        maintenance.verify(path, quiet)
    maintenance.rebuild(path, quiet)
    assert world_of(path) == world


def test_damaged_events_are_named_and_nothing_is_changed(path: Path) -> None:
    edit(path, "UPDATE event SET body = '{' WHERE seq = 40")
    before = path.read_bytes()
    with pytest.raises(JournalError, match="event 40"):
        maintenance.rebuild(path, quiet)
    assert path.read_bytes() == before


def test_shrinking_archives_all_but_the_newest_events(path: Path) -> None:
    world = world_of(path)
    moved, _, after = maintenance.shrink(path, 10, quiet)
    assert moved == EVENTS - 30 - 10
    assert after == path.stat().st_size
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT seq FROM snapshot").fetchall() == [(EVENTS,)]
    with SqliteJournal(path) as journal:
        assert journal.load() == world
        assert len(journal.read(0, 1000)) == EVENTS
        assert journal.snapshot_seq == EVENTS
        journal.verify()
    assert maintenance.shrink(path, 10, quiet)[0] == 0


def test_a_backup_is_a_ledger(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    folder.mkdir(mode=0o700)
    copies = maintenance.back_up(path, folder, quiet)
    assert [each.stat().st_mode & 0o777 for each in copies] == [0o600, 0o600]
    assert world_of(folder / "ledger.sqlite") == world_of(path)
    assert maintenance.verify(folder / "ledger.sqlite", quiet).events == EVENTS
    assert maintenance.back_up(path, folder, quiet) == copies
    next(path.parent.glob("ledger-archive-*")).unlink()
    with pytest.raises(JournalError, match="is missing: put it back"):
        maintenance.back_up(path, folder, quiet)


def test_a_backup_on_a_full_disk_leaves_the_one_before(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "backup"
    folder.mkdir(mode=0o700)
    maintenance.back_up(path, folder, quiet)
    there = {each.name: each.read_bytes() for each in folder.iterdir()}
    connect = sqlite3.connect

    def small(target: Path, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(target, **options)
        if target.parent == folder:
            connection.execute("PRAGMA max_page_count = 1")
        return connection

    monkeypatch.setattr(sqlite3, "connect", small)
    with pytest.raises(JournalError, match=f"{folder / 'ledger.sqlite'}: .*: its disk is full: make room"):
        maintenance.back_up(path, folder, quiet)
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == there


def test_a_copy_while_it_is_open(path: Path) -> None:
    with SqliteJournal(path) as journal:
        target = path.with_name("ledger-copy-0123456789abcdef.sqlite")
        assert journal.copy(target) == EVENTS
        journal.append(submissions(1, first=2000))
    assert target.stat().st_mode & 0o777 == 0o600
    assert maintenance.verify(target, quiet).events == EVENTS
    with SqliteJournal(path) as journal, pytest.raises(JournalError, match="nonexistent"):
        journal.copy(path.parent / "nonexistent" / "copy.sqlite")


def test_exported_events_are_all_events_without_secrets(path: Path) -> None:
    with Reader(path) as reader:
        told = [json.loads(line) for line in lines(reader, "1", with_environment=False)]
        whole = [json.loads(line) for line in lines(reader, "1", with_environment=True)]
        table = "".join(jobs_csv(reader))
    assert told[0] == {"schema": 1, "format": "hpcdl-events", "hpcdl": "1", "events": EVENTS, "environment": False}
    assert [row["seq"] for row in told[1:]] == list(range(1, EVENTS + 1))
    specs = [row["body"]["spec"] for row in told[1:] if row["kind"] == "JobSubmitted" and row["body"]["spec"]["env"]]
    assert {tuple(spec["env"]) for spec in specs} == {("A",)}
    specs = [row["body"]["spec"] for row in whole[1:] if row["kind"] == "JobSubmitted" and row["body"]["spec"]["env"]]
    assert {str(spec["env"]) for spec in specs} == {"[['A', 'b\\n']]"}
    assert table.splitlines()[0].startswith("id,name,user,state")
    world = world_of(path)
    assert len(table.splitlines()) == 1 + len(world.jobs) + sum(world.retired.values())


def test_an_export_redacts_where_notices_go(tmp_path: Path) -> None:
    path = tmp_path / "home" / "ledger.sqlite"
    secret = "https://ada:pw@hooks.example.org/T0K3N?x=1"
    spec = JobSpec(("true",), "j", "jo", notify=(secret, "mailto:ada@example.org"))
    with SqliteJournal(path) as journal:
        journal.append([(NOW, ev.JobSubmitted(1, spec, "r1"))])
    with Reader(path) as reader:
        told = "".join(lines(reader, "1", with_environment=False))
        whole = "".join(lines(reader, "1", with_environment=True))
    assert "T0K3N" not in told
    assert "pw@" not in told
    assert "hooks.example.org" in told
    assert secret in whole


def test_no_daemon_starts_meanwhile(path: Path) -> None:
    with leased(path.parent, NOW), pytest.raises(Exception, match="a daemon already runs on"), leased(path.parent, NOW):
        pass
    with leased(path.parent, NOW):
        pass
    with pytest.raises(JournalError, match="there is no ledger in"), leased(path.parent / "other", NOW):
        pass
    assert not (path.parent / "other").exists()


# --- files that nothing needs ---------------------------------------------------------------------------------------


def put(file: Path, days_old: float, text: str = "x") -> Path:
    for folder in reversed(file.parents[: len(file.parents) - 3]):
        if not folder.exists():
            folder.mkdir(mode=0o700)
    file.write_text(text)
    os.utime(file, (NOW - days_old * 86_400, NOW - days_old * 86_400))
    return file


def test_only_what_is_ours_and_done_with_goes(path: Path) -> None:
    home = path.parent
    script = "a" * 64 + ".sh"
    gone = [
        put(home / "ledger-copy-0123456789abcdef.sqlite", 0),
        put(home / ".ledger-archive-000000000001-000000000012.jsonl.gz.tmp", 0),
        put(home / "spool" / "refused" / "abc.json", 31),
        put(home / "spool" / "refused" / "abc.json.reason", 31),
        put(home / "logs" / "pilots" / "p3.log", 40),
        put(home / "scripts" / script, 40),
    ]
    kept = [
        put(home / "spool" / "refused" / "new.json", 29),
        put(home / "logs" / "pilots" / "notes.txt.mine", 400),
        put(home / "scripts" / ("b" * 64 + ".sh"), 40),
        put(home / "scripts" / "mine.sh", 400),
        put(home / "ledger-copy-mine.sqlite", 400),
        put(home / "logs" / "1" / "1.n1.log", 400),
        put(
            home / "spool" / "r1.json", 400, f'{{"jobs": [{{"command": ["/bin/sh", "{home}/scripts/{"b" * 64}.sh"]}}]}}'
        ),
    ]
    link = home / "scripts" / ("c" * 64 + ".sh")
    link.symlink_to(kept[3])
    freed = trim(home, world_of(path).jobs.values(), NOW, keep_days=30, log_days=None)
    assert [each for each in gone if each.exists()] == []
    assert [each for each in kept if not each.exists()] == []
    assert link.is_symlink()
    assert {each.what: each.files for each in freed} == {
        "copies of the ledger": 1, "unfinished files": 1, "refused submits": 2, "output of pilots": 1,
        "batch scripts": 1,
    }  # fmt: skip


def test_logs_go_only_when_asked_and_of_jobs_that_are_over(tmp_path: Path) -> None:
    home, over, running = tmp_path / "home", 3, 4
    with SqliteJournal(home / "ledger.sqlite") as journal:
        journal.append(set_three())
        journal.append(submissions(1, first=running))
        world = journal.load()
    put(home / "logs" / str(over) / "1.n1.log", 400)
    put(home / "logs" / str(running) / "1.n1.log", 400)
    finished_at = world.jobs[over].finished_at
    assert finished_at is not None
    assert trim(home, world.jobs.values(), finished_at + 5 * 86_400, keep_days=30, log_days=6) == []
    (freed,) = trim(home, world.jobs.values(), finished_at + 5 * 86_400, keep_days=30, log_days=4)
    assert (freed.what, freed.files) == ("logs of jobs", 1)
    assert not (home / "logs" / str(over)).exists()
    assert (home / "logs" / str(running) / "1.n1.log").exists()


def test_a_folder_that_only_a_claim_is_in_goes_once_its_job_is_long_over(tmp_path: Path) -> None:
    home, running = tmp_path / "home", 4
    with SqliteJournal(home / "ledger.sqlite") as journal:
        journal.append(set_three())
        journal.append(submissions(1, first=running))
        world = journal.load()
    for number in (1, 2, 3, running):
        put(home / "checkpoints" / str(number) / "claim.json", 400)
    put(home / "checkpoints" / "2" / "step-000000000001.i1" / "COMPLETE", 400)
    finished_at = max(world.jobs[number].finished_at or 0.0 for number in (1, 2, 3))
    assert trim(home, world.jobs.values(), finished_at + 5 * 86_400, keep_days=30, log_days=None) == []
    (freed,) = trim(home, world.jobs.values(), finished_at + 31 * 86_400, keep_days=30, log_days=None)
    assert (freed.what, freed.files) == ("checkpoint folders without a checkpoint", 2)
    assert sorted(os.listdir(home / "checkpoints")) == ["2", str(running)]
    assert (home / "checkpoints" / "2" / "claim.json").exists(), "attempts that are not the newest are refused there"


# --- killed ---------------------------------------------------------------------------------------------------------

KILLED = """
import sys
from pathlib import Path
from hpcdl.ledger import maintenance as care
path = Path(sys.argv[1])
def tell(text):
    pass
print("begun", flush=True)
while True:
    care.rebuild(path, tell)
    care.shrink(path, 5, tell)
    care.back_up(path, path.parent / "backup", tell)
    care.shrink(path, 1, tell)
    print("round", flush=True)
"""


def test_killed_at_any_time_nothing_is_lost(path: Path) -> None:
    world = world_of(path)
    (path.parent / "backup").mkdir(mode=0o700)
    for number in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ}
        )
        try:
            assert process.stdout is not None
            assert readable([process.stdout.fileno()], 60)
            time.sleep(0.037 * number)  # no condition is waited for: the instant is to be any
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
        assert maintenance.verify(path, quiet).events == EVENTS
        assert world_of(path) == world
        backed_up = path.parent / "backup" / "ledger.sqlite"
        if backed_up.exists():
            assert world_of(backed_up) == world
