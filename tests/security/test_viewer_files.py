"""Viewer files as a hostile user would leave them for root, and what a reader makes of them."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hpcdl.wire import viewer_file as files
from hpcdl.wire.viewer_file import ViewerFile
from tests.security.stranger import UID, as_uid, attempt

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def viewer(**changes: Any) -> ViewerFile:
    values: dict[str, Any] = {
        "instance": "d1a2b3c4d5e6", "address": "127.0.0.1", "port": 40123, "certificate": PEM, "token": "t" * 64,
        "pid": os.getpid(), "uid": os.geteuid(), "home": "/home/ada/.hpcdl", "node": os.uname().nodename,
    }  # fmt: skip
    return ViewerFile(**values | changes)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    return folder


def found(shared: Path) -> list[tuple[ViewerFile | None, str]]:
    return [(each.viewer, each.problem) for uid in files.users(shared) for each in files.of_user(shared, uid)]


def test_what_is_published_is_found_and_taken_away(shared: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    files.keep(home, viewer())
    files.publish(shared, viewer(), None)
    assert found(shared) == [(viewer(), "")]
    assert [each.viewer for each in files.in_home(home)] == [viewer()]
    path = files.folder_of(shared, os.geteuid()) / "d1a2b3c4d5e6.json"
    assert (path.stat().st_mode & 0o7777, (home / "viewer.json").stat().st_mode & 0o7777) == (0o600, 0o600)
    assert path.parent.stat().st_mode & 0o7777 == 0o755
    files.withdraw(home, shared, viewer())
    assert (found(shared), list(files.in_home(home)), os.listdir(shared)) == ([], [], [])


def test_another_daemons_file_is_left_alone(shared: Path, tmp_path: Path) -> None:
    files.keep(tmp_path, viewer(token="n" * 64))
    files.publish(shared, viewer(token="n" * 64), None)
    files.withdraw(tmp_path, shared, viewer())  # an older daemon of this home, which was replaced
    assert found(shared) == [(viewer(token="n" * 64), "")]
    assert (tmp_path / "viewer.json").exists()


def test_the_token_is_not_in_its_repr() -> None:
    assert "tttt" not in repr(viewer())


def test_stale_files_of_ours_go_with_the_next_publication(shared: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    files.publish(shared, viewer(instance="dead", pid=child), None)
    assert files.gone(viewer(pid=child))
    files.publish(shared, viewer(), None)
    assert [each for each, _ in found(shared)] == [viewer()]
    assert not files.gone(viewer(pid=child, node="elsewhere")), "a pid of another machine means nothing here"


def test_only_the_group_may(reachable: Path, as_root: None) -> None:
    reachable.chmod(0o1777)
    files.publish(reachable, viewer(), 7007)
    path = files.folder_of(reachable, 0) / "d1a2b3c4d5e6.json"
    assert (path.stat().st_gid, path.stat().st_mode & 0o7777) == (7007, 0o640)

    def seen() -> list[str]:
        return [each.viewer.home for each in files.of_user(reachable, 0) if each.viewer is not None]

    assert as_uid(UID, seen, groups=(7007,)) == ["/home/ada/.hpcdl"]
    assert as_uid(UID, seen) == []
    assert as_uid(UID, lambda: attempt(path.unlink), groups=(7007,)) == "PermissionError"
    assert as_uid(UID, lambda: attempt(lambda: path.open("r+")), groups=(7007,)) == "PermissionError"


def leave(shared: Path, content: bytes, mode: int = 0o600) -> Path:
    folder = files.folder_of(shared, os.geteuid())
    folder.mkdir(mode=0o755, exist_ok=True)
    path = folder / "d1a2b3c4d5e6.json"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def body(**changes: Any) -> bytes:
    return json.dumps(asdict(viewer()) | changes).encode()


def symlink(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def hard_link(path: Path) -> None:
    os.link(path, path.with_name("another"))


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("trick", [symlink, fifo, hard_link, device], ids=lambda trick: trick.__name__)
def test_what_is_no_plain_file_is_a_problem(shared: Path, trick: Callable[[Path], None]) -> None:
    trick(leave(shared, body()))
    assert [(each, "is not used" in problem) for each, problem in found(shared)] == [(None, True)]


@pytest.mark.parametrize(
    "content, why",
    [
        (b"", "not JSON"),
        (b"[" * 60_000, "not JSON"),
        (b"[]", "no JSON object"),
        (b"x" * (64 * 1024 + 1), "over 65536 bytes"),
        (b'{"version":1}', "lacks a field"),
        (body(version=2), "has version 2, this hpcdl reads 1"),
        (body(version="9" * 500), "has version"),
        (body(uid=os.geteuid() + 1), "it says that it is of uid"),
        (body(address="evil.example.org"), "a number, not a name"),
        (body(address="0.0.0.0"), "nobody's"),
        (body(address="224.0.0.1"), "nobody's"),
        (body(port=22), "from 1024 to 65535"),
        (body(port=True), "from 1024 to 65535"),
        (body(pid=-1), "from 1 to"),
        (body(pid=2**31), "from 1 to"),
        (body(token="t t" * 20), "token is not one of hpcdl's"),
        (body(token="t" * 40 + "\r\nX: y"), "token is not one of hpcdl's"),
        (body(instance="../../etc"), "instance is not one of hpcdl's"),
        (body(home=["a"]), "home must be a text"),
        (body(certificate="x"), "PEM"),
    ],
)  # fmt: skip
def test_hostile_content_is_a_line(shared: Path, content: bytes, why: str) -> None:
    leave(shared, content)
    ((none, problem),) = found(shared)
    assert none is None
    assert why in problem
    assert len(problem) < 600


@pytest.mark.parametrize("mode", [0o602, 0o620, 0o622, 0o611])
def test_a_file_that_others_can_write_is_not_used(shared: Path, mode: int) -> None:
    leave(shared, body(), mode)
    assert "others can write it" in found(shared)[0][1]


def test_a_folder_that_others_can_write_is_not_used(shared: Path) -> None:
    leave(shared, body()).parent.chmod(0o777)
    assert "can be written by others" in found(shared)[0][1]


def test_a_linked_folder_is_not_used(shared: Path) -> None:
    leave(shared, body())
    files.folder_of(shared, os.geteuid()).rename(shared / "elsewhere")
    files.folder_of(shared, os.geteuid()).symlink_to("elsewhere")
    assert "a link, or no folder" in found(shared)[0][1]


def test_nobody_speaks_for_another(shared: Path, as_root: None) -> None:
    path = leave(shared, body())
    os.chown(path.parent, UID, UID)  # the folder of root, as it is named, is another's
    assert f"belongs to uid {UID}, not to uid 0" in found(shared)[0][1]
    path.parent.rename(files.folder_of(shared, UID))
    ((none, problem),) = found(shared)  # and one's own folder holds a file of root's
    assert (none, "somebody else's" in problem) == (None, True)


def test_a_name_that_was_taken_is_told_and_no_reason_not_to_run(shared: Path, as_root: None) -> None:
    files.folder_of(shared, 0).mkdir()
    os.chown(files.folder_of(shared, 0), UID, UID)
    with pytest.raises(PermissionError, match=f"it belongs to uid {UID}, who took the name"):
        files.publish(shared, viewer(), None)
    assert os.listdir(files.folder_of(shared, 0)) == []


def test_a_link_in_the_place_of_the_folder_is_not_followed(shared: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    files.folder_of(shared, os.geteuid()).symlink_to(target)
    with pytest.raises(files.NotViewable):
        files.publish(shared, viewer(), None)
    assert os.listdir(target) == []


def test_there_may_be_many(shared: Path) -> None:
    folder = leave(shared, body()).parent
    for number in range(200):
        (folder / f"x{number}.json").write_bytes(b"{}")
    (folder / "not-a-viewer-file").write_bytes(b"")
    (shared / "hpcdl-viewers-x").mkdir()
    (shared / "hpcdl-viewers-007").mkdir()
    assert len(found(shared)) == files.FILES_LIMIT
    assert files.users(shared) == [os.geteuid()]
    assert files.users(shared / "nowhere") == []
