"""`hpcdl doctor --security` finds what is wrong; test_stranger.py has it find nothing where nothing is."""

import os
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from hpcdl.cli.doctor import security
from hpcdl.cli.doctor.machine import CheckState
from hpcdl.cli.doctor.security import CheckContext
from hpcdl.wire.access import read_access
from hpcdl.wire.tls import server_context
from tests.cli.conftest import Run
from tests.cli.conftest import hpcdl as hpcdl
from tests.cli.fake import FakeDaemon
from tests.security.stranger import UID
from tests.security.test_looking import Hostile


@pytest.fixture
def home(fake: FakeDaemon) -> Path:
    return fake.home


def states(hpcdl: Run, code: int) -> dict[str, str]:
    outcome = hpcdl("doctor", "--security", "--json")
    assert outcome.code == code, outcome.out
    assert outcome.value["ok"] == (code == 0)
    return {check["name"]: check["state"] for check in outcome.value["checks"]}


def test_no_home_and_no_daemon_are_fine(hpcdl: Run, fake: FakeDaemon) -> None:
    fake.kill()
    found = states(hpcdl, 0)
    assert (found["home"], found["access"]) == ("OK", "WARN")
    for path in sorted(fake.home.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    fake.home.rmdir()
    found = states(hpcdl, 0)
    assert (found["home"], found["access"]) == ("OK", "OK")
    assert not fake.home.exists()


def test_an_open_home_fails(hpcdl: Run, home: Path) -> None:
    home.chmod(0o755)
    assert states(hpcdl, 1)["home"] == "FAIL"
    assert hpcdl("doctor", "--security", "--quiet").out.splitlines()[0] == "home"


def opened(home: Path) -> None:
    (home / "tls" / "key.pem").chmod(0o666)


def linked(home: Path) -> None:
    (home / "daemon.log").symlink_to("/etc/hostname")


def doubled(home: Path) -> None:
    os.link(home / "access.json", home.parent / "another")


def given_away(home: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a file away")
    (home / "x").touch(0o600)
    os.chown(home / "x", UID, UID)


@pytest.mark.parametrize("change", [opened, linked, doubled, given_away], ids=lambda change: change.__name__)
def test_files_that_others_may_change_fail(hpcdl: Run, home: Path, change: Callable[[Path], None]) -> None:
    change(home)
    assert states(hpcdl, 1)["files"] == "FAIL"


def test_files_that_only_the_folder_closes_are_told(home: Path) -> None:
    (home / "notes").touch(0o644)
    (home / "notes").chmod(0o644)
    assert security.files_below(home).state is CheckState.WARN


def test_a_listener_that_lets_strangers_in_fails(fake: FakeDaemon) -> None:
    access = read_access(fake.home)
    assert (security._plain(access), security._without_token(access)) == ("", "")
    context = server_context(fake.home / "tls" / "certificate.pem", fake.home / "tls" / "key.pem")
    for tls in (None, context):
        open_ = Hostile(lambda peer: peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n"), tls)
        try:
            here = replace(access, port=open_.port)
            assert security._plain(here) == ("it answers without TLS" if tls is None else "")
            assert "/v1/status" in security._without_token(here)
            (check,) = security.listeners(CheckContext(fake.home, here, {}, {}))
            assert check.state is CheckState.FAIL
        finally:
            open_.close()


@pytest.mark.parametrize(
    "mode, state",
    [
        (0o700, CheckState.OK),
        (0o750, CheckState.OK),
        (0o755, CheckState.WARN),
        (0o770, CheckState.WARN),
        (0o777, CheckState.FAIL),
    ],
)
def test_checkpoint_folders(tmp_path: Path, mode: int, state: CheckState) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    folder.chmod(mode)
    around = CheckContext(tmp_path, None, {}, {1: str(folder), 2: str(tmp_path / "none")})
    assert security.checkpoints(around).state is state


def test_secrets_in_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {1: "python train.py --lr 0.1 --token-dim 64", 2: "python x --password=hunter2", 3: "x --api-key abcdef"}
    monkeypatch.setattr(security, "_arguments_of", lambda pid: lines[pid])
    found = {pid: security.arguments(CheckContext(tmp_path, None, {pid: "a trainer"}, {})).state for pid in lines}
    assert found == {1: CheckState.OK, 2: CheckState.WARN, 3: CheckState.WARN}


def test_ports_of_trainers(tmp_path: Path) -> None:
    import socket

    around = CheckContext(tmp_path, None, {os.getpid(): "a trainer"}, {})
    with socket.create_server(("127.0.0.1", 0)) as inside:
        assert ("127.0.0.1", inside.getsockname()[1]) in list(security.listening(os.getpid()))
        assert security.ports(around).state is CheckState.OK
    with socket.create_server(("0.0.0.0", 0)):
        assert security.ports(around).state is CheckState.WARN


def test_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    for options, hidden in (
        ("rw", False),
        ("rw,hidepid=2", True),
        ("rw,hidepid=invisible", True),
        ("rw,hidepid=0", False),
    ):
        mounts.write_text(f"22 1 0:20 / /proc rw,relatime shared:5 - proc proc {options}\n")
        assert security._hidepid(mounts) is hidden
    monkeypatch.setattr(resource, "prlimit", lambda pid, which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert security.core_dumps(None).state is CheckState.WARN
    monkeypatch.setattr(resource, "prlimit", lambda pid, which: (0, 0))
    assert security.core_dumps(None).state is CheckState.OK
    monkeypatch.undo()
    assert security.core_dumps(os.getpid()) == security.core_dumps(None), "our own, by our pid"
    for error, state in ((PermissionError(1, "no"), CheckState.WARN), (ProcessLookupError(3, "no"), CheckState.OK)):
        monkeypatch.setattr(resource, "prlimit", Mock(side_effect=error))
        assert security.core_dumps(os.getpid()).state is state


def test_usage(hpcdl: Run, home: Path) -> None:
    assert hpcdl("doctor", "--security", "--site").code == 2
    outcome = hpcdl("doctor", "--security")
    assert "Traceback" not in outcome.err
    assert "OK    home" in outcome.out
