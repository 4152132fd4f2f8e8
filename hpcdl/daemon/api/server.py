"""The HTTPS server: uvicorn behind our own admission, with TLS 1.3, WebSockets and bounded logs."""

import asyncio
import contextlib
import logging
import socket
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from hpcdl.daemon.api.admission import Admission
from hpcdl.wire.messages import MAX_MESSAGE
from hpcdl.wire.tls import server_context

PING_S = 10.0
"""An agent that has said nothing for so long is asked whether it is there; if it does not answer for as long, it is
away."""

TLS_BUFFER = 8 << 10
"""Bytes that each connection keeps for what comes in. asyncio's own 256 KiB would be 250 MiB for a
thousand agents, who say a few hundred bytes at a time."""


class AdmittedServer(uvicorn.Server):
    """uvicorn's server, whose connections come in by our admission."""

    def __init__(self, config: uvicorn.Config, door: Admission) -> None:
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


def make_server(application: Starlette, certificate: Path, key: Path, door: Admission) -> uvicorn.Server:
    """TLS with this certificate, no logs of its own, and no handlers of signals: a stop suspends first.

    `door`: learns from the application which connections have shown the token.
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
    server = AdmittedServer(config, door)
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment, method-assign]
    return server


LIBRARIES = ("asyncio", "uvicorn")
"""Whose loggers speak of connections that have shown no token."""

MOST, PERIOD_S = 20, 60.0
"""So many records of these are written in so many seconds."""


class LogRateFilter(logging.Filter):
    """Keeps strangers, and what fails again and again (no descriptor is left), from filling the daemon's log: at most
    MOST records in PERIOD_S of what LIBRARIES say together, and of each line of ours that warns; the next one says how
    many are missing. A filter for a handler."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._written: dict[tuple[str, int], _Written] = {}  # as many as there are lines that log

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is written."""
        library = record.name.partition(".")[0] in LIBRARIES
        if not library and record.levelno < logging.WARNING:
            return True
        now = self._monotonic()
        line = ("", 0) if library else (record.pathname, record.lineno)
        written = self._written.setdefault(line, _Written(now))
        if now - written.since >= PERIOD_S:
            written.since, written.number = now, 0
        if written.number >= MOST:
            written.left_out += 1
            return False
        written.number += 1
        if written.left_out:
            record.msg, record.args = f"{record.getMessage()} ({written.left_out} more of these are left out)", None
            written.left_out = 0
        return True


@dataclass(slots=True)
class _Written:
    """Of one kind of records: `number` written since `since`."""

    since: float
    number: int = 0
    left_out: int = 0


class PingedProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket connection, which pings only who is silent, and ends at once when a ping is not answered.

    Where the network swallows what it is given, a TLS connection that is closed waits long for its peer's goodbye,
    and the application hears of the end only then. A peer that does not answer a ping is not waited for; one that has
    just said something, as agents do all the time, is not asked."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._heard_at = self.loop.time()

    def data_received(self, data: bytes) -> None:
        """See uvicorn."""
        self._heard_at = self.loop.time()
        super().data_received(data)

    def send_keepalive_ping(self) -> None:
        """See uvicorn."""
        assert self.ping_interval is not None, "else it would not be called"
        silent_in_s = self._heard_at + self.ping_interval - self.loop.time()
        if silent_in_s > 0:
            self.ping_timer = self.loop.call_later(silent_in_s, self.send_keepalive_ping)
        else:
            super().send_keepalive_ping()

    def keepalive_timeout(self) -> None:
        """See uvicorn."""
        super().keepalive_timeout()
        self.transport.abort()
