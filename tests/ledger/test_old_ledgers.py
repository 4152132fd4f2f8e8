"""Ledgers that an earlier hpcdl wrote, before arrays, retries, stalls, notices and avoided GPUs, are read as ever."""

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import pytest

from hpcdl.core.fold.fold import fold
from hpcdl.core.model.events import Recorded, decode
from hpcdl.core.model.world import JobState, World, validate
from hpcdl.ledger import SqliteJournal
from hpcdl.ledger.snapshots import FORMAT

RECORDED = Path(__file__).parents[1] / "recordings" / "ledger"
DONE, FAILED = JobState.DONE, JobState.FAILED
PLAIN = {1: (DONE, 60), 2: (FAILED, None), 3: (DONE, 30), 4: (DONE, 60), 5: (DONE, 60), 6: (FAILED, None), 7: (None, 0)}


def records_of(name: str) -> list[Recorded]:
    rows = [json.loads(line) for line in (RECORDED / f"{name}.jsonl").read_text().splitlines()]
    return [Recorded(row["seq"], row["at"], row["seq"], decode(row["kind"], row["body"])) for row in rows]


@pytest.mark.parametrize(("name", "jobs"), [("plain", PLAIN), ("elastic", {1: (None, 219)})])
def test_a_ledger_of_an_earlier_version(
    name: str, jobs: Mapping[int, tuple[JobState | None, int | None]], tmp_path: Path
) -> None:
    records = records_of(name)
    world = fold(World(), records)
    validate(world)
    assert {number: (job.outcome, job.progress.step) for number, job in world.jobs.items()} == jobs
    assert all(job.spec.array == 0 and job.spec.notify == () for job in world.jobs.values())
    path = tmp_path / "ledger.sqlite"
    with SqliteJournal(path) as journal:
        journal.append([(record.at, record.event) for record in records])
    with sqlite3.connect(path) as connection:  # as that version would have put it, without the fields of this one
        connection.execute("INSERT INTO snapshot (seq, format, body) VALUES (?, ?, '{}')", (world.seq, FORMAT - 1))
    connection.close()
    with SqliteJournal(path) as journal:
        assert journal.load() == world
        assert journal.snapshot_seq == 0
        journal.verify()
        journal.snapshot(world)
    with SqliteJournal(path) as journal:
        assert journal.snapshot_seq == world.seq
        assert journal.load() == world
        journal.verify()
