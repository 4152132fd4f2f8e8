"""The client's HTTP, against answers as servers write them, well or badly."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpcdl.wire.http_client import Disconnected, HttpConnection, HttpError, HttpResponse


class Plain:
    """In place of TLS, which has tests of its own: what is wrapped stays as it is."""

    def wrap_socket(self, plain: socket.socket, server_hostname: str) -> socket.socket:
        return plain


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[HttpConnection, list[bytes]]]:
    """A connection to a server that answers so, whatever is asked, and closes it."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer, contextlib.suppress(OSError):  # the client may have had enough before the end, and be gone
                for answer in answers:
                    heard.append(peer.recv(65536))
                    peer.sendall(answer)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(65536):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        context: Any = Plain()
        connection = HttpConnection("127.0.0.1", listener.getsockname()[1], 60.0, context, most=1 << 20)
        try:
            yield connection, heard
        finally:
            connection.close()
            thread.join(60)


def ask(*answers: bytes) -> list[HttpResponse]:
    with answering(*answers) as (connection, _):
        found = []
        for _ in answers:
            connection.send("GET", "/v1/jobs", None, {})
            found.append(connection.receive())
        return found


def test_answers_with_a_length_follow_one_another() -> None:
    first = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab"
    second = b"HTTP/1.1 404 Not Found\r\ncontent-length: 1\r\nConnection: close\r\n\r\nc"
    assert ask(first, second) == [HttpResponse(200, b"ab", False), HttpResponse(404, b"c", True)]


@pytest.mark.parametrize(
    "raw, expected",
    [
        (b"HTTP/1.1 200 OK\r\n\r\nall of it", HttpResponse(200, b"all of it", True)),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", HttpResponse(200, b"x", True)),
        (b"HTTP/1.1 204 No Content\r\n\r\n", HttpResponse(204, b"", False)),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", HttpResponse(200, b"x", False)),
        (
            b"HTTP/1.1 400 Bad\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n",
            HttpResponse(400, b"abc0123456789", False),
        ),
    ],
)
def test_other_forms_of_an_answer(raw: bytes, expected: HttpResponse) -> None:
    assert ask(raw) == [expected]


@pytest.mark.parametrize(
    "raw, words",
    [
        (b"", "closed"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no answer"),
        (b"HTTP/1.1 abc OK\r\n\r\n", "no answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", "2 of 5 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "no length"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "breaks off"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000, "head of the answer is over 64 KiB"),
        (b"HTTP/1.1 200 " + b"x" * 70_000, "head of the answer is over 64 KiB"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\ncontent-length: 3\r\n\r\nabc", "two lengths"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n", "over 1 MiB"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n", "over 1 MiB"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2_000_000, "over 1 MiB"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "no size"),
    ],
)
def test_what_is_no_answer(raw: bytes, words: str) -> None:
    with pytest.raises(HttpError, match=words) as caught:
        ask(raw)
    assert isinstance(caught.value, Disconnected) is (raw == b"")


def test_a_request_as_it_is_written() -> None:
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with answering(ok, ok) as (connection, heard):
        connection.send("POST", "/v1/jobs?a=b", b"{}", {"Authorization": "Bearer x"})
        connection.receive()
        connection.send("POST", "/v1/stop", None, {})
        connection.receive()
    lines = heard[0].decode().split("\r\n")
    assert lines[0] == "POST /v1/jobs?a=b HTTP/1.1"
    assert {"Authorization: Bearer x", "Content-Length: 2"} <= set(lines)
    assert heard[0].endswith(b"\r\n\r\n{}")
    assert b"Content-Length: 0\r\n" in heard[1]


@pytest.mark.parametrize("path", ["/a b", "/a\r\nX: y", "/é"])
def test_a_path_cannot_smuggle_anything(path: str) -> None:
    with answering() as (connection, _), pytest.raises(ValueError, match="no path"):
        connection.send("GET", path, None, {})


def test_a_handshake_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(ssl.SSLError):
            HttpConnection("127.0.0.1", listener.getsockname()[1], 60.0, ssl.create_default_context())
        thread.join(60)
