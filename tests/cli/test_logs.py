"""`hpcdl logs`: any bytes as they are, and the end of a long log without reading all of it."""

import json
import os
import struct
import threading
import time
from pathlib import Path

import pytest

from hpcdl.agent.supervisor.output import STDERR, STDOUT, Log
from hpcdl.cli import logs
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon, row

MANY = 1_000_000


@pytest.fixture
def log(fake: FakeDaemon) -> Path:
    folder = fake.home / "logs" / "1"
    folder.mkdir(parents=True)
    return folder / "1.n1.log"


def test_the_end_of_a_million_lines(log: Path, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(MANY)))
    read: list[int] = []
    pieces = logs._pieces

    def counted(file: logs.LogFile, offset: int) -> object:
        for piece in pieces(file, offset):
            read.append(len(piece))
            yield piece

    monkeypatch.setattr(logs, "_pieces", counted)
    assert hpcdl("logs", "1", "-n", "3").out == "line 999997\nline 999998\nline 999999\n"
    assert sum(read) < 100, "not all of it"
    assert json.loads(hpcdl("logs", "1", "--lines", "1", "--json").out)["logs"][0]["text"] == "line 999999\n"
    assert hpcdl("logs", "1").out.count("\n") == MANY


@pytest.mark.parametrize(
    ("content", "lines", "begins"),
    [
        (b"a\nb\nc\n", 2, 2),
        (b"a\nb\nc", 2, 2),
        (b"a\nb\n\n", 2, 2),
        (b"a\n", 5, 0),
        (b"a", 1, 0),
        (b"", 1, 0),
        (b"a\nb\n", 0, 4),
        (b"a\nb", 0, 3),
        (b"x" * 300_000, 1, 0),
        (b"x" * 70_000 + b"\n" + b"y" * 70_000, 1, 70_001),
        (b"\n" * 70_000, 3, 69_997),
    ],
)
def test_where_the_last_lines_begin(tmp_path: Path, content: bytes, lines: int, begins: int) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    assert logs._begin(path, lines) == begins
    assert logs._begin(path, None) == 0


def test_output_that_is_not_text(log: Path, hpcdl: Run) -> None:
    log.write_bytes(b"\xff\xfe\x00 not text\ncaf\xc3\xa9\n")
    text = json.loads(hpcdl("logs", "1", "--json").out)["logs"][0]["text"]
    assert text == "\\xff\\xfe\x00 not text\ncaf\u00e9\n"
    assert json.loads(hpcdl("logs", "1", "-n1", "--json").out)["logs"][0]["text"] == "caf\u00e9\n"
    assert hpcdl("logs", "1", "-n", "-1").code == 2


def test_a_job_that_printed_nothing(log: Path, fake: FakeDaemon, hpcdl: Run) -> None:
    log.write_bytes(b"")
    fake.world.jobs[1] = row(1, state="DONE")
    done = hpcdl("logs", "--follow", "1")
    assert (done.code, done.out) == (0, "")
    assert done.err == "hpcdl: job 1 has printed nothing: hpcdl why 1 says how it stands\n"
    done = hpcdl("logs", "1")
    assert (done.code, done.out) == (0, "")
    assert done.err == "hpcdl: job 1 has printed nothing: hpcdl why 1 says how it stands\n"
    assert hpcdl("logs", "1", "--quiet").err == ""
    log.with_name("2.n1.log").write_bytes(b"now it did\n")
    assert hpcdl("logs", "1").err == ""
    assert hpcdl("logs", "1", "--incarnation", "1").err.startswith("hpcdl: job 1 has printed nothing there:")


@pytest.fixture
def sweep(fake: FakeDaemon) -> FakeDaemon:
    """Jobs 1 to 3, DONE, an array called sweep; 1 and 2 have printed something, 2 in two attempts."""
    for number, files in {1: {"1.n1": b"a\nlast of 1"}, 2: {"1.n1": b"b\n", "2.n2": b"c\n"}, 3: {}}.items():
        fake.world.jobs[number] = row(number, name=f"sweep[{number}]", array=1, array_index=number, state="DONE")
        folder = fake.home / "logs" / str(number)
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / f"{name}.log").write_bytes(content)
    return fake


def test_lines_of_several_jobs_begin_with_their_job(sweep: FakeDaemon, hpcdl: Run) -> None:
    lines = "1 | a\n1 | last of 1\n2.1.n1 | b\n2.2.n2 | c\n"
    for argv in (["sweep"], ["1-3"], ["--array", 2], ["sweep*", "--state", "done"], ["--all"]):
        done = hpcdl("logs", *argv)
        assert (done.code, done.out, done.err) == (0, lines, ""), argv
    assert hpcdl("logs", "1,2", "-n", 1).out == "1 | last of 1\n2.1.n1 | b\n2.2.n2 | c\n"
    assert hpcdl("logs", 1).out == "a\nlast of 1", "of one job they are as they were printed"
    assert hpcdl("logs", 2).out == "==> attempt 1 on n1 <==\nb\n==> attempt 2 on n2 <==\nc\n"
    assert [each["text"] for each in hpcdl("logs", 2, "--json").value["logs"]] == ["b\n", "c\n"]
    found = hpcdl("logs", "1-3", "--json").value["jobs"]
    assert [(each["job"], len(each["logs"])) for each in found] == [(1, 1), (2, 2), (3, 0)]
    assert len(hpcdl("logs", "1-3", "-q").out.splitlines()) == 3
    done = hpcdl("logs", 1, 9)
    assert (done.code, done.out) == (1, "")
    assert "there is no job 9" in done.err
    assert hpcdl("logs", "1-3", "--attempt", 7).err == "hpcdl: these 3 jobs have printed nothing there\n"


def test_lines_that_are_chosen(log: Path, hpcdl: Run) -> None:
    marked = (
        "[rank0]: a 1", "[rank10]: b 2", "  [default0]:c 3", "0: d 4", "[rank: 0] e 5", "[1,0]<stdout>: f 6",
        "[0]<stderr>: g 7", "h 0: 8",
    )  # fmt: skip
    log.write_text("\n".join(marked))
    assert "".join(line[-1] for line in hpcdl("logs", 1, "--rank", 0).out.splitlines()) == "134567"
    assert hpcdl("logs", 1, "--rank", 10).out == "[rank10]: b 2\n"
    assert hpcdl("logs", 1, "--grep", "[aeh] [0-9:]+").out == "[rank0]: a 1\n[rank: 0] e 5\nh 0: 8\n"
    assert hpcdl("logs", 1, "--grep", "rank", "-n", 2).out == "[rank10]: b 2\n[rank: 0] e 5\n"
    assert hpcdl("logs", 1, "--grep", "rank", "--rank", 0, "--json").value["logs"][0]["text"].count("\n") == 2
    assert hpcdl("logs", 1, "--grep", "nowhere").out == ""
    done = hpcdl("logs", 1, "--grep", "(")
    assert (done.code, done.err.count("\n")) == (2, 1)
    log.write_bytes(b"a" * 40 + b"b\n")
    done = hpcdl("logs", 1, "--grep", "(a+)+$")
    assert (done.code, done.out) == (1, "")
    assert "took more than 2 s on 1 line: write it so" in done.err


def test_what_was_printed_since(log: Path, hpcdl: Run) -> None:
    """The notes beside a log are seconds of another clock: the newest is as old as their file."""
    now = time.time()
    log.write_bytes(b"one\ntwo\nthree\n")
    assert hpcdl("logs", 1, "--since", "1h").out == "one\ntwo\nthree\n", "without notes all of it"
    notes = log.with_suffix(".times")
    notes.write_bytes(b"".join(struct.pack("<dq", *each) for each in ((100.0, 0), (4000.0, 4), (7000.0, 8))) + b"torn")
    os.utime(notes, (now - 600, now - 600))  # so "two" was printed an hour ago, "one" two hours
    os.utime(log, (now - 600, now - 600))
    for since, text in (("3h", "one\ntwo\nthree\n"), ("100m", "two\nthree\n"), ("30m", "three\n"), ("5m", "")):
        assert hpcdl("logs", 1, "--since", since).out == text, since
    assert hpcdl("logs", 1, "--since", "100m", "-n", 1).out == "three\n"
    assert hpcdl("logs", 1, "--since", "100m", "--grep", "t").out == "two\nthree\n"
    assert hpcdl("logs", 1, "--since", "tomorrow").code == 2


def test_several_logs_are_followed(sweep: FakeDaemon, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line once and whole, of files and jobs that come later too, until all jobs are finished."""
    monkeypatch.setattr(logs, "_POLL_S", 0.01)
    monkeypatch.setattr(logs, "_ASK_S", 0.02)
    for number in (1, 2, 3):
        sweep.world.jobs[number]["state"] = "RUNNING"
    folder = sweep.home / "logs"

    def train() -> None:
        for number in range(30):
            for job, name in ((1, "1.n1.log"), (3, "1.n1.log")):
                with (folder / str(job) / name).open("ab") as file:
                    file.write(b" %d more" % number)
                    file.flush()
                    time.sleep(0.002)
                    file.write(b"\n")
        for number in (1, 2, 3):
            sweep.world.jobs[number]["state"] = "DONE"

    trains = threading.Thread(target=train)
    trains.start()
    lines = hpcdl("logs", "-f", "sweep", "--grep", "more|b|c").out.splitlines()
    trains.join()
    assert [line for line in lines if line.startswith("3 | ")] == [f"3 |  {number} more" for number in range(30)]
    first = [line for line in lines if line.startswith("1 | ")]
    assert first == ["1 | last of 1 0 more", *(f"1 |  {number} more" for number in range(1, 30))]
    assert sorted(line for line in lines if line.startswith("2.")) == ["2.1.n1 | b", "2.2.n2 | c"]


def test_one_stream_of_those_that_are_apart(log: Path, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Log(str(log), 1 << 20, pytest.fail, apart=True)
    for text, stream in ((b"a\nb", STDOUT), (b"x\n", STDERR), (b" end\nc\n", STDOUT), (b"y\nz", STDERR)):
        written.write(text, stream)
    written.close()
    for size in (1 << 20, 7, 5):
        monkeypatch.setattr(logs, "_PIECE", size)
        assert hpcdl("logs", 1).out == "a\nbx\n end\nc\ny\nz"
        assert hpcdl("logs", 1, "--stdout").out == "a\nb end\nc\n"
        assert hpcdl("logs", 1, "--stderr").out == "x\ny\nz\n"
    assert hpcdl("logs", 1, "--stdout", "-n", 2).out == "b end\nc\n"
    assert hpcdl("logs", 1, "--stderr", "--grep", "[xz]", "--json").value["logs"][0]["text"] == "x\nz\n"
    assert hpcdl("logs", 1, "--stderr", "--since", "1h").out == "x\ny\nz\n"
    assert hpcdl("logs", 1, "--stdout", "--quiet").out == f"{log}\n"


def test_streams_that_are_one(sweep: FakeDaemon, hpcdl: Run) -> None:
    done = hpcdl("logs", 1, "--stderr")
    said = "hpcdl: stdout and stderr of job 1 came as one: hpcdl submit --error FILE keeps them apart\n"
    assert (done.code, done.out, done.err) == (1, "", said)
    assert hpcdl("logs", "1-3", "--stdout").err == said
    assert hpcdl("logs", "-f", 1, "--stdout").err == said
    assert "has printed nothing there" in hpcdl("logs", 3, "--stdout").err


def test_one_stream_is_followed(log: Path, fake: FakeDaemon, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_POLL_S", 0.01)
    monkeypatch.setattr(logs, "_ASK_S", 0.02)
    fake.world.jobs[1] = row(1, state="RUNNING")

    def train() -> None:
        written = Log(str(log), 1 << 20, pytest.fail, apart=True)
        for number in range(50):
            written.write(b"out %d\n" % number, STDOUT)
            written.write(b"err %d\n" % number, STDERR)
            time.sleep(0.002)
        written.close()
        fake.world.jobs[1]["state"] = "DONE"

    trains = threading.Thread(target=train)
    trains.start()
    done = hpcdl("logs", "-f", 1, "--stderr")
    trains.join()
    assert done.out.splitlines() == [f"err {number}" for number in range(50)]
