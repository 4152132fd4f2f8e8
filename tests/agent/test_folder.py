"""The lock of a node's agent: one at a time, and none that nobody waits for."""

import os
import time
from pathlib import Path

import pytest

from hpcdl.agent import folder
from hpcdl.agent.folder import AnotherAgent


def test_a_lock_that_comes_free_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = folder.lock(tmp_path)
    monkeypatch.setattr(time, "sleep", lambda _: os.close(held))
    taken = folder.lock(tmp_path)
    assert folder.still_ours(tmp_path, taken)
    os.close(taken)


def test_an_agent_whose_daemon_died_takes_no_place_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next daemon's stop would end the agent that was there, and know nothing of this one."""
    held = folder.lock(tmp_path)
    monkeypatch.setattr(time, "sleep", lambda _: os.close(held))
    with pytest.raises(AnotherAgent, match="the daemon that started this agent, process 4711, is gone"):
        folder.lock(tmp_path, daemon=4711)
    os.close(folder.lock(tmp_path, daemon=os.getppid()))
