"""uvicorn's WebSocket connection, which asks only who is silent, and ends at once when a ping is not answered."""

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class PingedProtocol(WebSocketsSansIOProtocol):
    """Where the network swallows what it is given, a TLS connection that is closed waits long for its peer's goodbye,
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
