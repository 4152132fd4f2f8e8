"""Where the Horovod ranks of one node meet: the store over HTTP that Horovod's Gloo controller asks.

`python -m hpcdl.trainer.ranks N --horovod` keeps it while its ranks live, as horovodrun would. It is bound to the
loopback address: ranks of other nodes never meet here. Standard library only.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOST = "127.0.0.1"
NAME = "localhost"  # of the node, in the keys of the store
VALUE_LIMIT = 1 << 20  # bytes; an address of Gloo's has some hundred


class Rendezvous(ThreadingHTTPServer):
    """The store of `size` ranks; bound when it is made, answering once `start` is called."""

    daemon_threads = True

    def __init__(self, size: int) -> None:
        super().__init__((HOST, 0), _Request)
        self.lock = threading.Lock()
        self.values: dict[str, dict[str, bytes]] = {}
        self._size = size
        self._sizes = {"global": size, f"local_{NAME}": size, **{f"cross_{rank}": 1 for rank in range(size)}}
        self._left: dict[str, set[str]] = {}

    def start(self) -> None:
        """Answer from now on, in a thread of its own."""
        threading.Thread(target=self.serve_forever, name="hpcdl rendezvous", daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A rank that ended in the middle of a request is none of ours."""

    def leave(self, scope: str, key: str) -> None:
        """A rank has met everybody of a scope. What they wrote goes when the last has, so that they can meet anew."""
        with self.lock:
            if scope not in self._sizes:
                self.values.get(scope, {}).pop(key, None)
                return
            left = self._left.setdefault(scope, set())
            left.add(key)
            if len(left) == self._sizes[scope]:
                self.values.pop(scope, None)
                left.clear()

    def environment(self, rank: int) -> Mapping[str, str]:
        """What Horovod reads in the environment of a rank."""
        return {
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": str(self._size),
            "HOROVOD_LOCAL_RANK": str(rank),
            "HOROVOD_LOCAL_SIZE": str(self._size),
            "HOROVOD_CROSS_RANK": "0",
            "HOROVOD_CROSS_SIZE": "1",
            "HOROVOD_HOSTNAME": NAME,
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": "lo",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": HOST,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(self.server_address[1]),
        }


class _Request(BaseHTTPRequestHandler):
    server: Rendezvous
    timeout = 60.0  # seconds without a byte of a request

    def _key(self) -> tuple[str, str]:
        scope, _, key = self.path.lstrip("/").partition("/")
        return scope, key

    def _answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        scope, key = self._key()
        with self.server.lock:
            value = self.server.values.get(scope, {}).get(key)
        self._answer(HTTPStatus.NOT_FOUND if value is None else HTTPStatus.OK, value or b"")

    def do_PUT(self) -> None:
        scope, key = self._key()
        length = self.headers.get("Content-Length") or ""
        if not length.isdigit() or int(length) > VALUE_LIMIT:
            self._answer(HTTPStatus.BAD_REQUEST)
            return
        value = self.rfile.read(int(length))
        with self.server.lock:
            self.server.values.setdefault(scope, {})[key] = value
        self._answer(HTTPStatus.OK)

    def do_DELETE(self) -> None:
        self.server.leave(*self._key())
        self._answer(HTTPStatus.OK)

    def log_message(self, *args: Any) -> None:
        """Nothing: ranks that wait ask many times a second."""
