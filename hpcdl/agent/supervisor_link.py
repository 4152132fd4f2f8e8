"""The agent's end of a side channel: a connection to one supervisor, for the event loop."""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from hpcdl.agent import strictjson
from hpcdl.agent.packets import LIMIT, VERSION, encode
from hpcdl.agent.sidechannel import NAME

_PEER = struct.Struct("3i")  # pid, uid, gid


class SupervisorLink:
    """A connected SOCK_SEQPACKET socket. Nothing here waits for the supervisor except `send` and `packets`."""

    def __init__(self, folder: Path) -> None:
        """Connects to the socket in a run folder. Raises OSError where nobody of ours listens there."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.setblocking(False)
            where = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                # Names of sockets end at 107 bytes; this one is short whatever the folder is.
                self._socket.connect(f"/proc/self/fd/{where}/{NAME}")
            finally:
                os.close(where)
            raw = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            _, uid, _ = _PEER.unpack(raw)
            if uid != os.geteuid():
                raise PermissionError(f"the supervisor's socket belongs to uid {uid}")
        except BaseException:
            self._socket.close()
            raise

    async def send(self, kind: str, **body: object) -> None:
        """Sends one packet. Raises OSError."""
        await asyncio.get_running_loop().sock_sendall(self._socket, encode(kind, **body))

    async def packets(self) -> AsyncIterator[dict[str, Any]]:
        """Every packet of a version that we speak, until the supervisor is gone. What is malformed is left out."""
        loop = asyncio.get_running_loop()
        resets = 0
        while True:
            try:
                raw = await loop.sock_recv(self._socket, LIMIT + 1)
            except ConnectionResetError:
                resets += 1  # the packets that were sent before come after it
                if resets > 1:
                    return
                continue
            except OSError:
                return
            if not raw:
                return
            try:
                packet = strictjson.loads(raw)
            except ValueError:
                continue
            if isinstance(packet, dict) and packet.get("v") == VERSION and isinstance(packet.get("type"), str):
                yield packet

    def close(self) -> None:
        """Closes this end; the supervisor goes on."""
        self._socket.close()
