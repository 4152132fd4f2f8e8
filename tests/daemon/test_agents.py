"""What the hub says to agents that come at an unusual time."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from hpcdl.core.controller.journal import JournalError, MemoryJournal
from hpcdl.core.model.events import GpuChanged
from hpcdl.core.model.frozen import to_json
from hpcdl.wire import messages as msg
from tests.security.test_fuzz_api import HELLO, INVENTORY, Scene, Socket
from tests.support.waiting import until_async


class Patient(Socket):
    """An agent that stays until it hears that it is to end."""

    async def receive(self) -> dict[str, Any]:
        while not self._frames and not any('"bye"' in text for text in self.sent):
            await asyncio.sleep(0.01)
        return await super().receive()


def test_an_agent_that_comes_while_the_daemon_stops_is_ended(tmp_path: Path) -> None:
    """It would stay behind: those that were there have been ended by then."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    scene = Scene(home)
    try:
        scene.hub.bye("hpcdl daemon stop")
        socket = Patient([HELLO, INVENTORY])
        scene.runner.run(asyncio.wait_for(scene.hub.serve(socket), 60))  # type: ignore[arg-type]
        byes = [each for each in map(msg.decode_message, socket.sent) if isinstance(each, msg.ByeMessage)]
        assert byes == [msg.ByeMessage(end=True, why="hpcdl daemon stop")]
    finally:
        scene.close()


class Slow(MemoryJournal):
    """A ledger whose commits, while `go` is not set, wait for it, and then fail if `fails`."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.waits, self.fails = threading.Event(), threading.Event(), False
        self.go.set()

    def append(self, *what: Any, **more: Any) -> Any:
        if not self.go.is_set():
            self.waits.set()
            assert self.go.wait(60)
            if self.fails:
                raise JournalError("No space left on device")
        return super().append(*what, **more)


class Reporting(Socket):
    """An agent that reports while the ledger is slow, and stays for the acknowledgement."""

    def __init__(self, journal: Slow) -> None:
        event = GpuChanged("n2", 0, "dirty", "a process that is not ours")
        super().__init__([HELLO, INVENTORY, msg.encode_message(msg.ReportMessage(1, "GpuChanged", to_json(event)))])
        self.early: list[str] | None = None
        self._journal = journal

    async def receive(self) -> dict[str, Any]:
        if len(self._frames) == 1:
            self._journal.go.clear()
        elif not self._frames:
            await until_async(self._journal.waits.is_set, "the commit")
            for _ in range(100):
                await asyncio.sleep(0)
            self.early = list(self.sent)
            self._journal.go.set()
            if not self._journal.fails:
                await until_async(lambda: acknowledged(self.sent) != [], "the acknowledgement")
        return await super().receive()


def acknowledged(sent: list[str]) -> list[int]:
    return [each.number for each in map(msg.decode_message, sent) if isinstance(each, msg.RecordedMessage)]


@pytest.mark.parametrize("fails", [False, True])
def test_a_report_is_acknowledged_once_it_is_in_the_ledger(tmp_path: Path, fails: bool) -> None:
    """An agent forgets what was acknowledged: of a daemon that is killed there, nobody else would have it."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    journal = Slow()
    scene = Scene(home, journal)
    try:
        journal.fails = fails
        socket = Reporting(journal)
        scene.runner.run(asyncio.wait_for(scene.hub.serve(socket), 120))  # type: ignore[arg-type]
        assert socket.early is not None
        assert acknowledged(socket.early) == []
        assert acknowledged(socket.sent) == ([] if fails else [1])
    finally:
        journal.fails = False
        scene.close()
