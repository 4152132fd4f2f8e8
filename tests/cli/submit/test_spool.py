"""`hpcdl submit` without a daemon: where it keeps the job, what it says, and where it does not."""

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcdl.client import Client
from hpcdl.wire.access import read_access, write_access
from hpcdl.wire.spool import LIMIT
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon
from tests.support.activation import activate


def spooled(home: Path) -> list[dict[str, Any]]:
    """Every request in the spool, the oldest first."""
    paths = sorted((home / "spool").glob("*"), key=lambda path: path.stat().st_mtime_ns)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in paths)
    return [json.loads(path.read_bytes()) for path in paths]


def test_without_a_daemon_a_submit_is_kept_for_the_next_one(
    home: Path, hpcdl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    activate(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    done = hpcdl("submit", "--gpus", "1:3", "--request-id", "r1", "--", "python", "train.py", "--lr", 3)
    path = home / "spool" / "r1.json"
    assert (done.code, done.out) == (0, "")
    assert done.err == (
        f"hpcdl: no daemon is running for {home}: 1 job spooled as {path}, which the next daemon of {home} takes in "
        "(hpcdl daemon start)\n"
    )
    assert [stat.S_IMODE(each.stat().st_mode) for each in (home, home / "spool")] == [0o700, 0o700]
    (body,) = spooled(home)
    (spec,) = body.pop("jobs")
    assert body == {"version": 1, "request_id": "r1"}
    assert (spec["command"], spec["gpus_min"], spec["gpus_max"]) == (["python", "train.py", "--lr", "3"], 1, 3)


def test_it_is_what_the_daemon_would_have_got(fake: FakeDaemon, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA", os.fsdecode(b"caf\xe9"))
    words = ("submit", "--request-id", "r", "--deadline", "2030-01-02T03:04:05+00:00", "--", os.fsdecode(b"x\xff"))
    assert hpcdl(*words).code == 0
    fake.kill()
    done = hpcdl(*words)  # its access file is still there
    assert done.code == 0
    assert "nothing listens on 127.0.0.1" in done.err
    (body,) = spooled(fake.home)
    assert body.pop("version") == 1
    assert body == fake.requests[0][2]


def test_its_other_outputs(home: Path, hpcdl: Run) -> None:
    value = hpcdl("submit", "--json", "--request-id", "r", "true").value
    path = str(home / "spool" / "r.json")
    assert value == {"schema": 1, "jobs": [], "spooled": {"request_id": "r", "path": path, "jobs": 1}}
    done = hpcdl("submit", "--quiet", "true")
    assert (done.code, done.out) == (0, "")
    assert "1 job spooled as " in done.err
    assert len(spooled(home)) == 2


def test_the_same_request_id_is_the_same_job(home: Path, hpcdl: Run) -> None:
    for name in ("first", "second"):
        assert hpcdl("submit", "--request-id", "r", "--name", name, "true").code == 0
    assert [body["jobs"][0]["name"] for body in spooled(home)] == ["first"]


def test_a_daemon_that_dies_over_a_submit(fake: FakeDaemon, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcdl.cli.job_row.Client", _impatient)
    fake.dies_at = "/v1/jobs"  # it has recorded the job, and nobody knows
    done = hpcdl("submit", "--request-id", "r", "true")
    assert done.code == 0
    assert [body["request_id"] for body in spooled(fake.home)] == list(fake.world.request_ids) == ["r"]


def _impatient(home: Path, *, patience_s: float, note: Any) -> Any:
    return Client(home, patience_s=0.2, note=note)


def test_a_daemon_that_stops_leaves_it_to_the_next(fake: FakeDaemon, hpcdl: Run) -> None:
    stopping = {"schema": 1, "error": "the daemon is stopping: submit again later", "code": "stopping"}
    fake.answers["/v1/jobs"] = (409, json.dumps(stopping).encode())
    done = hpcdl("submit", "--request-id", "r", "true")
    assert done.code == 0
    assert "hpcdl: the daemon is stopping: 1 job spooled as " in done.err
    assert [body["request_id"] for body in spooled(fake.home)] == ["r"]
    assert hpcdl("submit", "--no-spool", "true").code == 1


def test_a_daemon_that_refuses_is_an_error(fake: FakeDaemon, hpcdl: Run) -> None:
    refused = {"schema": 1, "error": "there is no profile 'x'", "code": "unknown-profile"}
    fake.answers["/v1/jobs"] = (409, json.dumps(refused).encode())
    done = hpcdl("submit", "true")
    assert (done.code, done.out, done.err) == (1, "", "hpcdl: there is no profile 'x'\n")
    write_access(fake.home, replace(read_access(fake.home), token="another-token-" * 3))
    fake.answers.clear()
    done = hpcdl("submit", "true")
    assert (done.code, done.err) == (1, "hpcdl: the token is not this daemon's\n")
    (fake.home / "access.json").chmod(0o644)
    assert hpcdl("submit", "true").code == 1
    assert not (fake.home / "spool").exists()


def test_no_spool_insists_on_a_daemon(home: Path, hpcdl: Run, tmp_path: Path) -> None:
    done = hpcdl("submit", "--no-spool", "true")
    assert (done.code, done.out) == (1, "")
    assert done.err == f"hpcdl: no daemon is running for {home}: start one with: hpcdl daemon start\n"
    script = tmp_path / "x.sh"
    script.write_text("#!/bin/sh\n#SBATCH --gpus=1\n")
    assert hpcdl("submit", "--no-spool", script).code == 1
    assert not home.exists()


@pytest.mark.parametrize("where", ["home", "spool"])
def test_a_folder_that_is_not_ours_alone_is_refused(home: Path, hpcdl: Run, tmp_path: Path, where: str) -> None:
    folder = home if where == "home" else home / "spool"
    home.mkdir(mode=0o700)
    folder.mkdir(exist_ok=True)
    folder.chmod(0o770)
    done = hpcdl("submit", "true")
    assert (done.code, done.out) == (1, "")
    assert done.err == f"hpcdl: {folder} is open to others (mode 0770): run chmod 700 {folder}\n"
    assert list((home / "spool").glob("*")) == []
    if where == "spool":
        folder.rmdir()
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
        assert "is a symbolic link" in hpcdl("submit", "true").err
        assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_planted_request_is_not_written_through(home: Path, hpcdl: Run, tmp_path: Path) -> None:
    (home / "spool").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    target = tmp_path / "target"
    (home / "spool" / "r.json").symlink_to(target)
    done = hpcdl("submit", "--request-id", "r", "true")
    assert done.code == 1
    assert "r.json is not a file: move it away" in done.err
    assert not target.exists()


def test_too_large_a_submit_says_so(home: Path, hpcdl: Run) -> None:
    done = hpcdl("submit", "--env", "A=" + "x" * 100_000, "true", *["y" * 100_000] * (LIMIT // 100_000))
    assert done.code == 1
    assert done.err.startswith("hpcdl: a submit of 8.")
    assert done.err.endswith(" MiB is over 8 MiB: submit fewer jobs at once\n")
    assert not home.exists()


def test_a_home_that_cannot_be_made(hpcdl: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = hpcdl("--home", tmp_path / "file" / "home", "submit", "true")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert str(tmp_path / "file") in done.err
