"""Messages to real commands, a mail server and web servers of ours: what they get, and what counts as not taken."""

import json
import os
import socket
import socketserver
import stat
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from email import message_from_bytes
from email.policy import default
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from hpcdl.agent.supervisor.processes import tagged
from hpcdl.core.model.notice import Notice, NoticeKind
from hpcdl.daemon import delivery
from hpcdl.daemon.delivery import Letter, NotDelivered, Ways, deliver
from hpcdl.wire.private_files import write_new
from hpcdl.wire.tls import make_certificate, server_context
from tests.support.waiting import until


def no_more(tag: str) -> None:
    """Of the processes with this tag, which were killed: the kernel takes its time for that where much else runs."""
    until(lambda: not tagged(tag), "the end of what was killed")


def notice(number: int = 7, **more: Any) -> Notice:
    known: dict[str, Any] = {"job": 12, "name": "resnet", "state": "DONE", "cause": "done", "detail": "", "at": 5.0}
    return Notice(number, NoticeKind.END, **(known | {"waiting": ()} | more))


LETTER = Letter("inst", (notice(detail="caf\u00e9\nX-Evil: 1\0"),))


@pytest.fixture
def ways(tmp_path: Path) -> Ways:
    return Ways(f"inst-{os.getpid()}", tmp_path)  # another process may run the same test


# --- commands ---------------------------------------------------------------------------------------------------------


def program(folder: Path, text: str) -> str:
    """A Python program; what it writes as `said` is in that file."""
    path = folder / "tell me"
    path.write_text(f"#!{sys.executable}\nimport json, os, sys, time, subprocess\n{text}")
    path.chmod(0o700)
    return f"'{path}'"


def test_a_command_gets_the_facts(tmp_path: Path, ways: Ways) -> None:
    said = program(
        tmp_path,
        "facts = {k: v for k, v in os.environ.items() if k.startswith('HPCDL_NOTICE')}\n"
        "body = json.load(sys.stdin)\n"
        "json.dump([sys.argv[1:], facts, body, os.getcwd()], open('said', 'w'))\n",
    )
    deliver(f'{said} \'$(touch no)\' ";" "$HPCDL_NOTICE_ID"', replace(LETTER, folder="/absent"), ways)
    argv, facts, body, folder = json.loads((tmp_path / "said").read_text())
    assert argv == ["$(touch no)", ";", "inst-7"]
    assert folder == str(tmp_path)
    assert facts == {
        "HPCDL_NOTICE_ID": "inst-7",
        "HPCDL_NOTICE_COUNT": "1",
        "HPCDL_NOTICE_KIND": "end",
        "HPCDL_NOTICE_JOB": "12",
        "HPCDL_NOTICE_NAME": "resnet",
        "HPCDL_NOTICE_STATE": "DONE",
        "HPCDL_NOTICE_CAUSE": "done",
        "HPCDL_NOTICE_DETAIL": "caf\u00e9 X-Evil: 1",
        "HPCDL_NOTICE_TEXT": "job 12 (resnet) is DONE: caf\u00e9 X-Evil: 1",
    }
    assert (body["version"], body["id"], body["kind"]) == (1, "inst-7", "end")
    assert body["text"].startswith("job 12 (resnet) is DONE: caf"), "what webhooks of chats show"
    assert body["notices"][0]["detail"] == "caf\u00e9\nX-Evil: 1\0"


def test_a_digest_says_what_its_notices_have_in_common() -> None:
    letter = Letter("inst", tuple(notice(n, job=n, name=f"j{n}") for n in (3, 4, 9)))
    facts = letter.variables
    assert (letter.id, letter.kind, letter.subject) == ("inst-3-9x3", "digest", "3 notifications: 3 end")
    assert (facts["HPCDL_NOTICE_JOB"], facts["HPCDL_NOTICE_NAME"]) == ("3,4,9", "")
    assert facts["HPCDL_NOTICE_STATE"] == "DONE"
    large = Letter("inst", tuple(notice(n, detail="x" * 5000) for n in range(1000)))
    assert max(len(value) for value in large.variables.values()) <= delivery.TEXT_LENGTH
    assert len(json.loads(large.body)["notices"]) == 1000


def test_a_command_is_a_line_of_shell(tmp_path: Path, ways: Ways) -> None:
    for number in (7, 8):
        letter = Letter("inst", (notice(number, detail="'; touch no; $(touch no)`touch no`"),))
        deliver('cat >> said && test -n "$HPCDL_NOTICE_TEXT" | cat', letter, ways)
    lines = (tmp_path / "said").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["inst-7", "inst-8"]
    assert os.listdir(tmp_path) == ["said"]  # no text of a notice is run


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sys.exit(3)", "^the command ended with 3$"),
        ("print('out'); print('first\\nno room\\n', file=sys.stderr); sys.exit(1)", "ended with 1: no room$"),
        ("os.kill(os.getpid(), 9)", "(was ended by SIGKILL|ended with 137)"),
    ],
)
def test_a_command_that_fails_has_not_taken_it(tmp_path: Path, ways: Ways, text: str, why: str) -> None:
    with pytest.raises(NotDelivered, match=why):
        deliver(program(tmp_path, text), LETTER, ways)


def test_a_command_that_is_not_there_says_so(ways: Ways) -> None:
    with pytest.raises(NotDelivered, match=r"ended with 127: .*/nonexistent/program: not found"):
        deliver("/nonexistent/program", LETTER, ways)


def test_a_command_that_hangs_is_killed_with_all_it_started(
    tmp_path: Path, ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "COMMAND_S", 2.0)
    with pytest.raises(NotDelivered, match="has not ended within 2 s"):
        deliver(program(tmp_path, "subprocess.Popen(['sleep', '600'])\ntime.sleep(600)"), LETTER, ways)
    no_more(f"{ways.instance}:notice")


def test_what_a_command_leaves_behind_is_not_waited_for(tmp_path: Path, ways: Ways) -> None:
    began = time.monotonic()
    said = program(tmp_path, "subprocess.Popen(['sleep', '600'], start_new_session=True)\nprint('x' * 10_000_000)")
    deliver(said, LETTER, ways)
    assert time.monotonic() - began < 300
    no_more(f"{ways.instance}:notice")


# --- mail -------------------------------------------------------------------------------------------------------------


def test_a_mail_through_sendmail(tmp_path: Path, ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    sendmail = tmp_path / "sendmail"
    sendmail.write_text(
        f"#!{sys.executable}\nimport sys\nopen('mail', 'wb').write(sys.stdin.buffer.read())\n"
        "open('argv', 'w').write(repr(sys.argv[1:]))\n"
    )
    sendmail.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    deliver("mailto:me@example.org", LETTER, ways)
    mail = message_from_bytes((tmp_path / "mail").read_bytes(), policy=default)
    assert mail["To"] == "me@example.org"
    assert mail["Subject"] == "hpcdl: job 12 (resnet) is DONE: caf\u00e9 X-Evil: 1"
    assert mail["X-Evil"] is None
    assert mail["Message-ID"].startswith("<inst-7@")
    assert "caf\u00e9" in mail.get_content()
    assert (tmp_path / "argv").read_text() == "['-oi', '-t']"


class Smtp(socketserver.StreamRequestHandler):
    """Takes one mail, or refuses its recipient."""

    def handle(self) -> None:
        server: Any = self.server
        self.wfile.write(b"220 here\r\n")
        for line in self.rfile:
            word = line[:4].upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                while (data := self.rfile.readline()) != b".\r\n":
                    server.mail += data
            refuse = word == b"RCPT" and server.refuses
            self.wfile.write(b"550 nobody\r\n" if refuse else b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
            if word == b"QUIT":
                return


def serving(server: Any) -> Iterator[Any]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def smtp() -> Iterator[Any]:
    server: Any = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Smtp)
    server.mail, server.refuses = b"", False
    yield from serving(server)


def test_a_mail_by_smtp(tmp_path: Path, smtp: Any) -> None:
    ways = Ways("smtp", tmp_path, "hpcdl@site.org", f"127.0.0.1:{smtp.server_address[1]}")
    deliver("mailto:me@example.org", LETTER, ways)
    mail = message_from_bytes(smtp.mail, policy=default)
    assert (mail["From"], mail["To"]) == ("hpcdl@site.org", "me@example.org")
    smtp.refuses = True
    with pytest.raises(NotDelivered, match="nobody"):
        deliver("mailto:me@example.org", LETTER, ways)


# --- servers ----------------------------------------------------------------------------------------------------------


class Web(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.asked.append((self.path, dict(self.headers), body))
        self.send_response(server.status)
        if server.status == 302:
            self.send_header("Location", "file:///etc/passwd")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_CONNECT(self) -> None:
        server: Any = self.server
        server.asked.append((self.path, dict(self.headers), b""))
        self.send_error(403)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    server: Any = HTTPServer(("127.0.0.1", 0), Web)
    server.asked, server.status = [], 200
    yield from serving(server)


def test_a_post_and_what_is_no_answer(web: Any, ways: Ways) -> None:
    url = f"http://me:p%40ss@127.0.0.1:{web.server_address[1]}/hook?token=secret"
    deliver(url, LETTER, ways)
    path, headers, body = web.asked[0]
    assert path == "/hook?token=secret"
    assert headers["Authorization"] == "Basic bWU6cEBzcw=="
    assert headers["Idempotency-Key"] == "inst-7"
    assert json.loads(body) == json.loads(LETTER.body)
    for status, why in ((500, "answered 500"), (302, "redirects are not followed"), (404, "answered 404")):
        web.status = status
        with pytest.raises(NotDelivered, match=why) as raised:
            deliver(url, LETTER, ways)
        assert "secret" not in str(raised.value)
        assert "p%40ss" not in str(raised.value)
    assert len(web.asked) == 4


def test_a_proxy(web: Any, ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's, with its user and password; a URL with TLS gets a tunnel, or the word of who opens none."""
    port = web.server_address[1]
    monkeypatch.setenv("http_proxy", f"http://you:else@127.0.0.1:{port}")
    monkeypatch.setenv("https_proxy", f"127.0.0.1:{port}")
    deliver("http://me:p@far.example/hook?a=b", LETTER, ways)
    path, headers, body = web.asked.pop()
    assert path == "http://far.example/hook?a=b"
    assert headers["Host"] == "far.example"
    assert headers["Proxy-Authorization"] == "Basic eW91OmVsc2U="
    assert headers["Authorization"] == "Basic bWU6cA=="
    assert json.loads(body) == json.loads(LETTER.body)
    with pytest.raises(NotDelivered, match=rf"https://far.example/…: the proxy 127.0.0.1:{port} answered 403"):
        deliver("https://far.example/hook", LETTER, ways)
    path, headers, _ = web.asked.pop()
    assert (path, headers["Host"]) == ("far.example:443", "far.example:443")
    assert not {"Authorization", "Proxy-Authorization"} & set(headers)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    deliver(f"http://127.0.0.1:{port}/hook", LETTER, ways)
    assert web.asked[0][0] == "/hook"


def test_nobody_there(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(NotDelivered, match=r"http://127\.0\.0\.1:\d+/…: .*refused") as raised:
            deliver(f"http://127.0.0.1:{bound.getsockname()[1]}/secret", LETTER, ways)
    assert "/secret" not in str(raised.value)


def test_a_certificate_that_nobody_vouches_for_is_refused(
    tmp_path: Path, ways: Ways, web: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    for path, pem in zip((certificate, key), make_certificate((), now=time.time()), strict=True):
        write_new(path, pem)
    web.socket = server_context(certificate, key).wrap_socket(web.socket, server_side=True)
    web.handle_error = lambda *args: None
    with pytest.raises(NotDelivered, match="CERTIFICATE_VERIFY_FAILED"):
        deliver(f"https://127.0.0.1:{web.server_address[1]}/secret", LETTER, ways)
    assert web.asked == []
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    deliver(f"https://127.0.0.1:{web.server_address[1]}/hook", LETTER, ways)
    assert [path for path, *_ in web.asked] == ["/hook"]


def test_tls_through_a_proxy_is_with_the_server(
    tmp_path: Path, ways: Ways, web: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    for path, pem in zip((certificate, key), make_certificate(("far.example",), now=time.time()), strict=True):
        write_new(path, pem)
    heard: list[bytes] = []

    def tunnel() -> None:
        """To itself: what follows the answer to CONNECT is with the server that was named."""
        peer, _ = listener.accept()
        with peer:
            heard.append(peer.recv(65536))
            peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            with server_context(certificate, key).wrap_socket(peer, server_side=True) as inside:
                heard.append(inside.recv(65536))
                inside.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        thread = threading.Thread(target=tunnel)
        thread.start()
        deliver("https://far.example/hook", LETTER, ways)
        thread.join()
    assert heard[0].startswith(b"CONNECT far.example:443 HTTP/1.1\r\nHost: far.example:443\r\n")
    assert heard[1].startswith(b"POST /hook HTTP/1.1\r\nHost: far.example\r\n")
    assert heard[1].endswith(LETTER.body)


@pytest.mark.parametrize("line", [b"", b"HTTP/1.1 "])
def test_a_server_that_talks_on_without_saying_anything_is_left(
    ways: Ways, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    """Each byte of it comes within the time that a server may be silent."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(delivery, "ANSWER_S", 0.5)
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        peer, _ = listener.accept()
        with peer:
            try:
                peer.sendall(line)
                while True:
                    peer.sendall(b"x")
                    time.sleep(0.02)
            except OSError:
                pass  # it was left

    dripping = threading.Thread(target=drip)
    dripping.start()
    with pytest.raises(NotDelivered):
        deliver(f"http://127.0.0.1:{listener.getsockname()[1]}/hook", LETTER, ways)
    dripping.join()
    listener.close()
