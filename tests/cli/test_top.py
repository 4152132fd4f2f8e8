"""`hpcdl top` on a terminal: keys, sizes, a daemon that goes, and what is left of the terminal afterwards."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from hpcdl.cli.top import TopView, _Screen
from hpcdl.client import Client
from hpcdl.wire.readable import readable
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon
from tests.cli.test_process import SOON_S, argv, environment
from tests.support.waiting import until


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, fake: FakeDaemon, *words: str, **more: str) -> None:
        self.ours, self.its = pty.openpty()
        self.resize(80, 24)
        self.before = termios.tcgetattr(self.its)
        self.process = subprocess.Popen(
            argv("top", *words),
            env=environment(fake.home, TERM="xterm", **more),
            stdin=self.its,
            stdout=self.its,
            stderr=self.its,
            start_new_session=True,
        )
        self.text = b""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.its, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: bytes) -> None:
        self.text = b""
        os.write(self.ours, keys)

    def until(self, *wanted: bytes) -> None:
        def shown() -> bool:
            if readable([self.ours], 0.5):
                self.text += os.read(self.ours, 65536)
            return all(each in self.text for each in wanted)

        if not all(each in self.text for each in wanted):  # what comes after them is not read yet
            until(shown, repr(wanted), story=lambda: repr(self.text))

    def frame(self) -> bytes:
        """The first whole one of what comes: the end of an earlier one may come before it."""
        self.until(b"\x1b[H")
        self.text = self.text.partition(b"\x1b[H")[2]
        self.until(b"\x1b[J")
        return self.text.partition(b"\x1b[J")[0]


@contextmanager
def terminal(fake: FakeDaemon, *words: str, **more: str) -> Iterator[Terminal]:
    found = Terminal(fake, *words, **more)
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.process.kill()
        found.process.wait(SOON_S)
        os.close(found.ours)
        os.close(found.its)


def test_keys_on_a_terminal(jobs: FakeDaemon) -> None:
    with terminal(jobs, "--every", "0.2") as top:
        top.until(b"\x1b[?1049h", b"resnet", b"\x1b[32mRUNNING\x1b[0m", b"q quit", b"[id]")
        top.press(b"s")
        top.until(b"[state]")
        top.press(b"r")
        top.until(b"[state reversed]")
        top.press(b"jj")
        top.until(b"\x1b[7m")
        top.press(b"\r")
        top.until(b"job 1 holds n1:0")
        top.press(b"\r")
        top.until(b"ID  NAME")
        top.press(b" ")
        top.until(b"paused")
        jobs.world.jobs[1]["state"] = "SUSPENDING"
        top.press(b" ")
        top.until(b"SUSPENDING")
        top.press(b"q")
        top.until(b"\x1b[?1049l")
        assert top.process.wait(SOON_S) == 0
        assert termios.tcgetattr(top.its) == top.before


def test_keys_that_act_on_jobs_and_follow_output(jobs: FakeDaemon) -> None:
    folder = jobs.home / "logs" / "1"
    folder.mkdir(parents=True)
    (folder / "1.n1.log").write_bytes(b"epoch 1\r50 %\rfirst line\n\xff second\n")
    with terminal(jobs, "--every", "0.2") as top:
        top.until(b"resnet", b"? help")
        top.press(b"?")
        top.until(b"keys of hpcdl top")
        top.press(b"\x1b[A")
        top.until(b"ID  NAME")
        top.press(b"jl")
        top.until(b"job 1, attempt 1 on n1", b"first line", b"second")
        with open(folder / "1.n1.log", "ab") as log:
            log.write(b"third")
        top.until(b"third")
        top.press(b"q")
        top.until(b"ID  NAME")
        top.press(b"x")
        top.until(b"cancel job 1 (resnet)? y or n")
        top.press(b"n")
        top.until(b"? help")
        assert jobs.world.jobs[1]["state"] == "RUNNING"
        top.press(b"z")
        top.until(b"1: SUSPENDED now")
        top.press(b"xy")
        top.until(b"1: CANCELLED now")
        assert jobs.world.jobs[1]["state"] == "CANCELLED"
        jobs.answers["/v1/jobs/verb"] = (409, b'{"schema":1,"error":"no, %s","code":"x"}' % (b"y" * 300))
        top.press(b"u")
        top.until(b"no, yyy")
        top.press(b"q")
        top.until(b"\x1b[?1049l")
        assert top.process.wait(SOON_S) == 0


def test_another_size_and_no_colour(jobs: FakeDaemon) -> None:
    with terminal(jobs, "--every", "600", NO_COLOR="1") as top:
        top.until(b"q quit")
        assert b"\x1b[32m" not in top.text
        top.text = b""
        top.resize(40, 12)
        os.kill(top.process.pid, signal.SIGWINCH)
        drawn = top.frame().split(b"\r\n")
        assert len(drawn) == 12
        assert all(len(line.replace(b"\x1b[K", b"").decode()) <= 40 for line in drawn)
        top.process.send_signal(signal.SIGTERM)
        top.until(b"\x1b[?1049l")
        assert top.process.wait(SOON_S) == 128 + signal.SIGTERM
        assert termios.tcgetattr(top.its) == top.before


def test_a_daemon_that_goes_is_told_and_waited_for(jobs: FakeDaemon) -> None:
    with terminal(jobs, "--every", "0.2") as top:
        top.until(b"resnet")
        top.text = b""
        jobs.kill()
        top.until(b"looking again")
        jobs.world.jobs[1]["name"] = "after"
        jobs.start()
        top.until(b"after", b"q quit")
        top.process.send_signal(signal.SIGINT)
        top.until(b"\x1b[?1049l")
        assert top.process.wait(SOON_S) == 130


def test_without_a_terminal_it_is_a_snapshot(jobs: FakeDaemon, hpcdl: Run) -> None:
    done = hpcdl("top")
    assert done.code == 0
    assert "\x1b" not in done.out
    assert "hpcdl on h (pid 4711)" in done.out
    assert "resnet" in done.out
    assert "tilisation" not in done.out, "what GPUs do now is their load, here and on the page"
    assert done.out == hpcdl("top", "--once").out
    assert hpcdl("top", "--quiet").out.split() == ["1", "2"]
    value = hpcdl("top", "--json").value
    assert [each["id"] for each in value["jobs"]] == [1, 2]
    assert value["status"]["daemon"]["pid"] == 4711
    assert value["nodes"][0]["name"] == "n1"
    jobs.kill()
    assert "and no daemon is running" in hpcdl("top").err


def test_a_request_to_end_that_comes_while_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Just when the terminal is put back: it is put back all the same."""
    ours, its = pty.openpty()
    before, put_back = termios.tcgetattr(its), termios.tcsetattr
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    asked: list[int] = []

    def late(fd: int, when: int, attributes: list[Any]) -> None:
        if attributes == before:
            for number in (signal.SIGTERM, signal.SIGHUP):
                asked.append(number)
                os.kill(os.getpid(), number)
        put_back(fd, when, attributes)

    with open(its, closefd=False) as terminal_in:
        monkeypatch.setattr("sys.stdin", terminal_in)
        screen = _Screen(cast(Client, None), cast(TopView, None), 1.0)
        monkeypatch.setattr(screen, "_loop", lambda rounds: None)
        monkeypatch.setattr(termios, "tcsetattr", late)
        screen.run()
        monkeypatch.undo()
    assert asked == [signal.SIGTERM, signal.SIGHUP]
    assert termios.tcgetattr(its) == before
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == handlers
    for end in (ours, its):
        os.close(end)
