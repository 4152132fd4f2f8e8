"""A WebSocket whose frames are messages, to and from an agent or a client of `hpcdl exec`.

Who calls is known by its token already; what it says may be anything. Neighbours: `wire/messages` has the messages,
the hub and the shells their meaning.
"""

import asyncio
import logging

from starlette.websockets import WebSocket, WebSocketDisconnect

from hpcdl.wire.messages import BadMessage, Message, decode_message, encode_message

log = logging.getLogger("hpcdl.daemon")


class MessageSocket:
    """The daemon's end of a WebSocket. For the asyncio thread."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket

    async def accept(self) -> None:
        """Lets the peer in."""
        await self._socket.accept()

    async def receive(self, within_s: float | None = None) -> Message:
        """The next message. Raises WebSocketDisconnect, BadMessage, and TimeoutError where it is not there in time."""
        frame = await asyncio.wait_for(self._socket.receive(), within_s)
        if frame["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(frame.get("code") or 1006, frame.get("reason") or "")
        text: str | None = frame.get("text")
        if text is None:
            raise BadMessage("a frame is not text")
        return decode_message(text)

    async def send(self, message: Message, within_s: float | None = None) -> None:
        """Raises TimeoutError where the peer does not take it in time."""
        await asyncio.wait_for(self._socket.send_text(encode_message(message)), within_s)

    async def close(self, code: int = 1000, why: str = "", last: Message | None = None) -> None:
        """Ends it, with a last message; one that is gone already is not an error."""
        try:
            if last is not None:
                await self.send(last)
            await self._socket.close(code, why[:120])
        except (RuntimeError, OSError, WebSocketDisconnect):
            log.debug("closing a connection that is gone")
