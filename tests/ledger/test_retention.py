"""Snapshots, archive files, the ring of samples, migrations."""

import json
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, text

from hpcdl.core.controller.journal import JournalError
from hpcdl.core.model.frozen import CodecError, from_json, to_json
from hpcdl.core.model.profile import Observation, Observations
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import World
from hpcdl.ledger import SqliteJournal, journal, migrations, schema, snapshots
from hpcdl.ledger.database import close_database, open_database
from hpcdl.ledger.samples import GpuTelemetry
from tests.ledger.histories import NOW, submissions
from tests.ledger.test_journal import after_every_kind, at_random, edit, opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "ledger.sqlite"


def archives(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir() if "archive" in each.name)


@pytest.mark.parametrize("seed", range(6))
def test_a_world_comes_back_from_its_snapshot(path: Path, seed: int) -> None:
    with opened(path) as ledger:
        ledger.append(after_every_kind(seed, 40))
        world = ledger.load()
        back = snapshots.world_of(snapshots.body_of(world))
        assert back == world
        assert list(back.jobs) == list(world.jobs)
        assert all(isinstance(gpu, GpuRef) for gpu in back.holders)


def test_keys_of_a_dict_are_read_by_their_type() -> None:
    world = World(holders={GpuRef("a:b", 3): (1, 2)}, active={7: None})
    assert from_json(World, json.loads(json.dumps(to_json(world)))) == world
    damaged: dict
    for damaged in ({"holders": {"n1": [1, 2]}}, {"holders": {"n1:x": [1, 2]}}, {"active": {"x": None}}, {"jobs": []}):
        with pytest.raises(CodecError):
            from_json(World, damaged)


def test_snapshot_and_tail_are_the_full_replay(path: Path) -> None:
    events = at_random(3, 90)
    with SqliteJournal(path) as ledger:
        for start in range(0, 90, 10):
            ledger.append(events[start : start + 10])
            ledger.snapshot(ledger.load())
        ledger.append(submissions(3, first=1000))
        world = ledger.load()
    with opened(path) as ledger:
        assert ledger.snapshot_seq == 90
        assert ledger.load() == world
    edit(path, "UPDATE snapshot SET body = '{' WHERE seq = 90")
    with opened(path) as ledger:
        assert (ledger.snapshot_seq, ledger.load()) == (80, world)
    edit(path, f"UPDATE snapshot SET format = {snapshots.FORMAT + 1}")
    with opened(path) as ledger:
        assert (ledger.snapshot_seq, ledger.load()) == (0, world)


def test_a_snapshot_of_a_world_that_is_not_recorded_is_refused(path: Path) -> None:
    with opened(path) as ledger, pytest.raises(ValueError, match="a world at seq 5, and the ledger ends at 0"):
        ledger.snapshot(World(seq=5))


def test_a_wrong_snapshot_is_found(path: Path) -> None:
    with SqliteJournal(path) as ledger:
        ledger.append(submissions(4))
        world = ledger.load()
        world.policy = "other"
        ledger.snapshot(world)
    with SqliteJournal(path) as ledger, pytest.raises(JournalError, match="snapshot at seq 4 differs"):
        ledger.verify()


def test_rates_that_an_earlier_version_learnt_are_no_difference(path: Path) -> None:
    with SqliteJournal(path) as ledger:
        ledger.append(submissions(4))
        world = ledger.load()
        world.observed["model"] = Observations((Observation("emulated", 1, 1, 30.0, 60.0),))
        ledger.snapshot(world)
    with SqliteJournal(path) as ledger:
        assert ledger.load().observed == world.observed
        assert ledger.verify() == world.seq


def test_archived_events_are_still_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_ARCHIVED_AT_ONCE", 30)
    events = after_every_kind(6, 10)[:90]
    with opened(path) as ledger:
        records = ledger.append(events)[0]
        assert ledger.archive(1000) == 0, "not before there is a snapshot"
        ledger.snapshot(ledger.load())
        assert ledger.archive(76) == 75
    assert archives(path) == [
        f"ledger-archive-{first:012d}-{last:012d}.jsonl.gz" for first, last in ((1, 30), (31, 60), (61, 75))
    ]
    with opened(path) as ledger:
        assert ledger.read(0, 1000) == records
        assert ledger.read(40, 25) == records[40:65]
        jobs = [record for record in records if getattr(record.event, "job", None) == 1]
        assert ledger.read(0, 1000, job=1) == jobs
        assert jobs
        assert ledger.archive(1000) == 15
    with opened(path) as ledger:
        assert ledger.read(0, 1000) == records
        assert ledger.last_seq == 90
        assert ledger.append(submissions(1, 1000))[0][0].seq == 91


def test_a_missing_or_damaged_archive_is_named(path: Path) -> None:
    with opened(path) as ledger:
        ledger.append(submissions(9))
        ledger.snapshot(ledger.load())
        ledger.archive(9)
    file = path.with_name(archives(path)[0])
    content = file.read_bytes()
    with SqliteJournal(path) as ledger:  # the snapshot is enough to go on
        for damaged, why in ((content[:40], "damaged"), (b"x" * 99, "damaged"), (b"", "damaged"), (None, "missing")):
            file.unlink()
            if damaged is not None:
                file.write_bytes(damaged)
            ledger._archived.cache_clear()
            with pytest.raises(JournalError, match=rf"{file.name} is {why}"):
                ledger.read()
            assert [record.seq for record in ledger.read(8)] == [9]
            file.touch()
        file.write_bytes(content)
        assert ledger.verify() == 9


def test_a_crash_between_archive_file_and_commit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as ledger:
        records = ledger.append(submissions(20))[0]
        ledger.snapshot(ledger.load())
        with monkeypatch.context() as patched:
            patched.setattr(schema, "ADD_ARCHIVE", "INSERT INTO nowhere VALUES (?, ?, ?)")
            with pytest.raises(JournalError, match="nowhere"):
                ledger.archive(8)
        assert archives(path) == ["ledger-archive-000000000001-000000000007.jsonl.gz"]
        (path.parent / ".ledger-archive-000000000001-000000000003.jsonl.gz.tmp").touch()
    with opened(path) as ledger:
        assert ledger.read() == records
        assert ledger.archive(11) == 10
        assert archives(path) == ["ledger-archive-000000000001-000000000010.jsonl.gz"]
        assert ledger.read() == records


def test_the_ring_is_bounded_and_written_with_the_next_commit(path: Path) -> None:
    samples = [GpuTelemetry(NOW + n, f"n{n % 2}", n % 4, n, 2.0 * n, None) for n in range(40)]
    with SqliteJournal(path, samples=10) as ledger:
        ledger.add_samples(samples[:4])
        assert ledger.samples() == samples[:4]
        ledger.append(submissions(1))
        ledger.add_samples(samples[4:25])
        ledger.append(submissions(1, 2))
        assert ledger.samples() == samples[15:25]
        ledger.add_samples(samples[25:30])
    assert rows(path, "SELECT count(*), min(at) FROM sample") == [(10, NOW + 20)]
    with SqliteJournal(path, samples=6) as ledger:
        assert ledger.samples() == samples[20:30]
        ledger.add_samples(samples[30:32])
        ledger.flush()
        assert ledger.samples() == samples[26:32]
        assert ledger.samples(since=NOW + 29) == samples[30:32]
        assert ledger.samples(node="n1", limit=2) == [samples[29], samples[31]]
        assert ledger.samples(limit=0) == []


def rows(path: Path, query: str) -> list[tuple]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


@pytest.mark.parametrize("wrong", [{"at": float("nan")}, {"util": 1e300}, {"gpu": 1 << 70}, {"node": "\udcff"}])
def test_a_sample_that_cannot_be_written_is_refused_at_once(wrong: dict) -> None:
    with pytest.raises(ValueError, match="sample"):
        GpuTelemetry(**({"at": NOW, "node": "n1", "gpu": 0} | wrong))


# --- migrations ------------------------------------------------------------------------------------------------------


def structure(connection: Connection) -> dict[str, list[tuple]]:
    tables = connection.execute(text("SELECT name FROM sqlite_schema WHERE type = 'table'")).scalars().all()
    found: dict[str, list[tuple]] = {}
    for name in tables:
        found[name] = [tuple(row) for row in connection.execute(text(f"PRAGMA table_xinfo({name})"))]
        found[f"{name} indices"] = sorted(
            tuple(row)[2:] for row in connection.execute(text(f"PRAGMA index_list({name})"))
        )
    return found


def test_the_migrated_tables_are_those_of_the_schema(path: Path) -> None:
    connection, migrated = open_database(path)
    assert not migrated
    engine = create_engine("sqlite://")
    schema.metadata.create_all(engine)
    try:
        with engine.connect() as other:
            assert structure(connection) == structure(other)
        assert migrations.version_of(connection) == len(migrations.STEPS) >= 1
    finally:
        close_database(connection)
        engine.dispose()


def _second(connection: Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE more (a INTEGER)")
    connection.exec_driver_sql("DELETE FROM job")


def _failing(connection: Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE never (a INTEGER)")
    raise RuntimeError("killed here")


def test_to_another_version_with_a_copy_made_before(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as ledger:
        ledger.append(submissions(3))
    newest = len(migrations.STEPS)
    monkeypatch.setattr(migrations, "STEPS", (*migrations.STEPS, _second))
    monkeypatch.setattr(migrations.migrate, "__defaults__", (migrations.STEPS,))
    monkeypatch.setattr(migrations.check, "__defaults__", (migrations.STEPS,))
    with opened(path) as ledger:  # which finds the projections as they should be: they were made anew
        assert ledger.last_seq == 3
    assert rows(path, "PRAGMA user_version") == [(newest + 1,)]
    copy = migrations.backup_of(path, newest)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert rows(copy, "PRAGMA user_version") == [(newest,)]
    assert rows(copy, "SELECT count(*) FROM event") == [(3,)]
    assert rows(copy, "SELECT count(*) FROM sqlite_schema WHERE name = 'more'") == [(0,)]


def test_a_step_that_fails_leaves_the_version_before(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as ledger:
        ledger.append(submissions(3))
    with monkeypatch.context() as patched:
        steps = (*migrations.STEPS, _second, _failing)
        patched.setattr(migrations.migrate, "__defaults__", (steps,))
        patched.setattr(migrations.check, "__defaults__", (steps,))
        with pytest.raises(RuntimeError, match="killed here"):
            SqliteJournal(path)
    newest = len(migrations.STEPS)
    assert rows(path, "PRAGMA user_version") == [(newest + 1,)]
    assert rows(path, "SELECT count(*) FROM sqlite_schema WHERE name = 'never'") == [(0,)]
    before = path.read_bytes()
    with pytest.raises(JournalError, match=rf"newer hpcdl \(version {newest + 1}, known up to {newest}\): update"):
        SqliteJournal(path)
    assert path.read_bytes() == before


def test_another_programs_database_is_left_alone(path: Path) -> None:
    SqliteJournal(path.with_name("x")).close()  # makes the folder
    edit(path, "CREATE TABLE bookmarks (a INTEGER)")
    path.chmod(0o600)
    before = path.read_bytes()
    with pytest.raises(JournalError, match="another program: move it away"):
        SqliteJournal(path)
    assert path.read_bytes() == before
