"""As much of HTTP/1.1 as a client of the daemon needs: one connection, one request after another.

Python's own client is a third of the start-up time of a command, for its e-mail parser.
"""

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

LINE = 64 * 1024  # bytes
HEADERS = 200


class HttpError(Exception):
    """What came is not an answer, or not a whole one."""


class Disconnected(HttpError):
    """The connection was closed before an answer came."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. `closes`: nothing more can be asked on this connection."""

    status: int
    content: bytes
    closes: bool


class Connection:
    """A connection over TLS. Its methods raise OSError and HttpError; after either it is of no more use."""

    def __init__(self, host: str, port: int, timeout_s: float, context: ssl.SSLContext) -> None:
        """Connects. `timeout_s`: of that, and of each piece of what is read or written later."""
        self.host = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        plain = socket.create_connection((host, port), timeout_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sock = context.wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise
        self._stream: BinaryIO = self.sock.makefile("rb")

    def close(self) -> None:
        """Ends the connection."""
        self._stream.close()
        self.sock.close()

    def send(self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]) -> None:
        """A request."""
        if not (path.isascii() and path.isprintable() and " " not in path):
            raise ValueError(f"no path of a request: {path!r:.80}")
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host}", "Accept-Encoding: identity"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if content is not None or method != "GET":
            lines.append(f"Content-Length: {len(content or b'')}")
        self.sock.sendall("\r\n".join([*lines, "", ""]).encode("ascii") + (content or b""))

    def receive(self) -> Answer:
        """The answer to it."""
        while True:
            version, status = self._status()
            headers = self._headers()
            if status >= 200:
                break
        closes = version == "HTTP/1.0" or headers.get("connection", "").lower() == "close"
        if status in (204, 304):
            return Answer(status, b"", closes)
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return Answer(status, self._chunks(), closes)
        length = headers.get("content-length")
        if length is None:
            return Answer(status, self._stream.read(), True)
        if not (length.isascii() and length.isdigit() and len(length) <= 12):
            raise HttpError(f"no length of an answer: {length!r:.40}")
        return Answer(status, self._exactly(int(length)), closes)

    def _line(self) -> str:
        line = self._stream.readline(LINE)
        if line and not line.endswith(b"\n"):
            raise HttpError("the answer breaks off, or has a line that is too long")
        return line.decode("iso-8859-1").rstrip("\r\n")

    def _status(self) -> tuple[str, int]:
        line = self._line()
        if not line:
            raise Disconnected("the connection was closed")
        version, _, rest = line.partition(" ")
        if not version.startswith("HTTP/1.") or not (rest[:3].isascii() and rest[:3].isdigit() and len(rest[:3]) == 3):
            raise HttpError(f"no answer: {line!r:.60}")
        return version, int(rest[:3])

    def _headers(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for _ in range(HEADERS):
            line = self._line()
            if not line:
                return found
            name, _, value = line.partition(":")
            found[name.strip().lower()] = value.strip()
        raise HttpError(f"more than {HEADERS} headers")

    def _exactly(self, length: int) -> bytes:
        content = self._stream.read(length)
        if len(content) < length:
            raise HttpError(f"the answer breaks off after {len(content)} of {length} bytes")
        return content

    def _chunks(self) -> bytes:
        parts: list[bytes] = []
        while True:
            size = self._line().partition(";")[0].strip()
            try:
                length = int(size, 16)
            except ValueError:
                raise HttpError(f"no size of a piece: {size!r:.40}") from None
            if length == 0:
                self._headers()
                return b"".join(parts)
            parts.append(self._exactly(length))
            self._line()
