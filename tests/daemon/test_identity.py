"""What an instance keeps across restarts."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from hpcdl.daemon import identity
from hpcdl.daemon.identity import (
    Original,
    begin_apart,
    forget_agents,
    keep_place,
    load_identity,
    node_name,
    original_of,
)
from hpcdl.wire.access import AccessFile, write_access


def test_the_identity_is_made_once(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    first = load_identity(home, 1e9)
    assert load_identity(home, 2e9) == first
    assert first.token not in repr(first)
    assert (home / "tls" / "token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["token", "instance"])
@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"ab\n: cd", b"../../" * 20, b"ab"])
def test_what_is_damaged_is_refused_by_name_and_made_anew(tmp_path: Path, name: str, damage: bytes) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    first = load_identity(home, 1e9)
    path = home / "tls" / name
    path.write_bytes(damage)
    with pytest.raises(OSError, match=rf"it is damaged \(remove it, .*tls/{name}"):
        load_identity(home, 1e9)
    path.unlink()
    assert load_identity(home, 1e9) != first


def test_a_node_keeps_the_name_that_it_was_given(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    assert node_name(home, None, "host") == "host"
    assert node_name(home, "n1", "host") == "n1"
    assert node_name(home, None, "host") == "n1"


def test_another_hosts_name_is_not_taken(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    path = home / "node.json"
    path.write_text(json.dumps({"host": "elsewhere", "node": "n9"}))
    path.chmod(0o600)
    assert node_name(home, None, "host") == "host"


def test_a_folder_by_two_paths_is_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FUSE and re-exports show one folder with two inodes: to begin apart would forget what runs there."""
    home, link = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir(mode=0o700)
    first = load_identity(home, 1e9)
    write_access(home, AccessFile(first.instance, "127.0.0.1", 1, first.certificate, first.token, 1, 1))
    link.symlink_to(home)
    there, before = Path.stat, sorted(os.listdir(home / "tls"))

    def stat(path: Path, **how: Any) -> os.stat_result:
        found = there(path, **how)
        return os.stat_result((found[0], found[1] + 1, *found[2:10])) if path == link else found

    monkeypatch.setattr(Path, "stat", stat)
    assert original_of(link) is None
    assert sorted(os.listdir(home / "tls")) == before


def started(home: Path) -> Path:
    """As a daemon's start leaves it."""
    home.mkdir(mode=0o700)
    load_identity(home, 1e9)
    keep_place(home)
    return home


def test_a_home_that_was_moved_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = started(tmp_path / "home")
    assert original_of(home) is None
    monkeypatch.setattr(identity, "_machine", lambda: ("login9", "another"))  # a node of the next allocation
    assert original_of(home) is None
    moved = home.rename(tmp_path / "moved")
    assert original_of(moved) is None
    keep_place(moved)
    assert original_of(moved.rename(home)) is None


def test_a_copy_is_known_whether_its_original_is_there_or_not(tmp_path: Path) -> None:
    home, copy = started(tmp_path / "home"), tmp_path / "copy"
    shutil.copytree(home, copy)
    home.rename(tmp_path / "moved")
    assert original_of(copy) == Original(home)
    shutil.rmtree(tmp_path / "moved")
    assert original_of(copy) == Original(home)
    keep_place(copy)
    assert original_of(copy) is None


def test_another_inode_with_the_same_time_is_another_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = started(tmp_path / "home")
    (home / "tls" / "instance").chmod(0o400)  # its time is another, and its inode the same
    assert original_of(home) is None
    keep_place(home)
    inodes, changed = identity._marks(home)
    others, later = [each + 1 for each in inodes], [each + 1 for each in changed]
    for seen in ((others, changed), (others, [*later[:2], *changed[2:]])):
        monkeypatch.setattr(identity, "_marks", lambda home, seen=seen: seen)
        assert original_of(home) is None
    monkeypatch.setattr(identity, "_born", lambda home: [1, 2, 3])
    for seen in ((others, later), (inodes, later)):  # the system may give the same inodes again
        monkeypatch.setattr(identity, "_marks", lambda home, seen=seen: seen)
        assert original_of(home) == Original(home, in_place=True)


def test_one_that_is_killed_as_it_begins_apart_has_nothing_of_the_originals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, copy = started(tmp_path / "home"), tmp_path / "copy"
    shutil.copytree(home, copy)

    def killed(folder: Path) -> None:
        (folder / "place.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(shutil, "rmtree", killed)
        begin_apart(copy)
    ours, its = load_identity(home, 1e9), load_identity(copy, 1e9)
    assert (ours.instance == its.instance, ours.token == its.token) == (False, False)


@pytest.mark.parametrize("born", [[], [1, 2, 3]])
def test_a_chmod_of_all_puts_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, born: list[int]) -> None:
    """`hpcdl doctor` says to run one, and purges of file systems have people touch all."""
    monkeypatch.setattr(identity, "_born", lambda home: born)
    home = started(tmp_path / "home")
    for each in (home, *home.rglob("*")):
        each.chmod(each.stat().st_mode)
    assert original_of(home) == (None if born else Original(home, in_place=True)), "nobody knows without these times"
    assert original_of(home.rename(tmp_path / "moved")) is None


def test_what_is_put_back_at_its_path_is_known_by_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, kept = started(tmp_path / "home"), tmp_path / "kept"
    shutil.copytree(home, kept)
    shutil.rmtree(home)
    shutil.copytree(kept, home)
    assert original_of(home) == Original(home, in_place=True)
    host = json.loads((home / "tls" / "place.json").read_text())["host"]
    for machine in (("login9", ""), (host, "another cluster's of that name")):
        monkeypatch.setattr(identity, "_machine", lambda machine=machine: machine)
        assert original_of(home) == Original(home, host)
        assert str(original_of(home)) == f"{home} on {host}"


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b"{}", b"[" * 60_000, b'{"inode": 1, "changed": 2, "home": 3, "host": 4}']
)
def test_a_damaged_note_of_the_place_makes_no_copy(tmp_path: Path, damage: bytes) -> None:
    home = started(tmp_path / "home")
    (home / "tls" / "place.json").write_bytes(damage)
    assert original_of(home) is None
    keep_place(home)
    assert original_of(home.rename(tmp_path / "moved")) is None


def test_a_copy_without_what_is_secret_is_a_copy(tmp_path: Path) -> None:
    """`rsync --exclude tls`, say: the agent of it would end what the original's has under way."""
    home, copy = started(tmp_path / "home"), tmp_path / "copy"
    first = load_identity(home, 1e9)
    write_access(home, AccessFile(first.instance, "127.0.0.1", 1, first.certificate, first.token, 1, 1))
    shutil.copytree(home, copy, ignore=shutil.ignore_patterns("tls"))
    assert original_of(copy) == Original(home)
    begin_apart(copy)
    load_identity(copy, 1e9)
    keep_place(copy)
    assert original_of(copy) is None
    shutil.rmtree(home / "tls")
    assert original_of(home) is None, "it is made anew"


def test_a_copy_of_a_home_of_an_earlier_version_has_an_instance_of_its_own(tmp_path: Path) -> None:
    home, copy, moved = (tmp_path / name for name in ("home", "copy", "moved"))
    home.mkdir(mode=0o700)
    first = load_identity(home, 1e9)
    write_access(home, AccessFile(first.instance, "127.0.0.1", 1, first.certificate, first.token, 1, 1))
    (home / "run" / "n1" / "1.1").mkdir(parents=True)
    shutil.copytree(home, copy)
    (tmp_path / "link").symlink_to(home)
    found = [original_of(each) for each in (home, copy, tmp_path / "link", tmp_path)]
    assert found == [None, Original(home), None, None]
    forget_agents(copy)
    assert original_of(copy) == Original(home), "a start that is killed here is none of a home of its own"
    begin_apart(copy)
    second = load_identity(copy, 1e9)
    assert first.instance != second.instance
    assert first.token != second.token
    assert not (copy / "run").exists()
    assert original_of(copy) is None
    assert load_identity(home, 1e9) == first
    shutil.copytree(home, moved)
    shutil.rmtree(home)
    assert original_of(moved) is None, "it was moved to another file system"
    for damage in ("", "[" * 60_000, "[]", '{"home": 7}', '{"home": "/nowhere"}'):
        (moved / "access.json").write_text(damage)
        assert original_of(moved) is None
