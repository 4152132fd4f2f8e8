import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from hpcdl.core.controller.journal import JournalError, LeaseLost, MemoryJournal
from hpcdl.core.fold.fold import fold
from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import Request
from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.core.model.transitions import IllegalEvent
from hpcdl.core.model.world import World, validate
from hpcdl.ledger import Lease, SqliteJournal
from hpcdl.ledger.database import close_database, open_database
from tests.ledger.histories import NOW, every_kind, history, submissions
from tests.support.seeds import seeds

ROOT = Path(__file__).parents[2]
REQUEST = Request("start", "n1", 1, 1, placement=Placement((Share("n1", (0, 1)),)), grace_s=2.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "ledger.sqlite"


@contextmanager
def opened(path: Path, lease_check: Callable[[], bool] | None = None) -> Iterator[SqliteJournal]:
    """A journal that is verified when it is put away."""
    with SqliteJournal(path, lease_check=lease_check) as journal:
        yield journal
        journal.verify()


def at_random(seed: int, length: int) -> list[tuple[float, ev.Event]]:
    numbers = random.Random(seed)
    return history([numbers.randrange(1 << 20) for _ in range(length)])


def after_every_kind(seed: int, length: int) -> list[tuple[float, ev.Event]]:
    """Every kind of event, and so many at random."""
    numbers = random.Random(seed)
    return history([numbers.randrange(1 << 20) for _ in range(length)], every_kind())


CHOICES = st.lists(st.integers(0, 1 << 20), max_size=60)


@settings(max_examples=seeds(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(choices=CHOICES, calls=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=25))
def test_same_calls_same_answers_as_in_memory(choices: list[int], calls: list[tuple[int, int]]) -> None:
    events = history(choices)
    memory = MemoryJournal()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "home" / "ledger.sqlite"
        journal = SqliteJournal(path)
        try:
            for verb, number in [*calls, (0, len(events))]:
                if verb <= 1:
                    batch, events = events[: number + 1], events[number + 1 :]
                    requests = [structs.replace(REQUEST, incarnation=n + 1) for n in range(number % 3)]
                    settled = [number, number + 1] if verb else []
                    assert journal.append(batch, requests, settled) == memory.append(batch, requests, settled)
                elif verb == 2:
                    journal.close()
                    journal = SqliteJournal(path)
                elif verb == 3:
                    journal.snapshot(journal.load())
                elif verb == 4:
                    journal.archive(number * 4)
                elif verb == 5:
                    job = number % 3 or None
                    assert journal.read(number, number * 3, job) == memory.read(number, number * 3, job)
                else:
                    assert journal.pending() == memory.pending()
                assert journal.load() == memory.load()
            assert journal.read(0, 10**6) == memory.records
            assert journal.verify() == len(memory.records)
        finally:
            journal.close()


def test_histories_have_every_kind_of_event() -> None:
    events = every_kind()
    missing = {kind.__name__ for kind in ev.KINDS.values()} - {event.kind for _, event in events}
    assert not missing, f"tests/ledger/histories.py needs a line in EVERY_KIND for {missing}"


def test_kept_projections_are_the_rebuilt_ones(path: Path) -> None:
    for seed in range(8):
        here = path.with_name(f"{seed}.sqlite")
        with SqliteJournal(here) as journal:
            events = after_every_kind(seed, 40)
            for start in range(0, len(events), seed + 1):
                journal.append(events[start : start + seed + 1])
        kept = dump(here)
        with opened(here) as journal:
            journal.rebuild()
        assert dump(here) == kept
        assert kept["job"]


def dump(path: Path) -> dict[str, list[tuple]]:
    connection = sqlite3.connect(path)
    try:
        return {name: sorted(connection.execute(f"SELECT * FROM {name}")) for name in ("job", "incarnation", "node")}
    finally:
        connection.close()


def test_verify_finds_a_row_that_was_changed(path: Path) -> None:
    with opened(path) as journal:
        journal.append(submissions(3))
    edit(path, "UPDATE job SET state = 'DONE' WHERE id = 2")
    with SqliteJournal(path) as journal:
        with pytest.raises(JournalError, match=r"job 2: the table says .*DONE.* the events say .*QUEUED"):
            journal.verify()
        journal.rebuild()
        assert journal.verify() == 3


def edit(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()


def test_request_ids_are_never_used_twice(path: Path) -> None:
    with opened(path) as journal:
        _, requests = journal.append(submissions(1), [REQUEST, REQUEST])
        assert [request.id for request in requests] == [1, 2]
        journal.append([], [], [1, 2])
        journal.snapshot(journal.load())
        journal.append(submissions(1, 2))
        journal.snapshot(journal.load())
        journal.archive(2)
    with opened(path) as journal:
        assert journal.pending() == []
        assert journal.append([], [REQUEST])[1][0].id == 3
        assert [request.id for request in journal.pending()] == [3]


def test_versions_go_on_after_the_archive(path: Path) -> None:
    events = at_random(5, 60)
    memory = MemoryJournal()
    memory.append(events)
    with opened(path) as journal:
        journal.append(events[:50])
        journal.snapshot(journal.load())
        assert journal.archive(51) == 50
        assert journal.archive(51) == 0
    with opened(path) as journal:
        assert journal.append(events[50:])[0] == memory.records[50:]
        assert journal.read(0, 100) == memory.records


def test_an_illegal_event_is_not_recorded(path: Path) -> None:
    with opened(path) as journal:
        journal.append(submissions(2))
        with pytest.raises(IllegalEvent, match="that job exists"):
            journal.append([*submissions(1, 3), *submissions(1)])
        assert journal.append(submissions(1, 3))[0][0].seq == 3


def test_reads_of_one_job_and_in_pages(path: Path) -> None:
    with opened(path) as journal:
        journal.append(submissions(5_000))
        everything = journal.read(0, 10_000)
        assert [record.seq for record in everything] == list(range(1, 5_001))
        assert journal.read(4_998, 10) == everything[-2:]
        assert journal.read(0, 10, job=77) == [everything[76]]
        assert journal.read(0, 0) == journal.read(5_000) == []


# --- killed, full, taken over -----------------------------------------------------------------------------------------

APPENDER = """
import sys
from pathlib import Path
from hpcdl.ledger import SqliteJournal
from tests.ledger.histories import submissions
with SqliteJournal(Path(sys.argv[1])) as journal:
    number = journal.last_seq
    while True:
        size = number % 7 + 1
        journal.append(submissions(size, number + 1))
        number += size
        print(number, size, flush=True)
        if number % 5 == 0:
            journal.snapshot(journal.load())
            journal.archive(number - 20)
"""


def test_killed_in_the_middle_of_appends(path: Path) -> None:
    last = 0
    for attempt in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", APPENDER, str(path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert child.stdout is not None
        try:
            for _ in range(20 + 37 * attempt):
                assert child.stdout.readline()
        finally:
            os.kill(child.pid, signal.SIGKILL)
            rest = child.stdout.read().splitlines()
            child.wait(60)
            child.stdout.close()
        with opened(path) as journal:
            last = journal.last_seq
            acknowledged = [int(line.split()[0]) for line in rest if len(line.split()) == 2]
            assert last >= max(acknowledged, default=20)
            seqs = [record.seq for record in journal.read(0, 10**6)]
            assert seqs == list(range(1, last + 1))
            assert sorted(journal.load().jobs) == seqs, "a job is there twice, or not at all"
            # A batch is whole: the sizes are those that the child would have made.
            number = 0
            while number < last:
                number += number % 7 + 1
            assert number == last, "half a batch"
    assert last > 100


def test_full_disk_by_page_count(path: Path) -> None:
    with opened(path) as journal:
        journal.append(submissions(5), [REQUEST])
        before, world = journal.read(0, 100), journal.load()
        pages = journal._connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        journal._connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(JournalError, match=r"full.*make room"):
            journal.append(submissions(1000, 6), [REQUEST], [1])
        assert (journal.read(0, 100), journal.load()) == (before, world)
        assert len(journal.pending()) == 1
        journal._connection.exec_driver_sql("PRAGMA max_page_count = 100000")
        records, requests = journal.append(submissions(1000, 6), [REQUEST], [1])
        assert (records[0].seq, records[-1].seq, requests[0].id) == (6, 1005, 2)
        assert [request.id for request in journal.pending()] == [2]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_full_disk_for_real(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True)
    if mount.returncode != 0:
        pytest.skip(f"no mounts here: {mount.stderr.decode().strip()}")
    try:
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * 300_000)
        path = disk / "home" / "ledger.sqlite"
        with opened(path) as journal:
            last = 0
            with pytest.raises(JournalError, match=r"check disk and quota|make room"):
                while last < 10_000:
                    last = journal.append(submissions(20, last + 1))[0][-1].seq
            assert last > 0
            assert journal.last_seq == last
            with pytest.raises(JournalError):
                while True:
                    journal.append(submissions(20, journal.last_seq + 1))
            last = journal.last_seq
            ballast.unlink()
            assert journal.append(submissions(20, last + 1))[0][-1].seq == last + 20
        with opened(path) as journal:
            assert journal.last_seq == last + 20
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_lease_lost_writes_nothing(path: Path) -> None:
    holds = [True]
    with opened(path, lambda: holds[0]) as journal:
        journal.append(submissions(2))
        world = journal.load()
        holds[0] = False
        for attempt in (lambda: journal.append(submissions(1, 3), [REQUEST]), lambda: journal.snapshot(world)):
            with pytest.raises(LeaseLost, match="another daemon took over"):
                attempt()
        assert journal.load() == world
    with opened(path) as journal:
        assert (journal.last_seq, journal.snapshot_seq, journal.pending()) == (2, 0, [])


def test_a_lease_that_cannot_be_read_is_a_journal_error(path: Path) -> None:
    def fails() -> bool:
        raise OSError(5, "Input/output error")

    with opened(path, fails) as journal:
        with pytest.raises(JournalError, match="Input/output error"):
            journal.append(submissions(1))
        assert journal.last_seq == 0


def test_with_a_real_lease(path: Path) -> None:
    lease = Lease.acquire(path.parent, now=NOW)
    with opened(path, lease.holds) as journal:
        journal.append([(NOW, ev.DaemonStarted(lease.fence, "1", os.getpid(), "h"))])
        lease.release()
        with pytest.raises(LeaseLost):
            journal.append(submissions(1))


# --- opening ----------------------------------------------------------------------------------------------------------

OPENER = """
import sys
from pathlib import Path
from hpcdl.core.controller.journal import JournalError
from hpcdl.ledger import SqliteJournal
try:
    SqliteJournal(Path(sys.argv[1])).close()
except JournalError as error:
    print(error)
"""


def test_a_second_opener_is_refused(path: Path) -> None:
    with opened(path) as journal:
        journal.append(submissions(1))
        with pytest.raises(JournalError, match="it is open in another process"):
            SqliteJournal(path)
        # Nor did looking at it drop the lock that other processes see.
        for _ in range(2):
            other = subprocess.run(
                [sys.executable, "-c", OPENER, str(path)], capture_output=True, text=True, cwd=ROOT, timeout=60
            )
            assert "it is open in another process" in other.stdout, other
        assert not path.with_name(f"{path.name}-shm").exists()
        journal.append(submissions(1, 2))
    SqliteJournal(path).close()


def test_files_are_private(path: Path, tmp_path: Path) -> None:
    with opened(path) as journal:
        journal.append(submissions(1))
        journal.snapshot(journal.load())
        journal.archive(2)
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()} == {
            "ledger.sqlite": 0o600,
            "ledger.sqlite-wal": 0o600,
            "ledger-archive-000000000001-000000000001.jsonl.gz": 0o600,
        }
    path.chmod(0o640)
    with pytest.raises(JournalError, match=r"open to others \(mode 0640\): run chmod 600"):
        SqliteJournal(path)
    path.chmod(0o600)
    moved = path.rename(tmp_path / "moved")
    path.symlink_to(moved)
    with pytest.raises(JournalError, match="symbolic link: move it away"):
        SqliteJournal(path)
    if os.geteuid() == 0:
        path.unlink()
        moved.rename(path)
        os.chown(path, 12345, -1)
        with pytest.raises(JournalError, match="belongs to uid 12345"):
            SqliteJournal(path)


def test_damage_is_told_in_one_line(path: Path) -> None:
    with opened(path) as journal:
        journal.append(submissions(2000))
    whole = path.read_bytes()
    for content in (b"not a database, and long enough to be looked at" * 30, whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(JournalError, match=r"damaged.*restore a copy") as raised:
            SqliteJournal(path)
        assert "\n" not in str(raised.value)
    path.write_bytes(whole)
    edit(path, "UPDATE event SET body = '{\"job\":' WHERE seq = 3")
    with pytest.raises(JournalError, match="damaged at event 3"):
        SqliteJournal(path)
    path.write_bytes(whole)
    edit(path, "UPDATE event SET kind = 'JobInvented' WHERE seq = 4")
    with pytest.raises(JournalError, match=r"event 4 .*unknown event 'JobInvented'"):
        SqliteJournal(path)
    path.write_bytes(whole)
    edit(path, "DELETE FROM event WHERE seq = 5")
    with pytest.raises(JournalError, match="events are missing"):
        SqliteJournal(path)
    path.write_bytes(whole)
    edit(path, "UPDATE event SET schema = 99 WHERE seq = 6")
    with pytest.raises(JournalError, match="newer hpcdl"):
        SqliteJournal(path)
    path.write_bytes(whole)
    with opened(path) as journal:
        assert journal.last_seq == 2000


def test_world_of_any_prefix_and_the_rest(path: Path) -> None:
    events = at_random(11, 90)
    with opened(path) as journal:
        records = journal.append(events)[0]
        for cut in range(0, 91, 9):
            world = fold(fold(World(), records[:cut]), records[cut:])
            validate(world)
            assert world == journal.load()


LIMITED = """
import resource, signal, sys
from pathlib import Path
from hpcdl.core.controller.journal import JournalError
from hpcdl.ledger import SqliteJournal
from tests.ledger.histories import submissions
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with SqliteJournal(Path(sys.argv[1])) as journal:
    last = 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    try:
        while last < 10_000:
            last = journal.append(submissions(50, last + 1))[0][-1].seq
    except JournalError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert journal.last_seq == last
    assert journal.append(submissions(50, last + 1))[0][-1].seq == last + 50
    print(journal.verify() - last)
"""


def test_an_error_of_the_disk_is_survived(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert "check disk and quota\n50\n" in done.stdout, done


def test_it_is_told_how_far_the_reading_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as journal:
        journal.append(at_random(3, 60))
        last = journal.last_seq
    monkeypatch.setattr("hpcdl.ledger.journal.READ_STRIDE", 10)
    told: list[tuple[int, int]] = []
    with SqliteJournal(path, on_read=lambda done, of: told.append((done, of))) as journal:
        assert journal.last_seq == last
    assert told == [(done, last) for done in range(10, last, 10)]
    assert len(told) > 1


def test_a_commit_is_on_the_disk(path: Path) -> None:
    """With NORMAL, a write-ahead log is synced at checkpoints alone: a power failure would take what was committed."""
    connection, _ = open_database(path)
    try:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2  # FULL
    finally:
        close_database(connection)
