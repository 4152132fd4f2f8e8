"""Verbs that read, without a daemon: from a copy of the ledger, where its daemon is provably gone."""

import errno
import fcntl
import json
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from hpcdl.cli.job_row import moment_text
from hpcdl.config.settings import Config
from hpcdl.core.model.events import DaemonStarted, DaemonStopping, NodeSilent
from hpcdl.core.model.units import short_seconds_text
from hpcdl.daemon.api import overview
from hpcdl.daemon.api.profiles import ProfileNames, read_known
from hpcdl.daemon.daemon import open_ledger
from hpcdl.daemon.learner import Learner
from hpcdl.daemon.offline import OfflineApi
from hpcdl.ledger import Lease, SqliteJournal, offline
from hpcdl.ledger.high_water_mark import read_mark
from hpcdl.ledger.offline import copy_at_rest
from hpcdl.wire.last_start import BY_HAND
from tests.cli.conftest import Run
from tests.ledger import test_recorded_home
from tests.ledger.histories import submissions
from tests.ledger.test_recorded_home import RECORDED, documents
from tests.ledger.test_recorded_home import home as recorded_home
from tests.report.story import node as joined

STEP = f"start one with: {BY_HAND}"

ITS_OWN = {"pid", "host", "version", "home", "since_s", "cpu_s"}
"""What a daemon says of itself."""

recorded = recorded_home
"""A home of an earlier version: jobs in every state, retired ones, an archive, and a lease of another machine."""


@pytest.fixture
def home(recorded: Path) -> Path:
    """The recorded home, whose daemon gave its lease back."""
    (recorded / "lease.3").unlink()
    (recorded / "access.json").unlink()  # of another folder
    return recorded


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where copies are made; none is left."""
    folder = tmp_path / "copies"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert os.listdir(folder) == []


def files(home: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(home.rglob("*")) if path.is_file()}


def comparable(document: Any) -> Any:
    """Without what a daemon says of itself, of its settings, and of what it measures at the moment."""
    if isinstance(document, dict):
        return {
            key: {k: v for k, v in value.items() if k not in ITS_OWN} if key == "daemon" else comparable(value)
            for key, value in document.items()
        }
    return [comparable(each) for each in document] if isinstance(document, list) else document


def test_answers_are_the_daemons(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "BANDS_S", 1e9)  # on a busy machine fewer jobs have one
    before = files(home)
    with copy_at_rest(home) as copy:
        offline = OfflineApi(home, copy)
        try:
            now = offline.as_of
            known = json.loads(offline.get("/v1/jobs?all=1&fields=id")[1])["jobs"]
            assert len(known) > 20
            paths = ["/v1/jobs", "/v1/jobs?all=1", "/v1/nodes", "/v1/events?limit=10000", "/v1/overview"]
            for number in [row["id"] for row in known][::3]:
                paths += [
                    f"/v1/jobs/{number}",
                    f"/v1/jobs/{number}/why",
                    f"/v1/jobs/{number}/attempts",
                    f"/v1/events?job={number}",
                ]
            found = {path: offline.get(path) for path in paths}
        finally:
            offline.close()
    assert files(home) == before, "nothing of the home was written"
    with SqliteJournal(home / "ledger.sqlite") as journal:
        world = journal.load()
        profiles = Learner(lambda: world).profiles(ProfileNames([read_known(home)]))  # as a daemon makes them
        monkeypatch.setattr(test_recorded_home, "Profiles", lambda by_name: profiles)
        told = documents(journal, now, home)
    for path in paths:
        status, content = found[path]
        assert status == 200, path
        content = content.replace(
            b"no daemon runs: it goes on when one starts", b"waiting for the next scheduling decision"
        )
        now, then = comparable(json.loads(content)), comparable(told[path])
        for key in now:
            assert now[key] == then[key], (path, key)


def test_every_verb_that_reads(home: Path, hpcdl: Run, tmp_path: Path) -> None:
    with SqliteJournal(home / "ledger.sqlite") as journal:
        at = journal.load().at
    before = files(home)
    line = f"hpcdl: as of {moment_text(at)}, no daemon: {STEP}; it takes in 1 submit spooled in {home / 'spool'}\n"
    target = tmp_path / "page.html"
    for argv in (
        ["ls"], ["ls", "--all"], ["ls", "nodes"], ["nodes"], ["show", 4], ["why", 4], ["events"], ["events", "-n", "3"],
        ["report"], ["timeline", "-o", target], ["page", "-o", target], ["top", "--once"], ["notifications"],
        ["config"], ["profile", "ls"], ["pilots", "--all"],
    ):  # fmt: skip
        done = hpcdl(*argv)
        assert (done.code, done.err[: len(line)]) == (0, line), argv
        assert done.out, argv
        done = hpcdl(*argv, "--json")
        assert (done.code, done.value["as_of"]) == (0, at), argv
        assert done.err.count("as of") == 1, argv
    assert f"This is how it was at {moment_text(at)}.</b> No daemon runs: {STEP}" in target.read_text()
    assert files(home) == before, "nothing of the home was written"
    assert len(hpcdl("ls", "--all", "-q").out.split()) > len(hpcdl("ls", "-q").out.split()) > 3
    assert [row["id"] for row in hpcdl("ls", "--all", "--json").value["jobs"]][:1] == [1], "retired ones too"
    done = hpcdl("show", 9999)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("hpcdl: there is no job 9999")
    assert done.err.count("\n") == 1


def test_waiting_for_what_is_over_needs_no_daemon(home: Path, hpcdl: Run) -> None:
    rows = {row["state"]: row for row in hpcdl("ls", "--all", "--json").value["jobs"]}
    done, failed, queued = (rows[state]["id"] for state in ("DONE", "FAILED", "QUEUED"))
    found = hpcdl("wait", done)
    assert (found.code, found.out.split(":")[0], found.err.count("as of")) == (0, f"job {done} DONE", 1)
    assert hpcdl("wait", failed, done).code == (rows["FAILED"]["exit_code"] or 1)
    value = hpcdl("wait", done, "--json").value
    assert (value["done"], [row["id"] for row in value["jobs"]]) == (True, [done])
    for more in ((), ("--timeout", "0"), ("--json",)):
        found = hpcdl("wait", done, queued, *more)
        assert (found.code, found.out) == (1, "")
        assert found.err.endswith(f"hpcdl: job {queued} is QUEUED, and goes on once a daemon runs\n")
    assert hpcdl("wait", 9999).err == "hpcdl: there is no job 9999: hpcdl ls --all lists them\n"


def test_time_stands_still(home: Path, hpcdl: Run) -> None:
    answer = hpcdl("ls", "--json").value
    since = {row["id"]: row["started_at"] for row in answer["jobs"] if row["started_at"] is not None}
    shown = dict(line.split() for line in hpcdl("ls", "--columns", "id,elapsed").out.splitlines()[1:])
    assert since
    for job, started_at in since.items():
        assert shown[str(job)] == short_seconds_text(answer["as_of"] - started_at)


def test_top_without_a_daemon_names_no_process(home: Path, hpcdl: Run) -> None:
    done = hpcdl("top", "--once")
    assert done.out.splitlines()[0].startswith("hpcdl, no daemon  ")
    daemon = hpcdl("top", "--json").value["status"]["daemon"]
    assert [daemon[key] for key in ("pid", "host", "since_s", "cpu_s")] == [None] * 4


def test_pilots_are_those_of_then(home: Path, hpcdl: Run) -> None:
    every = hpcdl("pilots", "--all", "--json").value
    assert every["pilots"], "some were submitted"
    assert every["notes"] == [], "nobody looks for more"
    left = [f"p{row['id']}" for row in every["pilots"] if not row["how"]]
    assert hpcdl("pilots", "-q").out.split() == left
    done = hpcdl("pilots")
    assert "no batch system was found" not in done.err
    assert "nothing idles" not in done.err


def test_config_without_a_daemon_says_what_there_is(home: Path, hpcdl: Run) -> None:
    assert "adaptive, adaptive-fifo, " in hpcdl("config").out


def test_what_changes_something_or_goes_on_needs_a_daemon(home: Path, hpcdl: Run) -> None:
    for argv in (
        ["notifications", "--retry"],
        ["avoid", "n1"],
        ["pilots", "--cancel", 1],
        ["cancel", 4],
        ["suspend", 4],
        ["retry", 4],
        ["events", "-f"],
        ["config", "policy", "fifo"],
    ):
        done = hpcdl(*argv)
        assert (done.code, done.out, done.err.count("\n")) == (1, "", 1), argv
        assert STEP in done.err, argv


def test_a_daemon_that_may_live(home: Path, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another node, in a batch job of which nothing is known, then one that has ended; at last, on this one."""
    (home / "lease.3").write_bytes((RECORDED / "lease.3").read_bytes())
    (home / "lease.3").chmod(0o600)
    done = hpcdl("ls")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    holder = "process 4711 on login1 in batch job 771 since "
    assert f"the daemon of {home}, {holder}" in done.err
    assert "does not answer: it cannot be seen from here whether it is gone: look there with hpcdl daemon" in done.err
    assert f"remove {home / 'lease.3'}" in done.err
    here = SimpleNamespace(batch_job=None, batch_ended=lambda job: job == "slurm:771:1700000000:cluster")
    monkeypatch.setattr("hpcdl.allocation.detect.look_around", lambda batch, now: here)
    assert hpcdl("ls").out
    (home / "lease.3").write_text("not a lease")
    done = hpcdl("why", 4)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "lease.3 is damaged, so who holds it is unknown" in done.err
    (home / "lease.3").unlink()
    lease = Lease.acquire(home, now=1.0)
    done = hpcdl("ls")
    lease.release()
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "does not answer: if it is just starting or stopping, try again in a moment" in done.err


def test_a_daemon_that_starts_meanwhile(home: Path, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it came and went, the copy is made again; where it stays, the copy is not used."""
    made, leases = offline._copied, list[Lease]()

    def copied(of: Path, folder: Path) -> Path:
        leases.append(Lease.acquire(of, now=1.0))
        if len(leases) == 1:
            leases[0].release()
        return made(of, folder)

    monkeypatch.setattr(offline, "_copied", copied)
    done = hpcdl("ls")
    assert len(leases) == 2
    assert leases[1].holds(), "nobody took it away, and nobody waited"
    leases[1].release()
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "does not answer: if it is just starting" in done.err


def test_a_daemon_that_starts_once_the_copy_is_made(home: Path, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it records there then is not missing in the copy."""
    made, leases = SqliteJournal, list[Lease]()

    def opened(path: Path) -> SqliteJournal:
        if not leases:
            leases.append(Lease.acquire(home, now=1.0))
            resumed = open_ledger(
                home, Config(), leases[0].holds, lambda phase: None, accept_loss=False, first_job=1
            )  # fmt: skip
            with resumed.journal as journal:
                journal.append([(journal.load().at + 1, DaemonStarted(leases[0].fence, "1", 1, "h"))])
        return made(path)

    monkeypatch.setattr("hpcdl.daemon.offline.SqliteJournal", opened)
    done = hpcdl("ls", "-q")
    assert leases[0].holds()
    leases[0].release()
    assert done.code == 0, done.err
    assert len(done.out.split()) > 3


def test_a_ledger_that_was_torn_cut_or_lost(home: Path, hpcdl: Run) -> None:
    path = home / "ledger.sqlite"
    whole = path.read_bytes()
    path.write_bytes(whole[:20_000] + bytes(8192) + whole[28_192:])
    done = hpcdl("ls")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert f"{path}: " in done.err
    assert "restore a copy of it" in done.err
    path.unlink()
    mark = read_mark(home)
    assert mark is not None
    last = mark.seq
    done = hpcdl("ls")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert f"the ledger has lost events: ledger.sqlite is not there, and event {last} was recorded here" in done.err
    path.write_bytes(whole)
    path.chmod(0o600)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 999")
    done = hpcdl("ls")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert str(path) in done.err
    assert "newer" in done.err


def test_a_write_ahead_log_that_a_crash_left(tmp_path: Path, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a SIGKILL leaves it, and one of which the last commit is torn: what was committed before is there."""
    home = tmp_path / "crashed"
    home.mkdir(mode=0o700)
    with SqliteJournal(tmp_path / "made" / "ledger.sqlite") as journal:
        sizes = []
        for number in (1, 2):
            journal.append(submissions(1, number))
            sizes.append((tmp_path / "made" / "ledger.sqlite-wal").stat().st_size)
        for name in ("ledger.sqlite", "ledger.sqlite-wal"):
            (home / name).write_bytes((tmp_path / "made" / name).read_bytes())
            (home / name).chmod(0o600)
    monkeypatch.setenv("HPCDL_HOME", str(home))
    assert hpcdl("ls", "-q").out == "1\n2\n"
    with (home / "ledger.sqlite-wal").open("r+b") as log:
        log.truncate(sizes[1] - 100)
    assert hpcdl("ls", "-q").out == "1\n"
    assert (home / "ledger.sqlite-wal").stat().st_size == sizes[1] - 100
    (home / "ledger.sqlite-wal").unlink()
    (home / "ledger.sqlite").write_bytes(b"")
    done = hpcdl("ls")
    assert (done.code, done.out, done.err.count("\n")) == (0, "", 1)
    assert "as of" not in done.err, "nothing was ever recorded"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_leaves_no_copy(home: Path, copies: Path, name: str) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from hpcdl.ledger.offline import copy_at_rest\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "with copy_at_rest(Path(sys.argv[1])) as copy:\n"
        "    print(copy.path.parent.parent, flush=True)\n"
        f"    signal.raise_signal(signal.{name})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, home],
        env=os.environ | {"TMPDIR": str(copies)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == ({"SIGTERM": 143, "SIGHUP": 129}[name], f"{copies}\n", "")
    assert os.listdir(copies) == []


def test_copies_that_killed_processes_left_go_with_the_next_one(home: Path, hpcdl: Run, copies: Path) -> None:
    names = ("hpcdl-ledger-left", "hpcdl-ledger-locked", "hpcdl-ledger-young", "hpcdl-other")
    for name in names:
        (copies / name).mkdir(mode=0o700)
        (copies / name / "ledger.sqlite").write_text("x")
        if name != "hpcdl-ledger-young":
            os.utime(copies / name, (1.0, 1.0))
    (copies / "hpcdl-ledger-link").symlink_to(copies / "hpcdl-other")
    descriptor = os.open(copies / "hpcdl-ledger-locked", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert hpcdl("ls").code == 0
        assert sorted(os.listdir(copies)) == sorted({*names, "hpcdl-ledger-link"} - {"hpcdl-ledger-left"})
    finally:
        os.close(descriptor)
    (copies / "hpcdl-ledger-link").unlink()
    for name in names[1:]:
        (copies / name / "ledger.sqlite").unlink()
        (copies / name).rmdir()


def test_no_room_for_a_copy_names_where_it_is_made(
    home: Path, hpcdl: Run, copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []

    def full(source: IO[bytes], target: IO[bytes], length: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(target.fileno()).st_mode))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("shutil.copyfileobj", full)
    done = hpcdl("ls")
    assert (done.code, done.out, done.err.count("\n"), modes) == (1, "", 1, [0o600])
    assert done.err.startswith(f"hpcdl: {copies}: No space left on device for a copy of {home / 'ledger.sqlite'} (")


def test_what_was_true_of_a_daemon_that_stopped_is_not_said(
    tmp_path: Path, hpcdl: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "stopped"
    home.mkdir(mode=0o700)
    with SqliteJournal(home / "ledger.sqlite") as journal:
        journal.append([(1.0, DaemonStarted(1, "1", 1, "h")), (2.0, joined("n1", 1))])
        journal.append([(3.0, each) for _, each in submissions(1, 1)])
        journal.append([(4.0, DaemonStopping(now=False)), (5.0, NodeSilent("n1"))])
    (home / "ledger.sqlite").chmod(0o600)
    monkeypatch.setenv("HPCDL_HOME", str(home))
    goes_on = "no daemon runs: it goes on when one starts"
    assert goes_on in hpcdl("ls").out
    assert hpcdl("why", 1, "--json").value["reason"] == goes_on
    done = hpcdl("nodes")
    assert (done.code, done.err.count("\n")) == (0, 1), done.err
    assert "go on" not in done.err
    (gpu,) = hpcdl("ls", "gpus").out.splitlines()[1:]
    assert " away " in gpu
    assert " ok " not in gpu
    target = tmp_path / "page.html"
    assert hpcdl("page", "-o", target).code == 0
    text = target.read_text()
    assert "This is how it was" in text
    assert ">stopping<" not in text, "it has stopped"
