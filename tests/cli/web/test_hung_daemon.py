"""`hpcdl web` where the daemon accepts and never answers: other pages are drawn, and a signal ends it."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hpcdl.cli.web import pages
from hpcdl.cli.web.pages import Pages
from hpcdl.client import Client, DaemonAway
from hpcdl.wire.access import AccessFile, write_access
from hpcdl.wire.tls import make_certificate
from tests.cli.web.site import SOON_S, Visitor, host_of, site
from tests.report.test_live import answer, gpu, node, row


class _Daemon:
    """The clients of a daemon; `answers` says what each question gets."""

    def __init__(self, answers: Callable[[str], dict[str, Any]]) -> None:
        self.answers = answers
        self.questions: list[str] = []

    def connect(self, home: Path) -> Client:
        daemon = self

        class Asking(Client):
            def get(self, path: str, *, wait_s: float = 0.0) -> dict[str, Any]:
                daemon.questions.append(path)
                return daemon.answers(path)

        return Asking(home)


def overview() -> dict[str, Any]:
    running = row(1, name="resnet", state="RUNNING", gpus=1, on=["n1"])
    return answer(last=0, nodes=[node("n1", gpu(0, 1))], running=[running], waiting=[], names={"1": "resnet"})


def test_a_page_asks_no_more_after_a_question_without_answer(tmp_path: Path) -> None:
    def hangs(path: str) -> dict[str, Any]:
        if path.startswith("/v1/overview"):
            return overview()
        raise DaemonAway("the daemon has not answered for 10 s")

    daemon = _Daemon(hangs)
    found = Pages(lambda: daemon.connect(tmp_path), tmp_path)
    assert "the daemon has not answered for 10 s" in found.job(1)
    assert daemon.questions[1:] == ["/v1/jobs/1"]
    daemon.questions.clear()
    daemon.answers = lambda path: hangs("")
    found._asked_at = -pages.FRESH_S
    assert 'class="stale"' in found.job(1)
    assert [each.partition("?")[0] for each in daemon.questions] == ["/v1/overview"]


def test_a_page_does_not_wait_for_the_questions_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "TURN_S", 0.0)
    asks, goes_on = threading.Event(), threading.Event()
    hung = "none"

    def answers(path: str) -> dict[str, Any]:
        if path.startswith(hung):
            asks.set()
            assert goes_on.wait(SOON_S)
        return overview() if path.startswith("/v1/overview") else {}

    daemon = _Daemon(answers)
    found = Pages(lambda: daemon.connect(tmp_path), tmp_path)
    assert "resnet" in found.overview()
    for hangs, stale in (("/v1/jobs", False), ("/v1/overview", True)):
        hung = hangs
        asks.clear()
        goes_on.clear()
        found._asked_at = -pages.FRESH_S if stale else time.monotonic() + SOON_S
        thread = threading.Thread(target=found.jobs)
        thread.start()
        try:
            assert asks.wait(SOON_S)
            text = found.overview()
            assert "resnet" in text
            assert ("The daemon has not answered yet." in text) == stale
        finally:
            goes_on.set()
            thread.join(SOON_S)
        assert not thread.is_alive()


def test_a_signal_ends_it_while_the_daemon_hangs(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    certificate, _ = make_certificate(["localhost"], now=time.time())
    patient = "from hpcdl.cli.web import command\ncommand.ANSWER_S = 1e5"
    with socket.create_server(("127.0.0.1", 0)) as hung, site(home, first=patient) as found:
        hung.settimeout(SOON_S)
        port = hung.getsockname()[1]
        write_access(home, AccessFile("d", "127.0.0.1", port, certificate.decode(), "t" * 40, pid=1, fence=1))
        link = found.next_link()
        assert b"until a daemon answers" in found.printed
        hung.setblocking(False)  # it has asked whether there is a daemon, and waits no more
        with suppress(BlockingIOError):
            while True:
                hung.accept()[0].close()
        hung.settimeout(SOON_S)
        assert found.socket is not None
        known = Visitor(found.socket, host_of(link))
        assert known.open(link).status == 200
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as browser:
            browser.connect(str(found.socket))
            browser.sendall(f"GET / HTTP/1.1\r\nHost: localhost\r\nCookie: {known.cookie}\r\n\r\n".encode())
            asked, _ = hung.accept()
            with asked:
                found.process.terminate()
                assert found.process.wait(SOON_S) == 128 + 15
        assert found.process.stdout is not None
        assert b"Traceback" not in found.process.stdout.read()
    assert not (home / "web.sock").exists()
