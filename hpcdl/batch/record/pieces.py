"""What a record comes to: for each node the times in which it was seen idle, and the times in which somebody looked."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from hpcdl.batch.record.folder import last_mark, read_lines
from hpcdl.batch.record.lines import ChangeLine, PollMark, RecordError, RecordLine


@dataclass(frozen=True, slots=True)
class IdlePiece:
    """A node was idle from `begin` to `end`, in seconds. `span`: which of the record's it is in.

    `joined`, `left`: it was seen to; else the piece is cut there by an end of the record, or by a gap. `polls`: how
    many saw it, None where nobody polled.
    """

    node: str
    begin: float
    end: float
    span: int = 0
    joined: bool = True
    left: bool = True
    polls: int | None = None

    @property
    def whole(self) -> bool:
        """Whether its length is known."""
        return self.joined and self.left


@dataclass(frozen=True, slots=True)
class IdleRecord:
    """Pieces by their begin, and `spans` of time, (begin, end) in seconds, in which it was seen what idles.

    Between two spans is a gap: there nobody knows. `nodes`: how many nodes there are in all, None if that is not known.
    """

    pieces: tuple[IdlePiece, ...]
    spans: tuple[tuple[float, float], ...]
    nodes: int | None = None

    @property
    def seconds(self) -> float:
        """The observed time."""
        return sum(end - begin for begin, end in self.spans)

    def without_single(self) -> "IdleRecord":
        """Without nodes that are idle in a single poll, as between two batch jobs (section 2.1 of BFTrainer).

        Raises RecordError where nobody polled.
        """
        if any(piece.polls is None for piece in self.pieces):
            raise RecordError("nobody polled for a CSV file: only a record says which nodes idle in a single poll")
        return replace(self, pieces=tuple(piece for piece in self.pieces if piece.polls != 1))

    def joined(self) -> tuple[tuple[str, float, float], ...]:
        """The same without gaps, from 0 on: nodes with begin and end in seconds of observed time, by their begin.

        A node that is idle on both sides of a gap is idle through it.
        """
        starts = [0.0]
        for begin, end in self.spans:
            starts.append(starts[-1] + (end - begin))
        found: dict[str, list[IdlePiece]] = {}
        for piece in self.pieces:
            start, since = starts[piece.span], self.spans[piece.span][0]
            begin, end = (round(start + (at - since), 3) for at in (piece.begin, piece.end))
            moved = replace(piece, begin=begin, end=end)
            pieces = found.setdefault(piece.node, [])
            if pieces and not moved.joined and not pieces[-1].left and pieces[-1].end == moved.begin:
                pieces[-1] = replace(pieces[-1], end=moved.end, left=moved.left)
            else:
                pieces.append(moved)
        listed = [
            (node, piece.begin, piece.end)
            for node, pieces in found.items()
            for piece in pieces
            if piece.begin < piece.end
        ]
        return tuple(sorted(listed, key=lambda each: (each[1], each[0])))


def read_record(folder: Path) -> IdleRecord:
    """The record in a folder, up to its last poll. Raises RecordError, OSError."""
    pieces = _Pieces()
    mark = last_mark(folder)  # before the lines: a recorder may add some meanwhile, and none is beyond a later mark
    for line, place in read_lines(folder):
        try:
            pieces.take(line)
        except RecordError as error:
            raise RecordError(f"{place}: {error}: put a whole copy there, or record into another folder") from None
    return pieces.record(mark)


def record_of(lines: Iterable[RecordLine], last: PollMark | None = None) -> IdleRecord:
    """The record that these lines are, up to the last poll. Raises RecordError."""
    pieces = _Pieces()
    for line in lines:
        pieces.take(line)
    return pieces.record(last)


class _Pieces:
    """Puts lines together. `last`: time and number of the last poll that has a line, or ends a span."""

    def __init__(self) -> None:
        self.last: tuple[float, int] | None = None
        self._idle: dict[str, tuple[float, int, bool]] = {}  # since when, since which poll, and whether it was seen to
        self._pieces: list[IdlePiece] = []
        self._spans: list[tuple[float, float]] = []
        self._begin = 0.0
        self._nodes: int | None = None

    def take(self, line: RecordLine) -> None:
        """The next line. Raises RecordError where it does not follow from those before."""
        if isinstance(line, ChangeLine):
            if self.last is None:
                raise RecordError("a change before any start line")
            self._to(line.at, line.number)
            self._leave(line.left, line.at, line.number)
            self._join(line.joined, line.at, line.number)
            self._nodes = self._nodes if line.nodes is None else line.nodes
            return
        at, number = line.mark.at, line.mark.number
        if self.last is None:
            self._begin = at
        else:
            self._to(at if line.last_at is None else line.last_at, number - 1)
        if self.last is None or line.gap:
            self._end(number)
            self._begin, self.last = at, (at, number)
            self._idle = dict.fromkeys(line.idle, (at, number, False))
        else:
            self._to(at, number)
            before = self._idle.keys()
            self._leave(frozenset(before - line.idle), at, number)
            self._join(line.idle - before, at, number)
        self._nodes = line.nodes if line.nodes is not None else self._nodes

    def record(self, last: PollMark | None) -> IdleRecord:
        """All of them, up to the last poll, which may have no line. Raises RecordError where there is none."""
        if self.last is None:
            raise RecordError("the record has no poll yet: wait for its first one")
        if last is not None and last.number > self.last[1]:
            self._to(max(last.at, self.last[0]), last.number)
        self._end(self.last[1] + 1)
        pieces = sorted(self._pieces, key=lambda piece: (piece.begin, piece.node))
        return IdleRecord(tuple(pieces), tuple(self._spans), self._nodes)

    def _to(self, at: float, number: int) -> None:
        assert self.last is not None
        if at < self.last[0] or number < self.last[1]:
            raise RecordError("a poll that is before an earlier one")
        self.last = at, number

    def _join(self, names: Iterable[str], at: float, number: int) -> None:
        for name in names:
            if name in self._idle:
                raise RecordError(f"{name} joins, and is idle already")
            self._idle[name] = at, number, True

    def _leave(self, names: Iterable[str], at: float, number: int) -> None:
        for name in names:
            if name not in self._idle:
                raise RecordError(f"{name} leaves, and is not idle")
            self._close(name, at, number, left=True)

    def _close(self, name: str, at: float, number: int, *, left: bool) -> None:
        since, first, joined = self._idle.pop(name)
        self._pieces.append(IdlePiece(name, since, at, len(self._spans), joined, left, number - first))

    def _end(self, number: int) -> None:
        """A span has ended with its last poll, which is known; `number` is of the poll after it."""
        if self.last is not None:
            for name in list(self._idle):
                self._close(name, self.last[0], number, left=False)
            self._spans.append((self._begin, self.last[0]))
