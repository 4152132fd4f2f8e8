"""`hpcdl ledger`: on a ledger without a daemon, and what it says where that cannot be."""

import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from hpcdl.cli.job_row import moment_text
from hpcdl.core.model.events import DaemonStarted
from hpcdl.ledger import Lease, SqliteJournal
from hpcdl.wire.access import AccessFile, write_access
from tests.cli.conftest import Run
from tests.ledger.histories import submissions
from tests.report.story import set_three


@pytest.fixture
def ledger(home: Path) -> Path:
    home.mkdir(mode=0o700)
    with SqliteJournal(home / "ledger.sqlite") as journal:
        journal.append(set_three())
    return home


def test_verify_and_rebuild(ledger: Path, hpcdl: Run) -> None:
    value = hpcdl("ledger", "verify", "--json").value
    seconds = value.pop("seconds")
    assert seconds >= 0
    assert value == {
        "schema": 1, "ok": True, "problem": None, "running": False,
        "events": 29, "jobs": 3, "incarnations": 4, "nodes": 1, "snapshot": 0,
    }  # fmt: skip
    connection = sqlite3.connect(ledger / "ledger.sqlite")
    connection.execute("UPDATE job SET state = 'FAILED' WHERE id = 2")
    connection.commit()
    connection.close()
    done = hpcdl("ledger", "verify")
    assert (done.code, done.out) == (1, "")
    assert "job 2: the table says" in done.err
    assert done.err.count("\n") == 1
    done = hpcdl("ledger", "verify", "--json")
    assert (done.code, done.value["ok"]) == (1, False)
    assert "job 2: the table says" in done.value["problem"]
    assert "made anew from its events" in hpcdl("ledger", "rebuild").out
    assert hpcdl("ledger", "verify", "--quiet").out == "29\n"
    assert not list(ledger.glob("lease.*"))


def test_verify_checks_the_ledger_of_a_damaged_mark(ledger: Path, hpcdl: Run) -> None:
    (ledger / "mark.json").write_text("no mark")
    (ledger / "mark.json").chmod(0o600)
    done = hpcdl("ledger", "verify")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "mark.json is damaged" in done.err
    assert "as its events say, 29 of them, with 3 jobs: if no job is missing" in done.err
    done = hpcdl("ledger", "verify", "--json")
    assert (done.code, done.value["ok"]) == (1, False)


def test_export(ledger: Path, hpcdl: Run, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in hpcdl("ledger", "export").out.splitlines()]
    assert rows[0]["format"] == "hpcdl-events"
    assert len(rows) == 30
    file = tmp_path / "events.jsonl"
    assert hpcdl("ledger", "export", "-o", file, "--json").value["lines"] == 30
    assert file.stat().st_mode & 0o777 == 0o600
    assert [json.loads(line) for line in file.read_text().splitlines()] == rows
    assert hpcdl("ledger", "export", "--csv").out.splitlines()[1].startswith("1,ResNet-50,")
    for argv in (["--json"], ["--csv", "--with-environment"], ["-o", "/nonexistent/a"]):
        done = hpcdl("ledger", "export", *argv)
        assert done.code in (1, 2)
        assert done.out == ""
        assert done.err.count("\n") == 1


def test_backup_and_vacuum(ledger: Path, hpcdl: Run, tmp_path: Path) -> None:
    (ledger / "config.yaml").write_text("keep_events: 9\n")
    value = hpcdl("ledger", "vacuum", "--json").value
    assert value["archived_events"] == 20
    assert value["removed"] == []
    folder = tmp_path / "backup"
    value = hpcdl("ledger", "backup", folder, "--json").value
    assert value["files"] == ["ledger.sqlite", "ledger-archive-000000000001-000000000020.jsonl.gz"]
    assert hpcdl("--home", folder, "ledger", "verify", "--quiet").out == "29\n"
    assert hpcdl("ledger", "backup", ledger).code == 2
    assert "MiB before" in hpcdl("ledger", "vacuum", "--keep-days", "0", "--logs-after", "1").out


@pytest.mark.parametrize("command", ["rebuild", "vacuum", "verify", "export"])
def test_where_a_daemon_runs_or_nothing_is_there(home: Path, hpcdl: Run, command: str) -> None:
    done = hpcdl("ledger", command)
    assert (done.code, done.out) == (1, "")
    assert f"there is no ledger in {home}: name the daemon's folder with --home" in done.err
    assert not home.exists()
    home.mkdir(mode=0o700)
    with SqliteJournal(home / "ledger.sqlite") as journal:
        journal.append(submissions(2))
    lease = Lease.acquire(home, now=1.0)
    try:
        done = hpcdl("ledger", command)
    finally:
        lease.release()
    assert (done.code, done.out) == (1, "")
    assert f"a daemon already runs on {home}, process {os.getpid()} on" in done.err
    assert f" since {moment_text(1.0)}, and this needs the ledger to itself: hpcdl daemon stop saves all" in done.err
    assert done.err.count("\n") == 1


def test_a_damaged_file_is_told_in_a_line(ledger: Path, hpcdl: Run) -> None:
    (ledger / "ledger.sqlite").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    for command in ("verify", "rebuild", "vacuum", "export"):
        done = hpcdl("ledger", command)
        assert (done.code, done.out) == (1, "")
        assert done.err.count("\n") == 1
        assert "restore a copy of it" in done.err


@pytest.mark.parametrize("command", ["verify", "export"])
def test_beside_a_damaged_access_file(ledger: Path, hpcdl: Run, command: str) -> None:
    """Where no daemon runs there is nothing to find by it; where one does, it is written anew soon."""
    (ledger / "access.json").write_text("{")
    (ledger / "access.json").chmod(0o600)
    assert hpcdl("ledger", command).code == 0
    lease = Lease.acquire(ledger, now=1.0)
    try:
        done = hpcdl("ledger", command)
    finally:
        lease.release()
    assert (done.code, done.out) == (1, "")
    assert done.err.endswith(
        "a daemon that runs writes it anew within 10 s; where none does, hpcdl daemon start does\n"
    )


@pytest.mark.parametrize("command", ["verify", "rebuild", "vacuum", "export"])
def test_in_a_copy_of_a_home_that_is_in_use(ledger: Path, hpcdl: Run, tmp_path: Path, command: str) -> None:
    with SqliteJournal(ledger / "ledger.sqlite") as journal:
        journal.append([(2e9, DaemonStarted(1, "1", os.getpid(), "h"))])
    (ledger / "tls").mkdir(mode=0o700)
    (ledger / "tls" / "instance").write_text("i")
    write_access(ledger, AccessFile("i", "127.0.0.1", 1, "-----BEGIN CERTIFICATE-----", "t" * 32, os.getpid(), 1))
    lease, copy = Lease.acquire(ledger, now=1.0), tmp_path / "copy"
    try:
        shutil.copytree(ledger, copy)
    finally:
        lease.release()
    (copy / "tls" / "instance").chmod(0o600)
    (ledger / "tls" / "instance").chmod(0o600)
    done = hpcdl("--home", copy, "ledger", command)
    assert (done.code, done.out) == (1, "")
    assert f"{copy} is a copy of {ledger}, made while process {os.getpid()} on" in done.err
    assert done.err.endswith(f"ran there: remove {copy}/lease.*, then run this again\n")
    for path in copy.glob("lease.*"):
        path.unlink()
    assert hpcdl("--home", copy, "ledger", command).code == 0, "the step that it named"
