"""What the hub says to agents that come at an unusual time."""

import asyncio
from pathlib import Path
from typing import Any

from hpcdl.wire import messages as msg
from tests.security.test_fuzz_api import HELLO, INVENTORY, Scene, Socket


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
