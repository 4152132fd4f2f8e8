"""Random machines, polled: what idles at each poll, and what is missed, to be written and read again."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdl.batch.adapter import IdleNodes
from hpcdl.batch.record.folder import RecordFolder
from hpcdl.batch.record.lines import PollMark, RecordLine, StartLine, line_of, text_of
from hpcdl.batch.record.pieces import IdleRecord, record_of
from hpcdl.batch.record.recorder import GAP_POLLS, IdleRecorder

EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class Poll:
    """At `at` seconds these idle; `gap`: nobody looked since the poll before."""

    at: float
    idle: frozenset[str]
    gap: bool = False


def random_polls(rng: random.Random, most: int = 40) -> list[Poll]:
    """Of up to 12 nodes, whose changes come alone and together; some polls are missed, by ones and by many."""
    nodes = [f"n{number}" for number in range(1, rng.randint(2, 13))]
    at, idle, polls = 1_700_000_000.0, frozenset(rng.sample(nodes, rng.randint(0, len(nodes)))), list[Poll]()
    for number in range(rng.randint(1, most)):
        missed = rng.choice((0, 0, 0, 0, 0, 1, 2, 50)) if number else 0
        at = round(at + (EVERY_S * (1 + missed) if number else 0.0) + rng.choice((0.0, 0.25)), 3)
        if rng.random() < 0.6:
            idle = idle ^ frozenset(rng.sample(nodes, rng.randint(0, min(4, len(nodes)))))
        polls.append(Poll(at, idle, missed + 1 > GAP_POLLS))
    return polls


def write(folder: Path, polls: Sequence[Poll], rng: random.Random, segment_bytes: int = 1 << 20) -> None:
    """Records them, now and then by another recorder, as after a restart."""
    files = RecordFolder(folder, segment_bytes)
    recorder = IdleRecorder(files, EVERY_S, "slurm")
    for poll in polls:
        if rng.random() < 0.1:
            files.close()
            files = RecordFolder(folder, segment_bytes)
            recorder = IdleRecorder(files, EVERY_S, "slurm")
        if poll.gap:
            recorder.miss()
        recorder.take(poll.at, IdleNodes(poll.idle, 16))
    files.close()


def seen(polls: Sequence[Poll]) -> set[tuple[str, float, float, bool, bool, int]]:
    """The pieces, counted plainly: node, begin, end, whether it was seen to join and to leave, number of polls."""
    found = set()
    for node in {name for poll in polls for name in poll.idle}:
        place = 0
        while place < len(polls):
            if node not in polls[place].idle:
                place += 1
                continue
            first = place
            joined = place > 0 and not polls[place].gap
            while place + 1 < len(polls) and node in polls[place + 1].idle and not polls[place + 1].gap:
                place += 1
            left = place + 1 < len(polls) and not polls[place + 1].gap
            end = polls[place + 1].at if left else polls[place].at
            found.add((node, polls[first].at, end, joined, left, place + 1 - first))
            place += 1
    return found


class LinesAlone(RecordFolder):
    """The lines of a record in memory, as text."""

    def __init__(self, segment_lines: int) -> None:
        self.text: list[str] = []
        self.last: PollMark | None = None
        self._lines, self._most = 0, segment_lines

    @property
    def full(self) -> bool:
        return self._lines >= self._most

    def append(self, line: RecordLine) -> None:
        self._lines = 0 if isinstance(line, StartLine) else self._lines + 1
        self.text.append(text_of(line))

    def mark(self, mark: PollMark) -> None:
        self.last = mark


def written(polls: Sequence[Poll], rng: random.Random) -> IdleRecord:
    """What is read of a record of these polls that was only in memory, so that thousands are made in a moment."""
    lines = LinesAlone(rng.choice((1, 5, 1000)))
    recorder = IdleRecorder(lines, EVERY_S, "slurm")
    for poll in polls:
        if rng.random() < 0.1:
            recorder = IdleRecorder(lines, EVERY_S, "slurm")
        if poll.gap:
            recorder.miss()
        recorder.take(poll.at, IdleNodes(poll.idle, 16))
    assert lines.last is not None
    return record_of(map(line_of, lines.text), lines.last)
