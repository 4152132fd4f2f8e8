"""`hpcdl logs`: any bytes as they are, and the end of a long log without reading all of it."""

import json
from pathlib import Path

import pytest

from hpcdl.cli import logs
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon

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


def test_a_job_that_printed_nothing(log: Path, hpcdl: Run) -> None:
    log.write_bytes(b"")
    done = hpcdl("logs", "1")
    assert (done.code, done.out) == (0, "")
    assert done.err == "hpcdl: job 1 has printed nothing: hpcdl why 1 says how it stands\n"
    assert hpcdl("logs", "1", "--quiet").err == ""
    log.with_name("2.n1.log").write_bytes(b"now it did\n")
    assert hpcdl("logs", "1").err == ""
    assert hpcdl("logs", "1", "--incarnation", "1").err.startswith("hpcdl: job 1 has printed nothing there:")
