"""Output, progress in it, and disks that are full, with real supervisors."""

from __future__ import annotations

import builtins
import os
import re
import resource
import signal
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from hpcdl.agent.supervisor import exit_cause
from hpcdl.agent.supervisor.output import DETAIL_LENGTH, LINE_BYTES, Log, ProgressReader, last_line
from hpcdl.agent.supervisor.packets import ProgressPacket
from hpcdl.agent.supervisor.run_folder import AlreadyStarted, Records
from tests.agent.conftest import ATTACH, Agent
from tests.support.waiting import until


def test_progress_is_read_from_lines(agent: Agent) -> None:
    agent.start(
        """
sys.stdout.buffer.write(b"\\xff\\xfe not text\\nstep 3\\rstep 1,200 of 2000")
sys.stdout.flush()
while not os.path.exists("go"): time.sleep(0.01)
""",
        progress_regex=r"step ([\d,]+)(?: of (?P<total>\d+))?",
        steps=2000,
    )
    client = agent.connect()
    until(lambda: any(each["type"] == "progress" for each in client.poll()), "progress")
    told = [each for each in client.heard if each["type"] == "progress"]
    assert [(each["step"], each["total"]) for each in told] == [(3, 2000)]
    (agent.base / "go").touch()
    assert agent.exit()["step"] == 1200
    assert agent.log.read_bytes() == b"\xff\xfe not text\nstep 3\rstep 1,200 of 2000"


def test_a_torchrun_of_the_users_own_that_starts_the_same_failure_again_is_ended(agent: Agent) -> None:
    agent.start(
        """
for n in range(1000):
    print("python: can't open file 'nope.py': [Errno 2] No such file or directory")
    print(f"E1123 12:00:00.0 7 api.py:1002] failed (exitcode: 2) local_rank: 0 (pid: {n}) of python", flush=True)
    if n == 2: time.sleep(60)
"""
    )
    ended = agent.exit()
    assert ended["detail"].endswith("No such file or directory (3 times alike before their first step)")
    assert (ended["code"], ended["repeats"]) == (2, 3)


def test_much_output_goes_through_whole(agent: Agent) -> None:
    agent.start(
        "out = ''.join(f'line {n} of the output\\n' for n in range(1000))\n"
        "for n in range(300): os.write(1, out.encode())\n"
        "os.write(1, b'step 77\\n')",
        progress_regex=r"step (\d+)",
    )
    assert agent.exit()["step"] == 77
    content = agent.log.read_bytes()
    assert content.count(b"\n") == 300_001
    assert content.endswith(b"line 999 of the output\nstep 77\n")


def test_a_log_ends_at_its_limit(agent: Agent) -> None:
    agent.start("os.write(1, b'x' * 5000)\nos.write(1, b'y' * 5000)", log_limit_bytes=6000)
    assert agent.exit()["code"] == 0
    content = agent.log.read_bytes()
    assert content.startswith(b"x" * 5000 + b"y" * 1000 + b"\n[hpcdl: the log ends here")
    assert ["limit of 6000 bytes" in each["text"] for each in agent.of("note")] == [True]


@pytest.mark.parametrize("place", ["/dev/full", "/no/such/folder/log", "link"])
def test_a_log_that_cannot_be_is_noted(agent: Agent, place: str) -> None:
    (agent.base / "link").symlink_to(agent.base / "target")
    agent.start("print('x' * 100000)", log=str(agent.base / place))
    assert agent.exit()["code"] == 0
    [note] = agent.of("note")
    assert "cannot be written, the output is dropped" in note["text"]
    assert not (agent.base / "target").exists()


def test_a_full_disk_costs_output_and_delays_records_but_not_the_job(agent: Agent) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))

    agent.start(
        ATTACH
        + """
print("z" * 5000)
for step in range(1, 41): saved(step, final=False)
""",
        limits=small_files,
    )
    client = agent.connect()
    until(lambda: any(each["type"] == "exit" for each in client.poll()), "the exit record")
    assert client.heard[-1]["code"] == 0
    assert client.numbers() == list(range(1, len(client.numbers()) + 1))
    notes = [each["text"] for each in client.heard if each["type"] == "note"]
    assert notes == ["output is dropped, the log cannot be written: File too large"]
    assert agent.supervisor is not None
    assert agent.supervisor.poll() is None  # it still has to write them
    assert not agent.lock_is_free()
    assert (agent.run / "record.jsonl").stat().st_size <= 1000
    assert agent.log.stat().st_size <= 1000
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(agent.supervisor.pid, resource.RLIMIT_FSIZE, unlimited)
    assert agent.exit()["code"] == 0
    assert agent.records() == [each for each in client.heard if "n" in each]
    assert sorted(os.listdir(agent.run)) == ["lock", "processes", "record.jsonl", "start.json"]


@pytest.mark.parametrize("text", ["torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB", "x RESOURCE_EXHAUSTED: y"])
def test_out_of_memory_is_seen_in_the_output(agent: Agent, text: str) -> None:
    agent.start(f"print({text!r}); print('cleaning up'); sys.exit(1)")
    record = agent.exit()
    assert (record["oom"], record["code"], record["detail"]) == (True, 1, text)


def test_out_of_memory_is_seen_in_the_cgroup(agent: Agent) -> None:
    events = agent.base / "memory.events"
    events.write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\noom_group_kill 0\n")
    agent.start(
        ATTACH + "while not os.path.exists('go'): time.sleep(0.01)\nos.kill(os.getpid(), signal.SIGKILL)",
        cgroup=str(agent.base),
    )
    agent.wait("attached")
    events.write_text("oom_kill 2\n")
    (agent.base / "go").touch()
    record = agent.exit()
    assert (record["oom"], record["signal"]) == (True, "SIGKILL")


@pytest.mark.parametrize(("last", "oom"), [("sys.exit(1)", False), ("os.abort()", False), ("sys.exit(137)", True)])
def test_a_neighbour_out_of_memory_is_no_reason(agent: Agent, last: str, oom: bool) -> None:
    events = agent.base / "memory.events"
    events.write_text("oom_kill 1\n")
    script = f"{ATTACH}while not os.path.exists('go'): time.sleep(0.01)\n{last}"
    agent.start(script, cgroup=str(agent.base))
    agent.wait("attached")
    events.write_text("oom_kill 2\n")
    (agent.base / "go").touch()
    assert agent.exit()["oom"] is oom


def test_who_was_killed_by_us_had_memory(agent: Agent) -> None:
    events = agent.base / "memory.events"
    events.write_text("oom_kill 1\n")
    agent.start(
        ATTACH + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('on')\ntime.sleep(300)", cgroup=str(agent.base)
    )
    agent.printed("on")
    events.write_text("oom_kill 2\n")
    agent.connect().send("end", grace_s=0.2)
    record = agent.exit()
    assert (record["oom"], record["signal"]) == (False, "SIGKILL")


@pytest.mark.parametrize("lines", ["0::/job/step\n", "12:cpu:/x\n5:memory:/job\n"])
def test_the_cgroup_of_a_process_counts_from_when_it_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str
) -> None:
    monkeypatch.setattr(exit_cause, "ROOT", str(tmp_path))
    path = tmp_path / ("job/step/memory.events" if "::" in lines else "memory/job/memory.oom_control")
    path.parent.mkdir(parents=True)
    path.write_text("oom_kill_disable 0\noom_kill 3\n")
    (tmp_path / "cgroup").write_text(lines)
    plain = builtins.open

    def opened(name: str, *args: Any, **keys: Any) -> Any:
        return plain(tmp_path / "cgroup" if name == "/proc/77/cgroup" else name, *args, **keys)

    monkeypatch.setattr(builtins, "open", opened)
    counter = exit_cause.OomKillCounter(None)
    assert not counter.grew()
    counter.watch(77)
    assert not counter.grew()
    path.write_text("oom_kill 4\n")
    counter.watch(77)
    assert counter.grew()
    path.unlink()
    assert not counter.grew(), "nothing says so any more"


def notes_of(expression: str) -> list[str]:
    notes: list[str] = []
    ProgressReader(expression, None, notes.append)
    return notes


def test_expressions_that_cannot_be_used_are_noted() -> None:
    assert "not used" in notes_of("(")[0]
    assert "no group" in notes_of("step")[0]
    assert notes_of(r"(\d+)") == []


def test_named_groups_and_numbers() -> None:
    reader = ProgressReader(r"loss ([\d.]+) at (?P<step>\S+)(?: n=(?P<samples>\d+))?", 1000, lambda note: None)
    assert reader.feed(b"loss 0.5 at 1e3 n=64\n") == ProgressPacket(1000, 1000, 64)
    assert reader.feed(b"loss 0.5 at soon\n") is None
    assert reader.feed(b"loss 0.5 at 9e999\nloss 1 at ") is None
    assert reader.feed(b"12\nother") == ProgressPacket(12, 1000, None)
    assert reader.finish() is None


def test_lines_are_cut() -> None:
    reader = ProgressReader(r"(\d+)$", None, lambda note: None)
    assert reader.feed(b"x" * LINE_BYTES * 3) is None
    assert len(reader._rest) == LINE_BYTES
    assert reader.feed(b"5\n6\n") == ProgressPacket(6, None, None)
    assert reader.feed(b"x" * LINE_BYTES + b"7\n") is None


def test_an_expression_that_takes_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcdl.agent.supervisor.output.REGEX_BUDGET_S", 0.1)
    notes: list[str] = []
    reader = ProgressReader(r"^((a+)+)+b", None, notes.append)
    assert reader.feed(b"a" * 4000 + b"\n") is None
    assert "more than 0.1 s" in notes[0]
    assert reader.feed(b"ab\n") is None


class _Stopped:
    """An expression in whose search the process stands still: its machine is busy, or somebody stopped it."""

    groupindex: Mapping[str, int] = MappingProxyType({})

    def search(self, line: str) -> re.Match[str] | None:
        time.sleep(0.3)
        return re.search(r"(\d+)", line)


def test_time_in_which_it_does_not_run_is_not_the_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcdl.agent.supervisor.output.REGEX_BUDGET_S", 0.1)
    notes: list[str] = []
    reader = ProgressReader(r"(\d+)", None, notes.append)
    reader._regex = _Stopped()  # type: ignore[assignment]
    assert reader.feed(b"7\n") == ProgressPacket(7, None, None)
    assert notes == []


def test_an_expression_whose_time_is_over_just_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    set_timer, before = signal.setitimer, signal.getsignal(signal.SIGVTALRM)

    def late(which: int, seconds: float) -> object:
        left = set_timer(which, seconds)  # as after a timer that is over: else it ends this process in a second
        if seconds == 0:
            os.kill(os.getpid(), signal.SIGVTALRM)
        return left

    monkeypatch.setattr(signal, "setitimer", late)
    notes: list[str] = []
    reader = ProgressReader(r"(\d+)", None, notes.append)
    reader.feed(b"7\n")
    assert "more than 1 s" in notes[0]
    assert signal.getsignal(signal.SIGVTALRM) is before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_a_log_goes_on_when_the_disk_has_room_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    log = Log(str(tmp_path / "log"), 10_000, notes.append)
    real = os.write
    full = True

    def write(file: int, data: bytes) -> int:
        if full:
            raise OSError(28, "No space left on device")
        return real(file, data)

    monkeypatch.setattr(os, "write", write)
    log.write(b"lost ")
    log.write(b"lost too")
    full = False
    log.write(b"kept")
    log.close()
    assert notes == ["output is dropped, the log cannot be written: No space left on device"]
    assert (tmp_path / "log").read_bytes() == b"\n[hpcdl: 13 bytes of output were dropped]\nkept"


def test_when_a_log_had_how_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most once a second, and in a long run once in a thousandth of it."""
    clock = iter((100.0, 100.5, 101.0, 5101.0, 5105.0, 5107.0))
    monkeypatch.setattr(time, "clock_gettime", lambda which: next(clock))
    log = Log(str(tmp_path / "1.n1.log"), 40, list[str]().append)
    assert os.listdir(tmp_path) == ["1.n1.log"], "not before there is something to note"
    for _ in range(6):
        log.write(b"line\n")
    log.close()
    notes = struct.iter_unpack("<dq", (tmp_path / "1.n1.times").read_bytes())
    assert list(notes) == [(100.0, 0), (101.0, 10), (5101.0, 15), (5107.0, 25)]
    assert (tmp_path / "1.n1.times").stat().st_mode & 0o777 == 0o600


def test_a_log_goes_on_without_its_times(tmp_path: Path) -> None:
    (tmp_path / "1.n1.times").symlink_to("elsewhere")
    notes: list[str] = []
    log = Log(str(tmp_path / "1.n1.log"), 40, notes.append)
    log.write(b"one\n")
    log.write(b"two\n")
    log.close()
    assert ((tmp_path / "1.n1.log").read_bytes(), notes) == (b"one\ntwo\n", [])
    assert not (tmp_path / "elsewhere").exists()


def test_the_last_line() -> None:
    assert last_line(b"a\nb\n \x1b[0m\n") == "b"
    assert last_line(b"") == ""
    assert last_line(b"\xff\tone") == "� one"
    assert len(last_line(b"x" * 1000)) == DETAIL_LENGTH
    assert last_line(b"first this\nlast", (b"this",)) == "first this"


def test_records_that_cannot_be_written_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        records = Records(folder)
        records.append("one", a=1)
        with monkeypatch.context() as broken:

            def fail(file: int) -> None:
                raise OSError(5, "Input/output error")

            broken.setattr(os, "fsync", fail)
            records.append("two")
            records.append("three")
            assert not records.durable
            assert not records.flush()
        assert records.flush()
        assert records.durable
        lines = (tmp_path / "record.jsonl").read_bytes().splitlines()
        assert lines == records.packets
        records.append("four")
        assert (tmp_path / "record.jsonl").read_bytes().splitlines() == records.packets
        assert len(records.packets) == 4
        assert not records.abandoned()
        with pytest.raises(AlreadyStarted):
            Records(folder)
    finally:
        os.close(folder)
