"""The HTTPS server of the API."""

import asyncio
import contextlib
import socket
from asyncio.sslproto import SSLProtocol
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette

from hpcdl.daemon.door import Door
from hpcdl.daemon.websocket import PingedProtocol
from hpcdl.wire.messages import MAX_MESSAGE
from hpcdl.wire.tls import server_context

PING_S = 10.0
"""An agent that has said nothing for so long is asked whether it is there; if it does not answer for as long, it is
away."""


TLS_BUFFER = 8 << 10
"""Bytes that each connection keeps for what comes in. asyncio's own 256 KiB would be 250 MiB for a
thousand agents, who say a few hundred bytes at a time."""


class _Server(uvicorn.Server):
    """uvicorn's, whose connections come in by a door."""

    def __init__(self, config: uvicorn.Config, door: Door) -> None:
        super().__init__(config)
        self._door = door

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn; `sockets`: the one listener."""
        assert sockets is not None, "the caller has the listener"
        (listener,) = sockets
        await self.lifespan.startup()
        config, protocol = self.config, self.config.http_protocol_class
        assert config.ssl is not None, "never without TLS"

        def connection() -> asyncio.Protocol:
            make: Any = protocol
            made: asyncio.Protocol = make(config, self.server_state, self.lifespan.state)
            return made

        self._door.open(listener, connection, config.ssl)
        self.servers = [self._door]  # type: ignore[list-item]  # it has the methods that are called
        self.started = True


def make_server(application: Starlette, certificate: Path, key: Path, door: Door) -> uvicorn.Server:
    """TLS with this certificate, no logs of its own, and no handlers of signals: a stop suspends first.

    `door`: is told by the application which connections have shown the token.
    """
    SSLProtocol.max_size = TLS_BUFFER  # of this process: there is no setting for it
    config = uvicorn.Config(
        application,
        ws=PingedProtocol,
        ws_max_size=MAX_MESSAGE,
        ws_per_message_deflate=False,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PING_S,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=30,
    )
    config.load()
    config.ssl = server_context(certificate, key)
    server = _Server(config, door)
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment, method-assign]
    return server
