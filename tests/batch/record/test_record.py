"""A machine's record: what is written is read again, whoever is killed, and whatever the disk does."""

import errno
import gzip
import json
import os
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from hpcdl.batch.adapter import IdleNodes
from hpcdl.batch.record import folder as files_of_a_record
from hpcdl.batch.record.folder import RecordFolder, segments
from hpcdl.batch.record.lines import ChangeLine, PollMark, RecordError, StartLine, line_of, text_of
from hpcdl.batch.record.pieces import IdleRecord, read_record
from hpcdl.batch.record.recorder import IdleRecorder
from tests.batch.record.polls import EVERY_S, Poll, random_polls, seen, write
from tests.support.extent import ALL

RECORD = Path(files_of_a_record.__file__).parent


def pieces_of(record: IdleRecord) -> set[tuple[str, float, float, bool, bool, int | None]]:
    return {(each.node, each.begin, each.end, each.joined, each.left, each.polls) for each in record.pieces}


@pytest.mark.parametrize("seed", range(60))
def test_what_is_written_is_read_again(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    polls = random_polls(rng)
    write(tmp_path / "r", polls, rng, segment_bytes=rng.choice((200, 1000, 1 << 20)))
    record = read_record(tmp_path / "r")
    assert pieces_of(record) == seen(polls)
    begins = [poll.at for place, poll in enumerate(polls) if place == 0 or poll.gap]
    ends = [before.at for before, poll in pairwise(polls) if poll.gap] + [polls[-1].at]
    assert record.spans == tuple(zip(begins, ends, strict=True))
    assert record.nodes == 16


@pytest.mark.parametrize("seed", range(20))
def test_the_single_poll_is_passed_over(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    polls = random_polls(rng)
    write(tmp_path / "r", polls, rng)
    kept = pieces_of(read_record(tmp_path / "r").without_single())
    assert kept == {each for each in seen(polls) if each[5] != 1}


def test_without_gaps_a_node_idles_through_them(tmp_path: Path) -> None:
    polls = [
        Poll(0.0, frozenset({"a", "b"})),
        Poll(30.0, frozenset({"a"})),
        Poll(3600.0, frozenset({"a", "c"}), gap=True),
        Poll(3630.0, frozenset({"c"})),
        Poll(3660.0, frozenset({"c"})),
    ]
    write(tmp_path / "r", polls, random.Random(0))
    record = read_record(tmp_path / "r")
    assert record.seconds == 90.0
    assert record.joined() == (("a", 0.0, 60.0), ("b", 0.0, 30.0), ("c", 30.0, 90.0))


def test_there_is_a_line_for_each_change_and_none_else(tmp_path: Path) -> None:
    files = RecordFolder(tmp_path / "r")
    recorder = IdleRecorder(files, EVERY_S, "slurm")
    wrote = [
        recorder.take(30.0 * number, IdleNodes(frozenset({"n1"} if number < 50 else {"n1", "n2"}), 4))
        for number in range(100)
    ]
    files.close()
    assert [number for number, line in enumerate(wrote) if line] == [0, 50]
    (path,) = segments(tmp_path / "r").values()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"schema": 1, "at": 0.0, "poll": 1, "every_s": 30.0, "system": "slurm", "nodes": 4, "idle": "n1"},
        {"at": 1500.0, "poll": 51, "in": "n2"},
    ]
    assert read_record(tmp_path / "r").spans == ((0.0, 2970.0),)


def test_the_number_of_nodes_is_written_where_it_changes(tmp_path: Path) -> None:
    files = RecordFolder(tmp_path / "r")
    recorder = IdleRecorder(files, EVERY_S, "lsf")
    counts = (None, 4, None, 4, 5, 5)
    wrote = [recorder.take(30.0 * at, IdleNodes(frozenset({"n1"}), nodes)) for at, nodes in enumerate(counts)]
    files.close()
    assert wrote == [True, True, False, False, True, False]
    record = read_record(tmp_path / "r")
    assert (record.nodes, len(record.pieces)) == (5, 1)


@pytest.mark.parametrize(
    "line",
    [
        StartLine(PollMark(1.5, 3, 30.0), "lsf", None, frozenset({"a[1-2]", "b,c", "n1", "n2"}), 1.0, True),
        StartLine(PollMark(1.5, 1, 30.0), "slurm", 4608, frozenset()),
        ChangeLine(2.0, 4, frozenset({"n01", "n02"}), frozenset({"n9"}), 7),
        ChangeLine(2.0, 4, frozenset(), frozenset({"n9"})),
    ],
)
def test_a_line_is_read_as_it_was(line: StartLine | ChangeLine) -> None:
    assert text_of(line).endswith("\n")
    assert text_of(line).count("\n") == 1
    assert line_of(text_of(line)) == line


@pytest.mark.parametrize(
    "text",
    ["", "[]", "1", '{"at":1}', '{"at":-1,"poll":1}', '{"at":1,"poll":true}', '{"at":NaN,"poll":1}',
     '{"at":1,"poll":1,"idle":"n1"}', '{"at":1,"poll":1,"in":[3]}', '{"at":1,"poll":1,"idle":3,"schema":1}',
     '{"at":1,"poll":1,"idle":"n1","schema":1,"last_at":2}', '{"at":1,"poll":1,"nodes":1.5}', "[" * 10_000],
)  # fmt: skip
def test_what_is_no_line_is_refused(text: str) -> None:
    with pytest.raises(RecordError):
        line_of(text)


# --- kills -----------------------------------------------------------------------------------------------------------

POLLS = [Poll(30.0 * number, frozenset(f"n{each}" for each in range(number % 4 + 1))) for number in range(6)]
STEP = 1 if ALL else 7
SMALL = 120
"""Bytes of a segment: some of these polls begin one."""


def _recorded(folder: Path, polls: list[Poll], told: int) -> None:
    """Records the polls, with a byte to `told` after each."""
    files = RecordFolder(folder, SMALL)
    recorder = IdleRecorder(files, EVERY_S, "slurm")
    for poll in polls:
        recorder.take(poll.at, IdleNodes(poll.idle, 16))
        os.write(told, b".")


def _killed_at(line: int, folder: Path, polls: list[Poll]) -> tuple[int, bool]:
    """A process that records, and is gone at its `line`-th line; how many polls it had taken, and whether it was."""
    reads, told = os.pipe()
    child = os.fork()
    if child == 0:
        left = line

        def trace(frame: FrameType, event: str, value: Any) -> Any:
            nonlocal left
            if not frame.f_code.co_filename.startswith(str(RECORD)):
                return None
            if event == "line":
                left -= 1
                if left == 0:
                    os._exit(9)
            return trace

        sys.settrace(trace)
        try:
            _recorded(folder, polls, told)
        finally:
            os._exit(0)
    os.close(told)
    with os.fdopen(reads, "rb") as file:
        taken = len(file.read())
    _, status = os.waitpid(child, 0)
    return taken, os.waitstatus_to_exitcode(status) == 9


def test_a_kill_at_any_line_loses_one_poll_at_most(tmp_path: Path) -> None:
    killed, line = True, 1 - STEP
    while killed:
        line += STEP
        folder = tmp_path / str(line)
        taken, killed = _killed_at(line, folder, POLLS)
        known = 0
        if folder.is_dir() and segments(folder):
            with suppress(RecordError):  # killed before the first line was whole
                record = read_record(folder)
                known = next(n for n in range(1, len(POLLS) + 1) if record.spans[-1][1] == POLLS[n - 1].at)
                assert pieces_of(record) == seen(POLLS[:known])
        assert known - taken in (0, 1), f"killed at line {line}"
        rest = POLLS[taken + 1 :]  # the one that was being written is not made again
        if killed and rest:
            files = RecordFolder(folder, SMALL)
            recorder = IdleRecorder(files, EVERY_S, "slurm")
            for poll in rest:
                recorder.take(poll.at, IdleNodes(poll.idle, 16))
            files.close()
            made = [*POLLS[: max(taken, known)], *rest]
            assert pieces_of(read_record(folder)) == seen(made), f"killed at line {line}"
    assert line > 200


@pytest.mark.parametrize("kept", range(1, 60, 7))
def test_a_line_that_is_cut_is_lost_alone(tmp_path: Path, kept: int) -> None:
    write(tmp_path / "r", POLLS[:3], random.Random(5))
    (path,) = segments(tmp_path / "r").values()
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + lines[-1][:kept].rstrip("\n"))
    (tmp_path / "r" / "last-poll.json").unlink()
    assert pieces_of(read_record(tmp_path / "r")) == seen(POLLS[:2])
    write(tmp_path / "r", POLLS[3:], random.Random(5))
    assert pieces_of(read_record(tmp_path / "r")) == seen([*POLLS[:2], *POLLS[3:]])


def test_a_disk_that_is_full_costs_the_polls_until_it_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RecordFolder(tmp_path / "r")
    recorder = IdleRecorder(files, EVERY_S, "slurm")
    recorder.take(POLLS[0].at, IdleNodes(POLLS[0].idle, 16))
    real = os.write

    def full(file: int, data: bytes) -> int:
        if len(data) < 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, data[:9])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        recorder.take(POLLS[1].at, IdleNodes(POLLS[1].idle, 16))
    recorder.miss()
    monkeypatch.undo()
    recorder.take(POLLS[2].at, IdleNodes(POLLS[2].idle, 16))
    files.close()
    assert pieces_of(read_record(tmp_path / "r")) == seen([POLLS[0], POLLS[2]])


def _fails_once(monkeypatch: pytest.MonkeyPatch, name: str, wanted: Callable[..., bool]) -> None:
    """The next call of this function of os with such arguments raises ENOSPC."""
    real = getattr(os, name)

    def fails(*args: Any, **options: Any) -> Any:
        if wanted(*args):
            monkeypatch.setattr(os, name, real)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args, **options)

    monkeypatch.setattr(os, name, fails)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("open", lambda path, flags, *_: str(path).endswith("3.jsonl") and flags & os.O_CREAT),
        ("write", lambda _, data: b'"poll":4' in data),
        ("fsync", lambda _: True),
    ],
)
@pytest.mark.parametrize("limit_bytes", [10**9, 100])
def test_a_disk_that_is_full_where_a_segment_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, wanted: Callable[..., bool], limit_bytes: int
) -> None:
    """No number is left out, and each segment begins with all that idles, however old the others are that go."""
    files = RecordFolder(tmp_path / "r", 100, limit_bytes)
    recorder = IdleRecorder(files, EVERY_S, "slurm")
    polls = [Poll(30.0 * number, frozenset({f"n{number}"})) for number in range(7)]
    for poll in polls[:3]:
        recorder.take(poll.at, IdleNodes(poll.idle, 16))
    _fails_once(monkeypatch, name, wanted)
    with pytest.raises(OSError, match="No space left"):
        recorder.take(polls[3].at, IdleNodes(polls[3].idle, 16))
    recorder.miss()
    for poll in polls[4:]:
        recorder.take(poll.at, IdleNodes(poll.idle, 16))
    files.close()
    starts = [path for path in segments(tmp_path / "r").values() if path.suffix == ".jsonl"]
    assert all('"idle"' in path.read_text().splitlines()[0] for path in starts)
    record = read_record(tmp_path / "r")
    if limit_bytes > 1000:
        assert pieces_of(record) == seen([*polls[:3], *polls[4:]])


def test_a_segment_without_a_line_and_a_lost_mark_do_not_count_anew(tmp_path: Path) -> None:
    """As a machine leaves them that crashes just when a segment begins."""
    write(tmp_path / "r", POLLS[:4], random.Random(5), SMALL)
    last = max(segments(tmp_path / "r"))
    (tmp_path / "r" / f"idle-{last + 1:06d}.jsonl").touch()
    (tmp_path / "r" / "last-poll.json").write_text("")
    write(tmp_path / "r", POLLS[4:], random.Random(5), SMALL)
    assert pieces_of(read_record(tmp_path / "r")) == seen(POLLS)


def test_a_clock_that_was_set_back_leaves_a_gap(tmp_path: Path) -> None:
    write(tmp_path / "r", POLLS[:3], random.Random(5))
    files = RecordFolder(tmp_path / "r")
    recorder = IdleRecorder(files, EVERY_S, "slurm", gap=True)
    for poll in POLLS[3:]:
        recorder.take(poll.at, IdleNodes(poll.idle, 16))
    files.close()
    polls = [*POLLS[:3], replace(POLLS[3], gap=True), *POLLS[4:]]
    assert pieces_of(read_record(tmp_path / "r")) == seen(polls)


# --- its bounds, and who may write it --------------------------------------------------------------------------------


def test_above_the_limit_the_oldest_segments_go(tmp_path: Path) -> None:
    files = RecordFolder(tmp_path / "r", segment_bytes=2_000, limit_bytes=8_000)
    recorder = IdleRecorder(files, EVERY_S, "slurm")
    rng = random.Random(3)
    for number in range(600):
        idle = frozenset(f"x{rng.randrange(10**9)}" for _ in range(3))
        recorder.take(30.0 * number, IdleNodes(idle, None))
    files.close()
    listed = segments(tmp_path / "r")
    assert min(listed) > 1
    assert sum(path.stat().st_size for path in listed.values()) < 10_000
    assert [path.suffix for path in listed.values()] == [".gz"] * (len(listed) - 1) + [".jsonl"]
    record = read_record(tmp_path / "r")
    assert record.spans == ((record.spans[0][0], 30.0 * 599),)
    assert record.spans[0][0] > 0


def test_one_recorder_at_a_time(tmp_path: Path) -> None:
    files = RecordFolder(tmp_path / "r")
    with pytest.raises(RecordError, match=r"another recorder writes .*: end that one, or name another folder"):
        RecordFolder(tmp_path / "r")
    files.close()
    RecordFolder(tmp_path / "r").close()


def test_a_folder_without_a_line_is_left_as_it_was(tmp_path: Path) -> None:
    RecordFolder(tmp_path / "r").close()
    assert not (tmp_path / "r").exists()
    (tmp_path / "mine").mkdir()
    RecordFolder(tmp_path / "mine").close()
    assert os.listdir(tmp_path / "mine") == []


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RecordError, match=r"holds other files \(thesis.tex\)"):
        RecordFolder(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_what_is_not_of_the_record_is_left(tmp_path: Path) -> None:
    write(tmp_path / "r", POLLS, random.Random(1))
    (tmp_path / "r" / "thesis.tmp").write_text("x")
    (tmp_path / "r" / "mine.tmp").mkdir()
    RecordFolder(tmp_path / "r").close()
    assert {"thesis.tmp", "mine.tmp"} <= set(os.listdir(tmp_path / "r"))


@pytest.mark.parametrize("name", ["idle-000001.jsonl", "lock"])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    """In a folder that others may write, one would lead to any file of ours."""
    mine = tmp_path / "mine"
    mine.write_text("alias ll=ls\n")
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / name).symlink_to(mine)
    with pytest.raises(RecordError, match=f"{name} is a link, and is not written through"):
        RecordFolder(tmp_path / "r")
    assert mine.read_text() == "alias ll=ls\n"
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    with pytest.raises(RecordError, match="is a link that leads nowhere"):
        RecordFolder(tmp_path / "nowhere")


def test_a_segment_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    os.mkfifo(tmp_path / "r" / "idle-000001.jsonl")
    with pytest.raises(RecordError, match="holds no record"):
        read_record(tmp_path / "r")
    with pytest.raises(RecordError, match="holds other files"):
        RecordFolder(tmp_path / "r")


def test_what_is_damaged_is_said_with_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="holds no record of idle nodes: hpcdl holes --record"):
        read_record(tmp_path)
    rng = random.Random(1)
    write(tmp_path / "r", POLLS, rng, SMALL)
    first, second = list(segments(tmp_path / "r").values())[:2]
    packed = first.read_bytes()
    first.write_bytes(packed[:-9])
    with pytest.raises(RecordError, match=r"idle-000001.jsonl.gz: damaged .*: put a whole copy there"):
        read_record(tmp_path / "r")
    text = gzip.decompress(packed)
    first.write_bytes(gzip.compress(text.replace(b'"in"', b'"out"')))
    with pytest.raises(RecordError, match=r"idle-000001.jsonl.gz:2: .* leaves, and is not idle"):
        read_record(tmp_path / "r")
    first.write_bytes(gzip.compress(b"x\n" + text))
    with pytest.raises(RecordError, match=r"idle-000001.jsonl.gz:1: no JSON"):
        read_record(tmp_path / "r")
    first.write_bytes(packed)
    second.unlink()
    with pytest.raises(RecordError, match="segment 2 is missing"):
        read_record(tmp_path / "r")


def test_a_segment_may_be_packed_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "r", POLLS, random.Random(1))
    listed = segments(tmp_path / "r")
    (path,) = listed.values()
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    monkeypatch.setattr(files_of_a_record, "segments", lambda folder: listed)
    assert pieces_of(read_record(tmp_path / "r")) == seen(POLLS)


def test_a_mark_beyond_the_lines_that_were_read_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorder goes on while its record is read: what it adds is not missing from what is said to be seen."""
    write(tmp_path / "r", POLLS[:3], random.Random(1))
    real = files_of_a_record.read_lines

    def slow(folder: Path) -> Any:
        lines = list(real(folder))
        write(folder, POLLS[3:], random.Random(1))
        return lines

    monkeypatch.setattr("hpcdl.batch.record.pieces.read_lines", slow)
    assert pieces_of(read_record(tmp_path / "r")) == seen(POLLS[:3])
