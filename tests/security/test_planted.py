"""What others put into the folders that a user works in: modules that Python would find, files where ours would be."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcdl.agent import folder as agents_folder
from hpcdl.agent.supervisor import claim as agents_claim
from hpcdl.config.layers import ConfigError, read_layer
from hpcdl.trainer import checkpoints
from hpcdl.trainer import checkpoints as trainers_claim
from hpcdl.wire.private_files import NotPrivate, check_way
from tests.security.stranger import OTHER_UID, ROOT, UID, as_uid

PLANTED = ("argparse", "asyncio", "json", "logging", "signal", "socket", "tempfile")


@pytest.fixture
def bait(tmp_path: Path) -> Path:
    """A folder with modules in it that have the names of Python's, and of hpcdl: to import one is told by `planted`."""
    folder = tmp_path / "bait"
    (folder / "hpcdl").mkdir(parents=True)
    for name in (*(f"{name}.py" for name in PLANTED), "hpcdl/__init__.py"):
        (folder / name).write_text(f"open({str(tmp_path / 'planted')!r}, 'a').write(__name__)\nraise SystemExit(1)\n")
    return folder


@pytest.mark.parametrize(
    "words,said",
    [
        (("daemon", "start", "--foreground"), "profiles: expected"),
        (("daemon", "start"), "profiles: expected"),
        (("agent",), "no daemon has been started"),
    ],
    ids=["in the foreground", "in the background", "agent"],
)
def test_nothing_is_imported_from_the_folder_that_a_command_is_called_in(
    bait: Path, tmp_path: Path, words: Sequence[str], said: str
) -> None:
    """The home is of no use, so that what is started ends soon: after its imports."""
    home = tmp_path / "home"
    (home / "profiles").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    (home / "profiles" / "wrong.yaml").write_text("profiles: 1\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HPCDL_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "hpcdl", *words],
        cwd=bait,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not (tmp_path / "planted").exists()
    assert (done.returncode, said in done.stdout + done.stderr) == (1, True), done


def test_a_daemon_does_not_start_where_anybody_could_replace_its_home(tmp_path: Path) -> None:
    """Its log, its ledger and all else would then go through links to wherever they like."""
    parent = tmp_path / "open"
    parent.mkdir()
    parent.chmod(0o777)
    home = parent / "mine" / "home"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    start = [sys.executable, "-P", "-m", "hpcdl", "--home", str(home), "daemon", "start"]
    done = subprocess.run(start, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert f"for {parent} has mode 0777: run chmod o-w {parent}, or name another folder with --home" in done.stderr
    assert not (home / "access.json").exists()
    parent.chmod(0o1777)
    check_way(home)
    parent.chmod(0o775)
    check_way(home)


# --- folders of checkpoints in which others may write -----------------------------------------------------------------


def put(directory: Path, step: int, incarnation: int) -> Path:
    with checkpoints.write(directory, step, incarnation) as temporary:
        (temporary / "weights").write_text("x" * step)
    return checkpoints.at(directory, step, incarnation).path


@pytest.fixture
def common(reachable: Path, as_root: None) -> Path:
    """A folder like /tmp."""
    path = reachable / "common"
    path.mkdir()
    path.chmod(0o1777)
    return path


def test_a_checkpoint_that_another_user_put_there_is_not_loaded(common: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It may hold a pickle, and then runs as whoever loads it."""
    planted = as_uid(OTHER_UID, lambda: str(put(common, 999, 9)))
    as_uid(OTHER_UID, lambda: os.symlink(planted, common / "step-000000001000.i9"))

    def resume_and_save() -> list[str]:
        before = [each.path.name for each in checkpoints.complete(common)]
        put(common, 5, 1)
        put(common, 6, 1)
        put(common, 7, 1)  # and the first of ours goes
        return before + sorted(each.path.name for each in checkpoints.complete(common))

    assert as_uid(UID, resume_and_save) == ["step-000000000006.i1", "step-000000000007.i1"]
    assert Path(planted, "COMPLETE").exists(), "what is not ours is left alone"
    os.symlink(common / "step-000000000007.i1", common / "step-000000000008.i1")
    assert as_uid(UID, lambda: len(checkpoints.complete(common))) == 2, (
        "a link of root's is root's, but names another step"
    )


def test_a_save_does_not_take_anothers_checkpoint_for_its_own(common: Path) -> None:
    as_uid(OTHER_UID, lambda: str(put(common, 5, 1)))

    def save() -> str:
        try:
            return str(put(common, 5, 1))
        except OSError as error:
            return type(error).__name__

    assert as_uid(UID, save) == "PermissionError"


def test_where_all_belongs_to_one_uid_it_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on file systems that know no owners, or map them."""
    put(tmp_path, 3, 1)
    uid = tmp_path.stat().st_uid + 1

    def mapped(info: os.stat_result) -> os.stat_result:
        return os.stat_result((*info[:4], uid, *info[5:]))

    for name in ("stat", "lstat", "fstat"):
        function = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, _f=function, **k: mapped(_f(*a, **k)))
    assert [each.step for each in checkpoints.complete(tmp_path)] == [3]
    monkeypatch.setattr(checkpoints, "_maker", lambda directory: uid + 1)
    assert checkpoints.complete(tmp_path) == []


@pytest.mark.parametrize("name", ["claim.json", "COMPLETE"])
def test_a_fifo_keeps_no_trainer_waiting(tmp_path: Path, name: str) -> None:
    path = put(tmp_path, 3, 1)
    target = path / name if name == "COMPLETE" else tmp_path / name
    target.unlink(missing_ok=True)
    os.mkfifo(target)
    if name == "COMPLETE":
        assert checkpoints.complete(tmp_path) == []
    else:
        with pytest.raises(OSError, match="not a file"):
            checkpoints.check_claim(tmp_path, 1)


def test_a_claim_is_written_into_no_file_that_was_put_there(tmp_path: Path) -> None:
    """Not even where it would have had that name: a FIFO there had held it up for ever."""
    for pid in (os.getpid(), os.getppid()):
        os.mkfifo(tmp_path / f".tmp-claim.json-{os.uname().nodename}-{pid}")
    agents_claim.write_claim(str(tmp_path), 7, 2, "i:7:2:n1")
    trainers_claim.claim(tmp_path, 7, 2, 1, "i:7:2:n1")
    assert '"membership": 1' in (tmp_path / "claim.json").read_text()
    assert not list(tmp_path.glob("*claim.json-*-*-*"))


# --- the agent's folder on nodes whose home is on a network -----------------------------------------------------------


def test_the_name_of_an_agents_folder_that_another_user_took_is_refused(
    reachable: Path, as_root: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns the folder round ours could put another in its place, and have the log written through links."""
    base = reachable / "tmp"
    base.mkdir()
    base.chmod(0o1777)
    monkeypatch.setattr(agents_folder, "is_local", lambda home: False)
    monkeypatch.setenv("TMPDIR", str(base))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)

    def taken() -> None:
        (base / f"hpcdl-{UID}").mkdir()
        (base / f"hpcdl-{UID}").chmod(0o777)

    def ask() -> str:
        try:
            return str(agents_folder.run_folder(reachable, "n1", "i"))
        except NotPrivate as error:
            return str(error)

    as_uid(OTHER_UID, taken)
    said = as_uid(UID, ask)
    assert said.startswith(f"{base}/hpcdl-{UID} belongs to uid {OTHER_UID}, not to you")
    assert said.endswith("name another place with XDG_RUNTIME_DIR")
    (base / f"hpcdl-{UID}").rmdir()
    assert as_uid(UID, ask).startswith(f"{base}/hpcdl-{UID}/")


# --- job scripts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script,variable", [("hpcdl.slurm", "SLURM_SUBMIT_DIR"), ("hpcdl.lsf", "LS_SUBCWD")])
def test_a_job_script_runs_no_hpcdl_that_another_user_put_there(
    reachable: Path, as_root: None, script: str, variable: str
) -> None:
    folder = reachable / "work"
    program = reachable / ".venv" / "bin" / "hpcdl"
    folder.mkdir()
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho it ran $1 > {reachable}/ran-$(id -u)\n")
    program.chmod(0o755)
    reachable.chmod(0o777)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), variable: str(folder)}

    def ran(owner: int) -> tuple[int, bool]:
        os.chown(program, owner, owner)
        command = ["bash", "-s"]
        text = (ROOT / "jobscripts" / script).read_text()
        done = subprocess.run(command, input=text, env=environment, cwd="/", text=True, timeout=60, user=UID, group=UID)
        told = reachable / f"ran-{UID}"
        found = told.exists()
        told.unlink(missing_ok=True)
        return done.returncode, found

    assert ran(OTHER_UID) == (1, False)
    assert ran(UID) == ran(0) == (0, True)
    real = program.rename(program.with_name("real"))
    os.symlink(real, program)
    assert ran(OTHER_UID) == (1, False)


def test_a_folder_in_the_place_of_a_projects_file_is_told_by_name(tmp_path: Path) -> None:
    (tmp_path / "hpcdl.yaml").mkdir()
    with pytest.raises(ConfigError, match=r"hpcdl\.yaml is not a file: move it away"):
        read_layer(tmp_path / "hpcdl.yaml", {}, {}, trusted=False)
