"""Compiled loops are loaded once, beside the daemon's work, and only for the policies that need them."""

import logging
import threading

import pytest

from hpcdl.daemon.daemon import POLICIES, Ahead
from hpcdl.policies import all_policies


class Loads:
    """What is called to load; it is told when that has happened."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.done = threading.Event()

    def __call__(self) -> None:
        self.threads.append(threading.current_thread().name)
        self.done.set()


def test_the_policies_are_there() -> None:
    assert set(all_policies().names()) >= POLICIES


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_it_loads_once_and_beside(policy: str) -> None:
    loads = Loads()
    ahead = Ahead(loads)
    ahead.look(policy)  # before the daemon is ready
    ahead.start("marble")
    assert loads.threads == []
    ahead.look(policy)
    assert loads.done.wait(60)
    ahead.look(policy)
    ahead.start(policy)
    assert loads.threads == ["ahead"]


def test_a_daemon_that_starts_with_such_a_policy() -> None:
    loads = Loads()
    Ahead(loads).start("harvest")
    assert loads.done.wait(60)


def test_what_cannot_be_loaded_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()

    def load() -> None:
        try:
            raise RuntimeError("no compiler")
        finally:
            ended.set()

    with caplog.at_level(logging.ERROR, "hpcdl.daemon"):
        Ahead(load).start("bftrainer")
        assert ended.wait(60)
        for thread in threading.enumerate():
            if thread.name == "ahead":
                thread.join(60)
    assert "no compiler" in caplog.text
