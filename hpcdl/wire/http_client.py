"""The HTTP/1.1 client: of the daemon's API, of other users' daemons, and of servers that take notifications.

One connection, one request after another. Whoever answers may be hostile or broken: heads and contents have limits of
bytes, each piece has its time, and all of it together may have an end. Python's own client is a third of the start-up
time of a command, for its e-mail parser; so nothing here imports it.
"""

import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

HEAD = 64 * 1024  # bytes of an answer's status line and headers, and of the trailers of a chunked one
PIECE = 256 * 1024  # bytes that are read at once


class HttpError(Exception):
    """What came is not an answer, or not a whole one."""


class Disconnected(HttpError):
    """The connection was closed before an answer came."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An answer. `closes`: nothing more can be asked on this connection."""

    status: int
    content: bytes
    closes: bool


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that requests go through, and the headers that it wants."""

    host: str
    port: int
    headers: Mapping[str, str]


class HttpConnection:
    """A connection, over TLS where it has a context. Methods raise OSError (TimeoutError too) and HttpError; after
    either it is of no more use."""

    def __init__(
        self,
        host: str,
        port: int,
        timeout_s: float,
        context: ssl.SSLContext | None,
        *,
        end: float = inf,
        most: float = inf,
        proxy: Proxy | None = None,
    ) -> None:
        """Connects. `timeout_s`: of that, and of each piece of what is read or written later; may be set anew. `end`:
        by time.monotonic(), when all must be over. `most`: bytes of an answer's content."""
        self.timeout_s = timeout_s
        self._end, self._most = end, most
        self._rest = bytearray()  # what was read and is not used yet
        name = f"[{host}]" if ":" in host else host
        self.host = name if port == (80 if context is None else 443) else f"{name}:{port}"
        self._headers = {"Host": self.host, "Accept-Encoding": "identity"}
        self._base = ""  # before every path
        self.sock = socket.create_connection((proxy.host, proxy.port) if proxy else (host, port), self._left_s())
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if proxy is not None and context is not None:
                self._open_tunnel(f"{name}:{port}", proxy)
            elif proxy is not None:
                self._base = f"http://{self.host}"
                self._headers |= proxy.headers
            if context is not None:
                self.sock.settimeout(self._left_s())
                self.sock = context.wrap_socket(self.sock, server_hostname=host)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the connection."""
        self.sock.close()

    def send(self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]) -> None:
        """A request."""
        if not (path.isascii() and path.isprintable() and " " not in path):
            raise ValueError(f"no path of a request: {path!r:.80}")
        length = {} if content is None and method == "GET" else {"Content-Length": str(len(content or b""))}
        self._write(f"{method} {self._base}{path}", {**self._headers, **headers, **length}, content or b"")

    def receive(self) -> HttpResponse:
        """The answer to it."""
        version, status, headers = self._head()
        closes = version == "HTTP/1.0" or headers.get("connection", "").lower() == "close"
        if status in (204, 304):
            return HttpResponse(status, b"", closes)
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return HttpResponse(status, self._chunks(), closes)
        length = headers.get("content-length")
        if length is None:
            while self._read_more():
                self._check(len(self._rest))
            return HttpResponse(status, self._take(len(self._rest)), True)
        if not (length.isascii() and length.isdigit() and len(length) <= 12):
            raise HttpError(f"no length of an answer: {length!r:.40}")
        self._check(int(length))
        return HttpResponse(status, self._exactly(int(length)), closes)

    def receive_status(self) -> int:
        """The status of the answer, whose content nobody wants; then the connection is of no more use."""
        return self._head()[1]

    def _open_tunnel(self, target: str, proxy: Proxy) -> None:
        self._write(f"CONNECT {target}", {"Host": target, **proxy.headers}, b"")
        status = self._head()[1]
        if status != 200 or self._rest:  # what follows must be from inside the tunnel
            raise HttpError(f"the proxy {proxy.host}:{proxy.port} answered {status}")

    def _write(self, what: str, headers: Mapping[str, str], content: bytes) -> None:
        lines = [f"{what} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self.sock.settimeout(self._left_s())
        self.sock.sendall("\r\n".join(lines).encode("ascii") + content)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _left_s(self) -> float:
        if self._end == inf:
            return self.timeout_s
        left_s = self._end - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        return min(self.timeout_s, left_s)

    def _read_more(self) -> bool:
        """False at the end of the connection."""
        self.sock.settimeout(self._left_s())
        piece = self.sock.recv(PIECE)
        self._rest += piece
        return bool(piece)

    def _take(self, length: int) -> bytes:
        taken = bytes(self._rest[:length])
        del self._rest[:length]
        return taken

    def _exactly(self, length: int) -> bytes:
        while len(self._rest) < length:
            if not self._read_more():
                raise HttpError(f"the answer breaks off after {len(self._rest)} of {length} bytes")
        return self._take(length)

    def _check(self, length: int) -> None:
        if length > self._most:
            raise HttpError(f"the answer is over {self._most / (1 << 20):g} MiB")

    def _line(self, most: int) -> str:
        """Without its end. `most`: bytes of a head that are left for it."""
        searched = 0
        while (end := self._rest.find(b"\n", searched)) < 0 and len(self._rest) < most:
            searched = len(self._rest)
            if not self._read_more():
                raise HttpError("the answer breaks off")
        if not 0 <= end < most:
            raise HttpError(f"the head of the answer is over {HEAD >> 10} KiB")
        return self._take(end + 1).decode("iso-8859-1").rstrip("\r\n")

    def _head(self) -> tuple[str, int, dict[str, str]]:
        """HTTP's version, the status, and the headers by their names in small letters."""
        status = 0
        while status < 200:  # 100: the answer is still to come
            if not self._rest and not self._read_more():
                raise Disconnected("the connection was closed")
            line = self._line(HEAD)
            version, _, rest = line.partition(" ")
            code = rest[:3]
            if not (version.startswith("HTTP/1.") and code.isascii() and code.isdigit() and len(code) == 3):
                raise HttpError(f"no answer: {line!r:.60}")
            status = int(code)
            headers = self._read_headers()
        return version, status, headers

    def _read_headers(self) -> dict[str, str]:
        found: dict[str, str] = {}
        left = HEAD
        while line := self._line(left):
            left -= len(line)
            name, value = (part.strip() for part in line.partition(":")[::2])
            if found.setdefault(name.lower(), value) != value and name.lower() == "content-length":
                raise HttpError("the answer has two lengths")
        return found

    def _chunks(self) -> bytes:
        content = bytearray()
        while True:
            size = self._line(HEAD).partition(";")[0].strip()
            try:
                length = int(size, 16)
            except ValueError:
                raise HttpError(f"no size of a piece: {size!r:.40}") from None
            if length == 0:
                self._read_headers()
                return bytes(content)
            self._check(len(content) + length)
            content += self._exactly(length)
            self._line(HEAD)
