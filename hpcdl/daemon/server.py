"""The HTTPS server of the API."""

import contextlib
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from hpcdl.daemon.websocket import PingedProtocol
from hpcdl.wire.messages import MAX_MESSAGE
from hpcdl.wire.tls import server_context

PING_S = 10.0
"""Agents are asked this often whether they are there; one that has not answered for as long is away."""


def make_server(application: Starlette, certificate: Path, key: Path) -> uvicorn.Server:
    """TLS with this certificate, no logs of its own, and no handlers of signals: a stop suspends first."""
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
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment, method-assign]
    return server
