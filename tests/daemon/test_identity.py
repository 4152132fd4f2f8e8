"""What an instance keeps across restarts."""

import json
from pathlib import Path

from hpcdl.daemon.identity import load_identity, node_name


def test_the_identity_is_made_once(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    first = load_identity(home, 1e9)
    assert load_identity(home, 2e9) == first
    assert first.token not in repr(first)
    assert (home / "tls" / "token").stat().st_mode & 0o777 == 0o600


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
