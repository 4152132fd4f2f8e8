"""Series in the ledger: what is written is what was kept, across restarts, failed commits and a full table."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, insert

from hpcdl.core.controller.journal import JournalError
from hpcdl.core.model.series import Point, Series, divergence, mean_of, sample
from hpcdl.ledger import SqliteJournal, schema
from hpcdl.ledger.series import SeriesChange, SeriesTable


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def tables() -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        schema.metadata.create_all(connection)
        yield connection
    engine.dispose()


def points(*steps: int) -> tuple[Point, ...]:
    return tuple(sample(float(step), step, step / 2) for step in steps)


def test_changes_make_the_series_that_they_are_of(path: Path) -> None:
    series = Series(most=8)
    with SqliteJournal(path) as journal:
        for step in range(100):
            series.add(sample(float(step), step, None if step == 50 else float(step)))
            if step % 7 == 0:
                first, changed = series.changes()
                journal.add_series([SeriesChange(1, "loss", first, tuple(changed))])
            if step % 21 == 0:
                journal.flush()
        first, changed = series.changes()
        journal.add_series([SeriesChange(1, "loss", first, tuple(changed)), SeriesChange(2, "loss", 0, points(3))])
        assert journal.series(1) == {"loss": series.points}, "what waits counts, too"
        assert journal.series(3) == {}
    with SqliteJournal(path) as journal:
        assert journal.series(1) == {"loss": series.points}
        assert journal.series(2) == {"loss": list(points(3))}
        back = points(1, 2)
        journal.add_series([SeriesChange(1, "loss", 2, back), SeriesChange(1, "gpu_util", 0, points(5))])
        assert journal.series(1) == {"loss": [*series.points[:2], *back], "gpu_util": list(points(5))}


def test_a_commit_that_fails_loses_nothing_and_one_that_never_came_only_what_waited(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = SqliteJournal(path)
    journal.add_series([SeriesChange(1, "loss", 0, points(1, 2))])
    journal.flush()
    journal.add_series([SeriesChange(1, "loss", 2, points(3))])
    with monkeypatch.context() as patched:
        patched.setattr(schema, "ADD_SERIES", "INSERT INTO nowhere VALUES (?)")
        with pytest.raises(JournalError):
            journal.flush()
    assert journal.series(1) == {"loss": list(points(1, 2, 3))}
    with SqliteJournal(path.with_name("other.sqlite")) as other:  # as a copy of the file, as it is on the disk
        journal.copy(path.with_name("copy.sqlite"))
        assert other.series(1) == {}
    with SqliteJournal(path.with_name("copy.sqlite")) as copy:
        assert copy.series(1) == {"loss": list(points(1, 2, 3))}
    journal.close()


def test_a_full_table_drops_the_series_of_the_oldest_jobs(path: Path) -> None:
    with SqliteJournal(path) as journal:
        journal._series = SeriesTable(rows=100)
        for job in range(1, 30):
            journal.add_series([SeriesChange(job, name, 0, points(*range(5))) for name in ("loss", "cpu")])
            journal.flush()
        kept = [job for job in range(1, 30) if journal.series(job)]
        assert kept == list(range(30 - len(kept), 30))
        assert 8 <= len(kept) <= 10
    with SqliteJournal(path) as journal:
        assert journal._series._rows == 10 * len(kept)
        assert journal.verify() == 0


def put_job(connection: Connection, job: int, finished_at: float | None) -> None:
    row = {"id": job, "name": "", "user": "", "state": "", "held": 0, "suspends": 0, "failures": 0, "submitted_at": 0.0}
    connection.execute(insert(schema.job).values(**row, last_detail="", finished_at=finished_at))


def test_unfinished_jobs_keep_their_series_while_finished_ones_have_some(tables: Connection) -> None:
    table = SeriesTable(rows=67)
    ends = {1: None, 2: 9.0, 3: 7.0, 4: 8.0, 5: None, 6: None}
    for job, finished_at in ends.items():
        put_job(tables, job, finished_at)
        table.add([SeriesChange(job, "loss", 0, points(*range(10)))])
        table.written(table.write(tables))
    kept = set(ends)
    for gone in (3, 4, 2, 1):  # those that ended first; at last the oldest of the others
        table.add([SeriesChange(6, f"loss{gone}", 0, points(*range(10)))])
        table.written(table.write(tables))
        kept.remove(gone)
        assert {job for job in ends if table.read(tables, job)} == kept


def test_a_series_whose_first_points_were_dropped_goes_on(tables: Connection) -> None:
    """In the process that had it, and in one that has read what is left of it."""
    table = SeriesTable(rows=200)

    def write(job: int, series: Series) -> None:
        first, changed = series.changes()
        table.add([SeriesChange(job, "loss", first, tuple(changed))])

    def flush() -> None:
        table.written(table.write(tables))

    series = Series()
    for step in range(150):
        series.add(sample(float(step), step, 1.0))
    write(1, series)
    flush()
    table.add([SeriesChange(2, "loss", 0, points(*range(100)))])
    flush()
    assert table.read(tables, 1) == {}
    for step in range(150, 180):
        series.add(sample(float(step), step, 1.0))
    write(1, series)
    flush()
    series.add(sample(180.0, 180, 1.0))
    write(1, series)  # waits
    assert table.read(tables, 1)["loss"] == series.points[150:]
    flush()
    table.load(tables)
    rest = Series(table.read(tables, 1)["loss"])
    assert rest.points == series.points[150:]
    for step in range(181, 186):
        rest.add(sample(float(step), step, 1.0))
    write(1, rest)
    assert table.read(tables, 1)["loss"] == rest.points
    flush()
    assert table.read(tables, 1)["loss"] == rest.points
    assert len(rest.points) == 36
    assert not table.waiting


def test_what_has_diverged_is_found_again(path: Path) -> None:
    curves: dict[tuple[int, str], list[float | None]] = {
        (1, "loss"): [1.0, 2.0, None, None],
        (1, "lr"): [1.0, 2.0, 3.0],
        (2, "loss"): [None, None],
        (3, "loss"): [1.0, None, 3.0],
        (4, "loss"): [1.0, None, 3.0, None],
    }
    stored = {
        key: tuple(sample(float(at), 10 * at, value) for at, value in enumerate(values, 1))
        for key, values in curves.items()
    }
    use = sample(1.0, None, None)
    with SqliteJournal(path) as journal:
        journal.add_series([SeriesChange(job, name, 0, points) for (job, name), points in stored.items()])
        journal.add_series([SeriesChange(5, "gpu_power", 0, (use,))])
        journal.flush()
    with SqliteJournal(path) as journal:
        found = journal.divergences()
    assert found == {1: {"loss": (20, 30)}, 2: {"loss": (-1, 10)}, 4: {"loss": (30, 40)}}
    for (job, name), points in stored.items():
        assert found.get(job, {}).get(name) == divergence(points)


def test_means_are_over_all_samples_and_of_what_waits_too(path: Path) -> None:
    series = Series(most=8)
    with SqliteJournal(path) as journal:
        for number in range(100):
            series.add(sample(float(number), None, None if number == 7 else float(number)))
        first, changed = series.changes()
        journal.add_series([SeriesChange(1, "gpu_util", first, tuple(changed))])
        journal.add_series([SeriesChange(1, "loss", 0, points(1)), SeriesChange(2, "gpu_util", 0, points(4))])
        journal.add_series([SeriesChange(3, "gpu_memory", 0, (sample(1.0, None, None),))])
        mean = (sum(range(100)) - 7) / 99
        assert mean_of(series.points) == pytest.approx(mean)
        waiting = journal.means(("gpu_util", "gpu_memory"))
        journal.flush()
        written = journal.means(("gpu_util", "gpu_memory"))
    assert waiting == {1: {"gpu_util": pytest.approx(mean)}, 2: {"gpu_util": 2.0}}
    assert written == waiting
    assert mean_of([]) is None
