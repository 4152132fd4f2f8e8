"""Output in files that a job names, and stdout and stderr apart."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hpcdl.agent.start_request import output_file
from hpcdl.agent.supervisor.output import CHANGE, STDERR, STDOUT, Log, ProgressReader, TrainerOutput
from hpcdl.agent.supervisor.packets import ProgressPacket
from hpcdl.core.model.commands import Request
from hpcdl.core.model.job import JobSpec
from tests.agent.conftest import Agent
from tests.support.waiting import until

BOTH = """
os.write(1, b"out 1\\n"); os.write(2, b"err 1\\n")
os.close(1)
os.write(2, b"err 2\\n")
"""


def of_stream(log: Path, stream: int) -> bytes:
    """What of a log the file beside it says is of that stream."""
    content = log.read_bytes()
    changes = list(CHANGE.iter_unpack(log.with_suffix(".streams").read_bytes()))
    ends = [*(at for at, _ in changes[1:]), len(content)]
    return b"".join(content[at:end] for (at, which), end in zip(changes, ends, strict=True) if which == stream)


def test_output_is_appended_to_the_files_that_the_job_names(agent: Agent) -> None:
    agent.log = agent.base / "2.n1.log"
    (agent.base / "out").write_bytes(b"of attempt 1\n")
    agent.start(BOTH, apart=True, output=str(agent.base / "out"), error=str(agent.base / "err"))
    assert agent.exit()["code"] == 0
    assert (agent.base / "out").read_bytes() == b"of attempt 1\nout 1\n"
    assert (agent.base / "err").read_bytes() == b"err 1\nerr 2\n"
    assert sorted(agent.log.read_bytes().splitlines()) == [b"err 1", b"err 2", b"out 1"]
    assert of_stream(agent.log, STDOUT) == b"out 1\n"
    assert of_stream(agent.log, STDERR) == b"err 1\nerr 2\n"
    assert (agent.base / "err").stat().st_mode & 0o777 == 0o666 & ~umask(), "as the trainer's own files"


def umask() -> int:
    """That of this process, which supervisors hand on to trainers."""
    now = os.umask(0o022)
    os.umask(now)
    return now


def test_without_a_file_for_errors_both_go_to_the_one(agent: Agent) -> None:
    agent.start(BOTH, output=str(agent.base / "out"), log_limit_bytes=10)
    assert agent.exit()["code"] == 0
    assert (agent.base / "out").read_bytes() == b"out 1\nerr 1\nerr 2\n", "in order, and beyond the log's limit"
    assert not agent.log.with_suffix(".streams").exists()


@pytest.mark.parametrize(("name", "why"), [("no/folder", "No such file or directory"), (".", "Is a directory")])
def test_a_file_that_cannot_be_opened_fails_the_attempt(agent: Agent, name: str, why: str) -> None:
    path = str(agent.base / name)
    agent.start("open('ran', 'w')", output=str(agent.base / "out"), error=path, apart=True)
    ended = agent.exit()
    assert (ended["code"], ended["detail"]) == (os.EX_CANTCREAT, f"cannot write its output to {path}: {why}")
    assert not (agent.base / "ran").exists()


def test_a_full_disk_costs_the_file_and_not_the_log(agent: Agent) -> None:
    agent.start("os.write(1, b'x' * 5000)", output="/dev/full")
    assert agent.exit()["code"] == 0
    assert agent.log.read_bytes() == b"x" * 5000
    [note] = agent.of("note")
    assert note["text"] == "output is dropped, /dev/full cannot be written: No space left on device"


def test_what_came_before_the_supervisor_was_killed_is_kept(agent: Agent) -> None:
    agent.log = agent.base / "2.n1.log"
    agent.start(BOTH + "time.sleep(600)", output=str(agent.base / "out"), error=str(agent.base / "err"), apart=True)
    until(lambda: agent.log.exists() and agent.log.read_bytes().count(b"\n") == 3, "all lines")
    lines = {"out": 1, "err": 2}
    until(lambda: all((agent.base / each).read_bytes().count(b"\n") == n for each, n in lines.items()), "all files")
    assert agent.supervisor is not None
    agent.supervisor.send_signal(signal.SIGKILL)
    agent.supervisor.wait()
    assert (agent.base / "out").read_bytes() == of_stream(agent.log, STDOUT) == b"out 1\n"
    assert (agent.base / "err").read_bytes() == of_stream(agent.log, STDERR) == b"err 1\nerr 2\n"


def test_lines_of_two_streams_are_not_mixed(tmp_path: Path) -> None:
    heard: list[ProgressPacket] = []
    log = Log(str(tmp_path / "1.n.log"), 1 << 20, pytest.fail, apart=True)
    reader = ProgressReader(r"step (\d+)$", None, pytest.fail)
    output = TrainerOutput(log, reader, heard.append, apart=True)
    out, err = output.write_ends
    for end, text in ((out, b"st"), (err, b"a warn"), (out, b"ep 7\nste"), (err, b"ing\nlong " + b"x" * 5000)):
        os.write(end, text)
        for pipe in output.pipes:
            assert output.read(pipe)
    assert [each.step for each in heard] == [7]
    os.write(out, b"p 8")
    output.started()
    assert [output.read(pipe) for pipe in output.pipes] == [False, False]
    output.finish()
    assert [each.step for each in heard] == [7, 8]
    assert output.tail == b"step 7\na warning\nlong " + b"x" * 5000 + b"\nstep 8\n"
    assert (tmp_path / "1.n.log").read_bytes() == b"sta warnep 7\nsteing\nlong " + b"x" * 5000 + b"p 8", "as it came"
    assert of_stream(tmp_path / "1.n.log", STDOUT) == b"step 7\nstep 8"


def test_what_cannot_be_told_apart_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a full disk does not take the note which stream follows, nor does the log take what does."""
    path = tmp_path / "1.n.log"
    log = Log(str(path), 1 << 20, pytest.fail, apart=True)
    log.write(b"out\n", STDOUT)
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: pwrite(file, data[:5], at))
    log.write(b"lost", STDERR)
    monkeypatch.undo()
    log.write(b"err\n", STDERR)
    log.write(b"more\n", STDOUT)
    log.close()
    assert b"[hpcdl: 4 bytes of output were dropped]" in path.read_bytes()
    assert of_stream(path, STDERR) == b"err\n"
    assert of_stream(path, STDOUT).startswith(b"out\n")
    assert of_stream(path, STDOUT).endswith(b"more\n")


def test_changes_count_to_the_limit_of_the_log(tmp_path: Path) -> None:
    path, notes = tmp_path / "1.n.log", list[str]()
    log = Log(str(path), 1000, notes.append, apart=True)
    for number in range(2000):
        log.write(b"x", (STDOUT, STDERR)[number % 2])
    assert path.stat().st_size + path.with_suffix(".streams").stat().st_size < 1200
    assert notes == ["the log has reached its limit of 1000 bytes, the rest of the output is dropped"]


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("", ""),
        ("/tmp/x", "/tmp/x"),
        ("logs/%x-%j.out", "/w/logs/a_b[3]-12.out"),
        ("%A_%a-%4a.%N.%n.%u.%%.%z", "/w/10_3-0003.n2.1.ada.%.%z"),
    ],
)
def test_what_a_pattern_stands_for(pattern: str, path: str) -> None:
    spec = JobSpec(("x",), "a/b[3]", user="ada", cwd="/w", array=10, array_index=3)
    request = Request("start", "n2", 12, 1, nodes=("n1", "n2"))
    assert output_file(pattern, spec, request, "n2") == path
