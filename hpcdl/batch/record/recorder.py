"""What a poll writes into a record: a line where something changed, all that idles after a gap. Reads no clock."""

from hpcdl.batch.adapter import IdleNodes
from hpcdl.batch.record.folder import RecordFolder
from hpcdl.batch.record.lines import ChangeLine, PollMark, RecordLine, StartLine

GAP_POLLS = 2.5
"""So many times the seconds between two polls without an answer are a gap: two polls were missed. Of one it is not
known when within two polls a change came; that is no gap."""
LATE_S = 10.0
"""A poll may be so much later where none failed, for the batch system or the machine was slow."""


class IdleRecorder:
    """Takes the answers of a batch system, in order. `folder`: may hold a record, which goes on. `gap`: how long ago
    its last poll was is not known, for the clock was set back.
    """

    def __init__(self, folder: RecordFolder, every_s: float, system: str, *, gap: bool = False) -> None:
        self._folder, self._every_s, self._system = folder, every_s, system
        self._idle: frozenset[str] | None = None
        self._nodes: int | None = None
        self._missed = True  # what was before this recorder nobody has seen
        self._gap = gap

    def miss(self) -> None:
        """A poll had no answer."""
        self._missed = True

    def take(self, at: float, seen: IdleNodes) -> bool:
        """An answer. `at`: seconds since the epoch, not before the last one. Whether anything has changed.

        Raises OSError where it cannot be written: it is as if the poll had been missed.
        """
        last = self._folder.last
        mark = PollMark(round(at, 3), 1 if last is None else last.number + 1, self._every_s)
        nodes = self._nodes if seen.nodes is None else seen.nodes
        line = self._line(mark, last, seen.names, nodes)
        if line is not None:
            self._folder.append(line)
            self._idle, self._nodes = seen.names, nodes
        self._folder.mark(mark)
        self._missed = self._gap = False
        return line is not None

    def _line(
        self, mark: PollMark, last: PollMark | None, idle: frozenset[str], nodes: int | None
    ) -> RecordLine | None:
        gap = last is not None and (self._gap or self._is_gap(last, mark))
        changed = self._idle is None or idle != self._idle or nodes != self._nodes
        if self._idle is None or gap or (changed and self._folder.full):
            return StartLine(mark, self._system, nodes, idle, None if last is None else last.at, gap)
        if not changed:
            return None
        more = nodes if nodes != self._nodes else None
        return ChangeLine(mark.at, mark.number, idle - self._idle, self._idle - idle, more)

    def _is_gap(self, last: PollMark, now: PollMark) -> bool:
        late_s = 0.0 if self._missed else LATE_S
        return now.at - last.at > GAP_POLLS * max(last.every_s, now.every_s) + late_s
