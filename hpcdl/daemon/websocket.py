"""uvicorn's WebSocket connection, with an end that comes at once when a ping is not answered."""

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class PingedProtocol(WebSocketsSansIOProtocol):
    """Where the network swallows what it is given, a TLS connection that is closed waits long for its peer's goodbye,
    and the application hears of the end only then. A peer that does not answer a ping is not waited for."""

    def keepalive_timeout(self) -> None:
        """See uvicorn."""
        super().keepalive_timeout()
        self.transport.abort()
