"""Series in the ledger: what is written is what was kept, across restarts, failed commits and a full table."""

from pathlib import Path

import pytest

from hpcdl.core.controller.journal import JournalError
from hpcdl.core.model.series import Point, Series, sample
from hpcdl.ledger import SqliteJournal, schema
from hpcdl.ledger.series import SeriesChange, SeriesTable


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "ledger.sqlite"


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
