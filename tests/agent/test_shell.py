"""Commands beside a trainer, with real processes: streams, flow, signals, terminals, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hpcdl.agent import shell as shells_of_one
from hpcdl.agent.orphans import Orphans
from hpcdl.agent.shell import MOST, Shell, Shells, ShellTarget, beside, end_left_commands, place
from hpcdl.agent.supervisor.start_file import Start
from hpcdl.wire.messages import (
    SHELL_CHUNK,
    SHELL_WINDOW,
    ShellDataMessage,
    ShellEndMessage,
    ShellMessage,
    ShellOpenMessage,
    ShellTakenMessage,
    ShellToldMessage,
)
from tests.support.waiting import until_async

DEADLINE_S = 180.0


class Client:
    """The other end of one session. `takes` false: it says of nothing that it took it."""

    def __init__(self, folder: Path, *argv: str, rows: int = 0, takes: bool = True, node: str = "n1") -> None:
        self.instance = f"i{uuid.uuid4().hex[:10]}"
        self.tag = f"{self.instance}:7:2:{node}"
        self.takes = takes
        self.said: dict[int, bytes] = {1: b"", 2: b""}
        self.taken = 0
        self.over: set[int] = set()
        self.ended: ShellEndMessage | None = None
        env = {"PATH": os.environ["PATH"], "PS1": "$ "}
        opened = ShellOpenMessage(argv, "x", 7, 2, "n1", rows, 80 if rows else 0, "xterm")
        self.shell = Shell(opened, ShellTarget(self.tag, str(folder), env), self.hear, Orphans())

    def hear(self, message: ShellMessage) -> None:
        match message:
            case ShellDataMessage(stream=stream, data=data):
                found = base64.b64decode(data)
                assert len(found) <= SHELL_CHUNK
                self.said[stream] += found
                if not found:
                    self.over.add(stream)
                elif self.takes:
                    self.take(stream, len(found))
            case ShellTakenMessage(stream=0, size=size):
                self.taken += size
            case ShellEndMessage():
                self.ended = message

    def take(self, stream: int, size: int) -> None:
        asyncio.get_running_loop().call_soon(self.shell.take, ShellTakenMessage("x", stream, size))

    def give(self, data: bytes) -> None:
        self.shell.take(ShellDataMessage("x", 0, base64.b64encode(data).decode()))

    async def until(self, condition: Callable[[], object]) -> None:
        def story() -> str:
            return str((self.said[1][-500:], self.said[2][-500:], self.ended))

        await until_async(condition, "what the test expects of it", story=story)


def converse(client: Client, act: Callable[[Client], Awaitable[object]] | None = None) -> ShellEndMessage:
    """Runs it to its end; nothing of it is left then."""

    async def run() -> None:
        life = asyncio.create_task(client.shell.run())
        if act is not None:
            await act(client)
        await asyncio.wait_for(life, DEADLINE_S)

    asyncio.run(run())
    assert client.ended is not None
    assert client.shell.gone.is_set()
    assert beside(client.tag) == []
    return client.ended


def test_what_it_prints_and_its_exit_code(tmp_path: Path) -> None:
    client = Client(tmp_path, "sh", "-c", 'pwd; echo bad >&2; echo "${HPCDL_TAG-none}"; exit 7')
    assert converse(client) == ShellEndMessage("x", 7, "")
    assert client.said == {1: f"{tmp_path}\nnone\n".encode(), 2: b"bad\n"}
    assert client.over == {1, 2}


@pytest.mark.parametrize(
    ("argv", "code", "why"),
    [
        (("no-such-command",), 127, "command not found: no-such-command"),
        (("/",), 126, "/ cannot be started"),
        (("sh", "-c", "kill -9 $$"), 137, ""),
    ],
)
def test_how_it_may_end(tmp_path: Path, argv: tuple[str, ...], code: int, why: str) -> None:
    ended = converse(Client(tmp_path, *argv))
    assert (ended.code, ended.why.startswith(why), bool(ended.why)) == (code, True, bool(why))


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    ended = converse(Client(tmp_path / "gone", "true"))
    assert (ended.code, ended.why) == (None, f"the job's folder is gone: {tmp_path / 'gone'}")


def test_bytes_go_both_ways_and_the_end_of_input_too(tmp_path: Path) -> None:
    data = os.urandom(3 * SHELL_WINDOW)
    client = Client(tmp_path, "cat")

    async def feed(client: Client) -> None:
        for begin in range(0, len(data), SHELL_CHUNK):
            await client.until(lambda begin=begin: begin - client.taken <= SHELL_WINDOW - SHELL_CHUNK)  # type: ignore[misc]
            client.give(data[begin : begin + SHELL_CHUNK])
        client.give(b"")

    assert converse(client, feed).code == 0
    assert client.said[1] == data
    assert client.taken == len(data)


def test_input_that_nobody_reads_is_taken_all_the_same(tmp_path: Path) -> None:
    client = Client(tmp_path, "sh", "-c", "exec <&-; echo closed; until [ -e go ]; do sleep 0.05; done")

    async def feed(client: Client) -> None:
        await client.until(lambda: client.said[1])
        for _ in range(4):
            client.give(b"x" * SHELL_CHUNK)
        await client.until(lambda: client.taken == 4 * SHELL_CHUNK)
        (tmp_path / "go").touch()

    assert converse(client, feed).code == 0


def test_no_more_is_sent_than_is_taken(tmp_path: Path) -> None:
    client = Client(tmp_path, "sh", "-c", "yes", takes=False)

    async def look(client: Client) -> None:
        await client.until(lambda: len(client.said[1]) == SHELL_WINDOW)
        await asyncio.sleep(0.1)  # nothing tells that nothing comes; on a slow machine this sees less, and never fails
        assert len(client.said[1]) == SHELL_WINDOW
        client.take(1, 1000)
        await client.until(lambda: len(client.said[1]) == SHELL_WINDOW + 1000)
        client.take(1, 1 << 40)  # never more than the window
        await client.until(lambda: len(client.said[1]) == 2 * SHELL_WINDOW + 1000)
        client.shell.end("enough")

    assert converse(client, look) == ShellEndMessage("x", None, "enough")


def test_more_input_than_was_asked_for_ends_it(tmp_path: Path) -> None:
    client = Client(tmp_path, "sleep", "600")

    async def flood(client: Client) -> None:
        while client.ended is None:
            client.give(b"x" * SHELL_CHUNK)
            await asyncio.sleep(0)

    assert converse(client, flood).why == "more input came than was asked for"


def test_rubbish_for_input_ends_it(tmp_path: Path) -> None:
    client = Client(tmp_path, "sleep", "600")

    async def spoil(client: Client) -> None:
        client.shell.take(ShellDataMessage("x", 0, "no base64!"))

    assert converse(client, spoil).why == "its input was not understood"


def test_signals_reach_its_whole_group(tmp_path: Path) -> None:
    client = Client(tmp_path, "sh", "-c", "trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.05; done")

    async def interrupt(client: Client) -> None:
        await client.until(lambda: b"ready" in client.said[1])
        client.shell.take(ShellToldMessage("x", "KILL"))  # not one that is passed on
        client.shell.take(ShellToldMessage("x", "INT"))

    assert converse(client, interrupt).code == 3
    assert client.said[1] == b"ready\ncaught\n"


def test_a_signal_that_comes_before_it_has_started(tmp_path: Path) -> None:
    client = Client(tmp_path, "sleep", "600")
    client.shell.take(ShellToldMessage("x", "INT"))
    assert converse(client).code == 130


def test_a_size_that_comes_before_it_has_started(tmp_path: Path) -> None:
    client = Client(tmp_path, "sh", "-c", "read x; stty size", rows=33)
    client.shell.take(ShellToldMessage("x", "", 50, 101))
    client.give(b"\n")
    assert converse(client).code == 0
    assert client.said[1].endswith(b"50 101\r\n")


STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
print("ready", flush=True)
time.sleep(600)
"""


def test_what_does_not_want_to_end_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    client = Client(tmp_path, sys.executable, "-c", STUBBORN)

    async def end(client: Client) -> None:
        await client.until(lambda: client.said[1].count(b"ready") == 2)
        assert len(beside(client.tag)) == 2
        client.shell.end("job 7.2 is being suspended")

    assert converse(client, end) == ShellEndMessage("x", None, "job 7.2 is being suspended")


def test_what_it_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    client = Client(tmp_path, "sh", "-c", "setsid sleep 600 & echo done")
    assert converse(client).code == 0
    assert client.said[1] == b"done\n"


def test_a_terminal(tmp_path: Path) -> None:
    client = Client(tmp_path, "sh", "-i", rows=33)

    async def talk(client: Client) -> None:
        client.give(b"stty size; tty >/dev/null && echo a $TERM\n")
        await client.until(lambda: b"33 80" in client.said[1] and b"a xterm\r" in client.said[1])
        client.shell.take(ShellToldMessage("x", "", 50, 101))
        client.give(b"stty size\n")
        await client.until(lambda: b"50 101" in client.said[1])
        client.give(b"sleep 600\n")
        await client.until(lambda: any(b"sleep" in _command(each.pid) for each in beside(client.tag)))
        client.give(b"\x03")
        client.give(b"exit 9\n")

    assert converse(client, talk).code == 9


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_terminal_whose_input_ends(tmp_path: Path) -> None:
    client = Client(tmp_path, "cat", rows=10)

    async def end(client: Client) -> None:
        client.give(b"hm\n")
        await client.until(lambda: client.said[1].count(b"hm\r\n") == 2)
        client.give(b"")

    assert converse(client, end).code == 0


def test_a_terminal_on_which_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shells_of_one, "WATCH_S", 0.05)
    monkeypatch.setattr(shells_of_one, "IDLE_S", 0.2)
    assert converse(Client(tmp_path, "sleep", "600", rows=10)).why.startswith("nothing was typed and nothing printed")


@pytest.mark.parametrize("node", ["n1", "rack:4:n1"])
def test_what_an_agent_that_was_killed_left_is_swept(tmp_path: Path, node: str) -> None:
    client = Client(tmp_path, "sleep", "600", node=node)

    async def look(client: Client) -> None:
        await client.until(lambda: beside(client.tag))
        assert end_left_commands(client.instance, "n2", tmp_path) == 0
        assert end_left_commands("another", "n1", tmp_path) == 0
        assert end_left_commands(client.instance, "rack", tmp_path) == 0
        assert end_left_commands(client.instance, node, tmp_path) == 1

    assert converse(client, look).code == 137


# --- those of a node --------------------------------------------------------------------------------------------------


def opened(number: int = 0) -> ShellOpenMessage:
    return ShellOpenMessage(("sleep", "600"), f"x{number}", 7, 2)


async def _drained(shells: Shells) -> list[ShellMessage]:
    found = []
    while not shells.outgoing.empty():
        found.append(shells.outgoing.get_nowait())
    return found


def test_those_beside_an_incarnation_go_with_it(tmp_path: Path) -> None:
    tag = f"i{uuid.uuid4().hex[:10]}:7:2:n1"

    async def where() -> ShellTarget | str:
        return ShellTarget(tag, str(tmp_path), {"PATH": os.environ["PATH"]})

    async def run() -> None:
        shells = Shells(Orphans(), tmp_path)
        shells.open(opened(), where)
        shells.open(opened(), where)  # comes twice
        await until_async(lambda: beside(tag), "the command")
        await asyncio.wait_for(shells.gone((7, 3)), DEADLINE_S)
        shells.end((7, 3), "another")
        assert len(beside(tag)) == 1
        shells.end((7, 2), "job 7.2 has ended")
        await asyncio.wait_for(shells.gone((7, 2)), DEADLINE_S)
        assert beside(tag) == []
        last = None
        while not isinstance(last, ShellEndMessage):
            last = await asyncio.wait_for(shells.outgoing.get(), DEADLINE_S)
        assert last == ShellEndMessage("x0", None, "job 7.2 has ended")

    asyncio.run(run())


def test_a_daemon_that_goes_away_ends_them_all_also_those_that_only_begin(tmp_path: Path) -> None:
    tag = f"i{uuid.uuid4().hex[:10]}:7:2:n1"
    found = asyncio.Event()

    async def where() -> ShellTarget | str:
        await found.wait()
        return ShellTarget(tag, str(tmp_path), {"PATH": os.environ["PATH"]})

    async def run() -> None:
        shells = Shells(Orphans(), tmp_path)
        shells.open(opened(), where)
        await asyncio.sleep(0)
        shells.parted()
        found.set()
        await asyncio.wait_for(shells.close(), DEADLINE_S)
        assert (beside(tag), await _drained(shells)) == ([], [])

    asyncio.run(run())


def test_there_are_not_too_many(tmp_path: Path) -> None:
    async def nowhere() -> ShellTarget | str:
        await asyncio.Event().wait()
        return ""

    async def run() -> None:
        shells = Shells(Orphans(), tmp_path)
        for number in range(MOST + 1):
            shells.open(opened(number), nowhere)
        (refusal,) = await _drained(shells)
        assert refusal == ShellEndMessage(
            f"x{MOST}", None, f"{MOST} commands and shells are open on this node: end one of them first"
        )

    asyncio.run(run())


def test_where_it_runs(tmp_path: Path) -> None:
    folder = tmp_path / "7.2"
    folder.mkdir(mode=0o700)
    env = {"A": "b", "HPCDL_JOB": "7", "HPCDL_CHECKPOINT_DIR": "/c", "HPCDL_TAG": "t", "HPCDL_SOCKET": "/s"}
    start = Start("t", 7, 2, 1, "n1", ("train",), "/work", env, "/log", {"HPCDL_NODES": "n1"}, checkpoint_dir="/c")
    (folder / "start.json").touch(0o600)
    (folder / "start.json").write_bytes(start.encode())
    found = place(folder, "i:7:2:n1", {"CUDA_VISIBLE_DEVICES": "GPU-1"})
    assert (found.tag, found.cwd) == ("i:7:2:n1", "/work")
    assert found.env == {
        "A": "b",
        "HPCDL_JOB": "7",
        "HPCDL_JOB_CHECKPOINT_DIR": "/c",
        "HPCDL_NODES": "n1",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
    }
    folder.chmod(0o755)
    with pytest.raises(ValueError, match="is open to others"):
        place(folder, "i:7:2:n1", {})
