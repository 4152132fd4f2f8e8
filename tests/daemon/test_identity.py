"""What an instance keeps across restarts."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from hpcdl.daemon.identity import begin_apart, forget_agents, load_identity, node_name, original_of
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


def test_a_copy_has_an_instance_of_its_own(tmp_path: Path) -> None:
    home, copy, moved = (tmp_path / name for name in ("home", "copy", "moved"))
    home.mkdir(mode=0o700)
    first = load_identity(home, 1e9)
    write_access(home, AccessFile(first.instance, "127.0.0.1", 1, first.certificate, first.token, 1, 1))
    (home / "run" / "n1" / "1.1").mkdir(parents=True)
    shutil.copytree(home, copy)
    (tmp_path / "link").symlink_to(home)
    assert [original_of(each) for each in (home, copy, tmp_path / "link", tmp_path)] == [None, home, None, None]
    forget_agents(copy)
    assert original_of(copy) == home, "a start that is killed here is none of a home of its own"
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
