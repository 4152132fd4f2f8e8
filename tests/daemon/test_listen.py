"""Where a daemon listens when nobody has said where."""

from pathlib import Path

import pytest

from hpcdl.allocation import detect
from hpcdl.allocation.detect import listen_address
from hpcdl.config.settings import load_config


def test_agents_of_pilots_reach_a_daemon_that_has_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "own_address", lambda nodes: "198.51.100.1")
    plain = load_config(tmp_path, environ={}, site=tmp_path / "none")
    assert listen_address(plain, pilots=False) == "127.0.0.1"
    assert listen_address(plain, pilots=True) == "198.51.100.1"
    told = load_config(tmp_path, environ={"HPCDL_LISTEN_HOST": "127.0.0.1"}, site=tmp_path / "none")
    assert listen_address(told, pilots=True) == "127.0.0.1"
