"""What a browser is given of a job's output: across attempts, nodes and streams."""

from pathlib import Path
from urllib.parse import quote

import pytest

from hpcdl.agent.supervisor.output import STDERR, STDOUT, Log
from hpcdl.cli.web import job_log
from hpcdl.cli.web.job_log import LogChoice, read_log
from tests.cli.fake import row as full_row
from tests.cli.web.test_pages import pages


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "logs" / "1"
    made.mkdir(parents=True)
    return made


class Browser:
    """Asks again and again."""

    def __init__(self, home: Path, of: str = "", stream: str = "") -> None:
        self.home = home
        self.choice = LogChoice.of(of, stream)
        self.cursor = ""

    def more(self) -> str:
        piece = read_log(self.home, 1, self.cursor, self.choice)
        self.cursor = piece.after
        return piece.text


def append(file: Path, text: str) -> None:
    with file.open("a") as opened:
        opened.write(text)


def test_the_newest_attempt_is_followed_and_nothing_is_passed_over(tmp_path: Path, folder: Path) -> None:
    first, second, third = (folder / f"{number}.n1.log" for number in (1, 2, 3))
    append(first, "one\n")
    browser = Browser(tmp_path)
    assert browser.more() == "one\n"
    # The last words of an attempt, and a whole attempt, come between two questions.
    append(first, "Traceback\n")
    append(second, "two\n")
    append(third, "three\n")
    assert browser.more() == "Traceback\n\n==> attempt 2 on n1 <==\ntwo\n\n==> attempt 3 on n1 <==\nthree\n"
    assert browser.more() == ""
    append(third, "four\n")
    assert browser.more() == "four\n"
    assert browser.cursor.count("-") == 1, "what is over is not asked for again"


def test_a_cursor_stays_short_and_every_attempt_is_read(tmp_path: Path, folder: Path) -> None:
    """On a hundred nodes of long names, and of attempts that come faster than they are asked for."""
    names = [f"node-{number:03}-{'x' * 50}" for number in range(job_log.NODES)]
    browser = Browser(tmp_path)
    append(folder / f"1.{names[0]}.log", "attempt 1\n")
    text = browser.more()
    for attempt in range(1, 8):
        for name in names:
            append(folder / f"{attempt}.{name}.log", f"{attempt} on {name}\n")
    for _ in range(8):
        text += browser.more()
        assert len(browser.cursor) < 6 << 10
        assert browser.cursor == quote(browser.cursor), "it grows no further in a URL"
    for attempt in range(1, 8):
        assert text.count(f"\n{attempt} on ") == job_log.NODES, attempt
    append(folder / f"7.{names[-1]}.log", "the last\n")
    assert browser.more() == "the last\n"


def test_many_short_attempts_on_one_node_are_read_at_once(tmp_path: Path, folder: Path) -> None:
    append(folder / "1.n1.log", "attempt 1\n")
    browser = Browser(tmp_path)
    browser.more()
    for attempt in range(2, 60):
        append(folder / f"{attempt}.n1.log", f"attempt {attempt}\n")
    assert browser.more().count("\nattempt ") == 58


def test_one_attempt_or_one_node_is_chosen(tmp_path: Path, folder: Path) -> None:
    for name in ("1.n1", "1.n2", "2.n1", "2.n2.site"):
        append(folder / f"{name}.log", f"{name}\n")
    first = Browser(tmp_path, "1")
    assert first.more() == "==> attempt 1 on n1 <==\n1.n1\n\n==> attempt 1 on n2 <==\n1.n2\n"
    append(folder / "1.n2.log", "again\n")
    append(folder / "2.n1.log", "not of this\n")
    assert first.more() == "again\n"
    append(folder / "1.n1.log", "too\n")
    assert first.more() == "\n==> attempt 1 on n1 <==\ntoo\n"
    assert Browser(tmp_path, "2.n2.site").more() == "2.n2.site\n"
    for unknown in ("3", "1.n9", "1.../x"):
        assert Browser(tmp_path, unknown).more() == "", unknown
    assert Browser(tmp_path, "x").choice == Browser(tmp_path).choice == LogChoice()


def test_streams_are_apart_where_they_were_kept_apart(tmp_path: Path, folder: Path) -> None:
    log = Log(str(folder / "1.n1.log"), 1 << 20, print, apart=True)
    out, err, both = (Browser(tmp_path, stream=each) for each in (str(STDOUT), str(STDERR), ""))
    log.write(b"out 1\n", STDOUT)
    log.write(b"err 1\n", STDERR)
    assert [each.more() for each in (out, err, both)] == ["out 1\n", "err 1\n", "out 1\nerr 1\n"]
    log.write(b"err 2\n", STDERR)
    log.write(b"out 2\n", STDOUT)
    log.close()
    assert [each.more() for each in (out, err, both)] == ["out 2\n", "err 2\n", "err 2\nout 2\n"]
    append(folder / "2.n1.log", "as one\n")
    assert Browser(tmp_path, "2", str(STDERR)).more() == "as one\n"


def test_many_nodes_share_what_is_read_at_once(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_log, "FIRST", 400)
    monkeypatch.setattr(job_log, "PIECE", 400)
    monkeypatch.setattr(job_log, "LEAST", 40)
    for node in range(job_log.NODES + 5):
        append(folder / f"1.n{node:03}.log", f"{node:09}\n" * 100)
    browser = Browser(tmp_path)
    text = browser.more()
    assert text.count("==>") == job_log.NODES
    assert text.count("000000007\n") == 3, "of 40 bytes the first line may be cut"
    assert len(browser.cursor) < 2 << 10


def test_the_page_offers_what_there_is(tmp_path: Path, folder: Path) -> None:
    row = full_row(1)
    assert "It has printed nothing yet." in pages(tmp_path, row).job(1)
    append(folder / "1.n1.log", "x\n")
    assert "<select" not in pages(tmp_path, row).job(1), "there is nothing to choose"
    for name in ("1.n2.log", "2.n1.log", "2.n1.streams"):
        append(folder / name, "")
    text = pages(tmp_path, row).job(1)
    for option in (
        '<option value="">the newest attempt</option>',
        '<option value="2">attempt 2</option><option value="1">attempt 1</option>',
        '<option value="1.n1">attempt 1 on n1</option><option value="1.n2">attempt 1 on n2</option>',
        '<option value="2">stderr</option>',
    ):
        assert option in text
    assert "hpcdl logs 1 prints all of it" in text
