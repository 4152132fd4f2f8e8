"""Values that are none of their columns, which SQLite keeps: each is told in one line that names the damage."""

import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdl.core.controller.journal import JournalError
from hpcdl.core.model.commands import Request
from hpcdl.ledger import SqliteJournal, maintenance
from hpcdl.ledger.offline import Reader
from hpcdl.ledger.samples import GpuTelemetry
from tests.ledger.histories import every_kind

READ_ALWAYS = ("event", "outbox", "archive", "stream", "sample")
MADE_ANEW = ("job", "incarnation", "node", "retired", "environment", "snapshot")
VALUES = ("x", b"\xff\x00", 1e300, 1 << 62)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "home"
    folder.mkdir(mode=0o700)
    with SqliteJournal(folder / "ledger.sqlite") as journal:
        events = every_kind()
        journal.append(events[:60], [Request("start", "n1", 1, 1)])
        journal.add_samples([GpuTelemetry(1.0, "n1", 0)])
        journal.snapshot(journal.load())
        journal.append(events[60:])
        journal.archive(20)
    return folder


def read(path: Path) -> None:
    with SqliteJournal(path) as journal:
        journal.load()
        journal.pending()
        journal.retired()
        journal.digest(journal.last_seq)
        journal.read()


def export(path: Path) -> None:
    with Reader(path) as reader:
        list(maintenance.lines(reader, "1", with_environment=False))


def verify(path: Path) -> None:
    maintenance.verify(path, lambda text: None)


def rebuild(path: Path) -> None:
    maintenance.rebuild(path, lambda text: None)


@pytest.mark.parametrize("table", [*READ_ALWAYS, *MADE_ANEW])
def test_a_value_of_another_type_is_told_as_damage(whole: Path, tmp_path: Path, table: str) -> None:
    acts: tuple[Callable[[Path], None], ...] = (read, export, verify, rebuild)
    with sqlite3.connect(whole / "ledger.sqlite") as ledger:
        columns = [row[1] for row in ledger.execute(f"PRAGMA table_info({table})")]
    ledger.close()
    damaged = 0
    for number, column in enumerate(columns):
        home = tmp_path / column
        shutil.copytree(whole, home)
        path = home / "ledger.sqlite"
        with sqlite3.connect(path) as ledger:
            for value in VALUES[number % 2 :: 2]:
                try:
                    change = f"UPDATE {table} SET {column} = ? WHERE rowid = (SELECT max(rowid) FROM {table})"
                    damaged += ledger.execute(change, (value,)).rowcount
                    break
                except sqlite3.IntegrityError:
                    continue  # a key, which SQLite guards
        ledger.close()
        for act in acts:
            with contextlib.suppress(JournalError):  # and nothing else
                act(path)
        if table in MADE_ANEW:
            verify(path)
    assert damaged


def test_the_event_is_named(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "home")
    path = tmp_path / "home" / "ledger.sqlite"
    with sqlite3.connect(path) as ledger:
        (last,) = ledger.execute("SELECT max(seq) FROM event").fetchone()
        ledger.execute("UPDATE event SET schema = 'x' WHERE seq = ?", (last,))
    ledger.close()
    for act in (read, export, verify, rebuild):
        with pytest.raises(JournalError, match=f"the ledger is damaged at event {last} "):
            act(path)
    with sqlite3.connect(path) as ledger:
        ledger.execute("UPDATE event SET schema = 1, stream = 'job/x' WHERE seq = ?", (last,))
    ledger.close()
    with pytest.raises(JournalError, match=f"damaged at event {last} .it is in the stream 'job/x'"):
        read(path)
