"""`hpcdl exec` and `attach` as far as they go without a daemon's WebSocket: wrong usage, no terminal, no daemon."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hpcdl.cli import exec
from hpcdl.client import ClientError
from hpcdl.wire.messages import ShellDataMessage
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon


@pytest.mark.parametrize(
    ("argv", "instead"),
    [
        (("attach", 7), "hpcdl exec 7 -- COMMAND runs a command without one"),
        (("exec", "--tty", 7, "--", "top"), "hpcdl exec 7 -- ... runs it without one"),
    ],
)
def test_there_is_no_terminal(hpcdl: Run, argv: tuple[object, ...], instead: str) -> None:
    done = hpcdl(*argv)
    assert (done.code, done.out, done.err) == (1, "", f"hpcdl: stdin and stdout are no terminal: {instead}\n")


def test_a_command_must_be_named(hpcdl: Run) -> None:
    assert hpcdl("exec", 7).code == 2
    done = hpcdl("exec", 7, "ls", "-l")
    assert (done.code, "No such option" in done.err) == (2, True)
    done = hpcdl("exec", 7, "--", "")
    assert (done.code, done.err) == (2, "hpcdl: the command is empty (see hpcdl exec --help)\n")


def test_a_node_and_a_rank_exclude_each_other(hpcdl: Run) -> None:
    done = hpcdl("exec", "--node", "n1", "--rank", 1, 7, "--", "true")
    assert (done.code, "--node and --rank exclude each other" in done.err) == (2, True)
    assert hpcdl("exec", "--rank", -1, 7, "--", "true").code == 2


def test_no_daemon(hpcdl: Run, home: Path) -> None:
    done = hpcdl("exec", 7, "--", "true")
    assert (done.code, done.out) == (1, "")
    assert done.err == f"hpcdl: no daemon is running for {home}: start one with: hpcdl daemon start\n"


def test_no_such_job(hpcdl: Run, fake: FakeDaemon) -> None:
    done = hpcdl("exec", 7, "--", "true")
    assert (done.code, done.out) == (1, "")
    assert "no job 7" in done.err


def test_a_daemon_that_knows_no_shells(fake: FakeDaemon, home: Path) -> None:
    with pytest.raises(ClientError, match=r"the daemon (refused with status|of .* cannot be reached)"):
        exec.run(home, 1, ("true",), "", terminal=False)


def test_the_window_of_a_stream_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read from stdin stays within what the other end said it took."""
    read, write = os.pipe()
    monkeypatch.setattr(exec, "STDIN", read)
    streams = exec._Streams(terminal=False)
    try:
        os.write(write, b"x" * 60_000)
        thread = threading.Thread(target=streams.read_input)
        thread.start()
        first, second = streams.outgoing.get(timeout=60), streams.outgoing.get(timeout=60)
        assert [len(each.data) for each in (first, second)] == [43692, 36312]  # type: ignore[union-attr]
        os.close(write)
        assert streams.outgoing.get(timeout=60) == ShellDataMessage("", read, "")
        thread.join(60)
        assert not thread.is_alive()
    finally:
        streams.stop()
        os.close(read)
