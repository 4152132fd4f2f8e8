"""The client's end of `hpcdl exec` and `attach`: no signal is lost, whenever and in whichever thread it comes, and the
terminal is as before."""

from __future__ import annotations

import base64
import os
import pty
import signal
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from websockets.sync.server import ServerConnection, serve

from hpcdl.cli import exec
from hpcdl.cli.exec import ShellExit
from hpcdl.wire.access import AccessFile, write_access
from hpcdl.wire.messages import (
    Message,
    ShellDataMessage,
    ShellEndMessage,
    ShellOpenMessage,
    ShellTakenMessage,
    ShellToldMessage,
    decode_message,
    encode_message,
)
from hpcdl.wire.private_files import make_private_folder, write_new
from hpcdl.wire.tls import make_certificate, server_context

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGCONT)


class Other:
    """The daemon's end of one session."""

    def __init__(self, socket: ServerConnection) -> None:
        self._socket = socket

    def hear(self) -> Message:
        return decode_message(self._socket.recv(60.0))

    def say(self, message: Message) -> None:
        self._socket.send(encode_message(message))

    def print(self, data: bytes) -> None:
        self.say(ShellDataMessage("", 1, base64.b64encode(data).decode()))

    def signal(self, number: signal.Signals) -> None:
        """To this thread, which is not the one that waits."""
        signal.pthread_kill(threading.get_ident(), number)


Talk = Callable[[Other], object]


class Stage:
    """A listener for one client. `run`: the client, here; meanwhile `talk` is the daemon's end."""

    def __init__(self, home: Path) -> None:
        self._home = home
        tls = home / "tls"
        make_private_folder(home)
        make_private_folder(tls)
        pem, key = make_certificate(["localhost"], now=time.time())
        write_new(tls / "certificate.pem", pem)
        write_new(tls / "key.pem", key)
        context = server_context(tls / "certificate.pem", tls / "key.pem")
        self._server = serve(self._serve, "127.0.0.1", 0, ssl=context, open_timeout=60.0)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        port = self._server.socket.getsockname()[1]
        write_access(home, AccessFile("i", "127.0.0.1", port, pem.decode(), "t" * 32, pid=1, fence=1))
        self._talk: Talk = Other.hear
        self._failed: list[BaseException] = []

    def _serve(self, socket: ServerConnection) -> None:
        try:
            self._talk(Other(socket))
        except BaseException as error:
            self._failed.append(error)

    def run(self, talk: Talk, terminal: bool = False) -> ShellExit:
        self._talk = talk
        ended = exec.run(self._home, 7, ("ls",), "", terminal)
        assert self._failed == [], ended
        return ended

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    read, write = os.pipe()
    monkeypatch.setattr(exec, "STDIN", read)
    before = [signal.getsignal(number) for number in HANDLED]
    opened = Stage(tmp_path / "home")
    yield opened
    opened.close()
    for end in (read, write):
        os.close(end)
    assert [signal.getsignal(number) for number in HANDLED] == before
    assert signal.set_wakeup_fd(-1) == -1


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The client's, of 31 rows; afterwards it is as it was."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (31, 71))
    monkeypatch.setattr(exec, "STDIN", theirs)
    monkeypatch.setattr(exec, "STDOUT", theirs)
    before = termios.tcgetattr(theirs)
    yield ours
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


def test_ctrl_c_in_whichever_thread(stage: Stage) -> None:
    heard: list[Message] = []

    def talk(other: Other) -> None:
        assert isinstance(other.hear(), ShellOpenMessage)
        for _ in range(2):
            other.signal(signal.SIGINT)
            heard.append(other.hear())
        other.signal(signal.SIGINT)

    assert stage.run(talk) == ShellExit(130)
    assert heard == [ShellToldMessage("", "INT"), ShellToldMessage("", "TERM")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_it_leaves_when_it_is_told_to(stage: Stage, number: signal.Signals) -> None:
    def talk(other: Other) -> None:
        other.hear()
        other.signal(number)

    assert stage.run(talk) == ShellExit(128 + number)


def test_nohup(stage: Stage) -> None:
    def talk(other: Other) -> None:
        other.hear()
        other.signal(signal.SIGHUP)
        other.signal(signal.SIGINT)
        assert other.hear() == ShellToldMessage("", "INT")
        other.say(ShellEndMessage("", 3))

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert stage.run(talk) == ShellExit(3)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_output_that_nobody_reads_keeps_no_signal_waiting(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    monkeypatch.setattr(exec, "STDOUT", write)

    def talk(other: Other) -> None:
        other.hear()
        other.print(b"x")
        assert other.hear() == ShellTakenMessage("", write, 1)
        for _ in range(8):  # a pipe holds 64 KiB
            other.print(b"x" * (32 << 10))
        while isinstance(other.hear(), ShellTakenMessage):
            other.signal(signal.SIGINT)
        other.signal(signal.SIGTERM)

    monkeypatch.setattr(Other, "print", lambda other, data: other.say(_printed(write, data)))
    assert stage.run(talk) == ShellExit(143)
    for end in (read, write):
        os.close(end)


def _printed(stream: int, data: bytes) -> ShellDataMessage:
    return ShellDataMessage("", stream, base64.b64encode(data).decode())


def test_output_that_cannot_be_written(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "wb") as full:
        monkeypatch.setattr(exec, "STDOUT", full.fileno())

        def talk(other: Other) -> None:
            other.hear()
            other.say(_printed(full.fileno(), b"x"))

        ended = stage.run(talk)
    assert ended.code is None
    assert ended.why.startswith("what the command prints cannot be written here (No space left on device)")


def test_signals_before_the_command_is_opened(stage: Stage, terminal: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come while the terminal is being made raw: none is lost, none comes before what opens the command."""
    make_raw = exec._make_raw
    heard: list[Message] = []

    def raw() -> None:
        make_raw()
        os.kill(os.getpid(), signal.SIGINT)

    def sized() -> tuple[int, int]:
        monkeypatch.setattr(exec, "_size", size)
        found = size()
        termios.tcsetwinsize(terminal, (50, 60))
        os.kill(os.getpid(), signal.SIGWINCH)
        return found

    def talk(other: Other) -> None:
        heard.extend(other.hear() for _ in range(3))
        other.say(ShellEndMessage("", 0))

    size = exec._size
    monkeypatch.setattr(exec, "_make_raw", raw)
    monkeypatch.setattr(exec, "_size", sized)
    assert stage.run(talk, terminal=True) == ShellExit(0)
    opened, interrupted, resized = heard
    assert isinstance(opened, ShellOpenMessage)
    assert (opened.rows, opened.columns) == (31, 71)
    assert (interrupted, resized) == (ShellToldMessage("", "INT"), ShellToldMessage("", "", 50, 60))


def test_told_to_leave_before_the_command_is_opened(
    stage: Stage, terminal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_raw = exec._make_raw

    def raw() -> None:
        make_raw()
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(exec, "_make_raw", raw)
    assert stage.run(lambda other: None, terminal=True) == ShellExit(143)


def test_signals_while_it_ends(stage: Stage, terminal: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come just when the terminal is put back: it is put back all the same."""
    before = termios.tcsetattr

    def put_back(fd: int, when: int, attributes: list[object]) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            os.kill(os.getpid(), number)
        before(fd, when, attributes)  # type: ignore[arg-type]

    def talk(other: Other) -> None:
        other.hear()
        monkeypatch.setattr(termios, "tcsetattr", put_back)
        other.say(ShellEndMessage("", 6))

    assert stage.run(talk, terminal=True) == ShellExit(6)


def test_a_terminal_that_another_made_its_own_while_this_was_stopped(stage: Stage, terminal: int) -> None:
    theirs = exec.STDIN
    usual = termios.tcgetattr(theirs)

    def talk(other: Other) -> None:
        other.hear()
        termios.tcsetattr(theirs, termios.TCSANOW, usual)
        other.signal(signal.SIGCONT)
        assert other.hear() == ShellToldMessage("", "", 31, 71)
        assert not termios.tcgetattr(theirs)[3] & (termios.ICANON | termios.ECHO)
        other.say(ShellEndMessage("", 0))

    assert stage.run(talk, terminal=True) == ShellExit(0)


def test_input_that_another_process_was_faster_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.write(write, b"hm")
    os.close(write)
    monkeypatch.setattr(exec, "STDIN", read)
    read_bytes, refused = os.read, [True]

    def read_once_more(fd: int, size: int) -> bytes:
        if fd == read and refused:
            refused.clear()
            raise BlockingIOError
        return read_bytes(fd, size)

    monkeypatch.setattr(os, "read", read_once_more)
    streams = exec._Streams(terminal=False)
    streams.read_input()
    assert streams.outgoing.get_nowait() == _printed(read, b"hm")
    assert streams.outgoing.get_nowait() == ShellDataMessage("", read, "")
    streams.stop()
    os.close(read)
