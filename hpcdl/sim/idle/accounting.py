"""A record out of past accounting: what a recorder would have seen of the jobs that sacct lists.

A node idles while no job of the list is on it. That is known from the first end of a job on, for all that ran then are
listed, until the last start of one, for whatever began by then is listed.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from math import ceil, inf
from pathlib import Path

from hpcdl.batch.record.folder import RecordFolder
from hpcdl.batch.record.lines import ChangeLine, PollMark, RecordError, RecordLine, StartLine
from hpcdl.core.model.units import expand_nodes
from hpcdl.sim.readers.source import Place, rows_of, shown
from hpcdl.sim.workload import WorkloadError

SACCT_FIELDS = ("JobIDRaw", "Start", "End", "NodeList")
_NONE = ("", "Unknown", "None", "N/A", "None assigned")


@dataclass(frozen=True, slots=True)
class BusyNodes:
    """A job held these nodes from `start` to `end`, in seconds since the epoch; inf: it runs still."""

    nodes: tuple[str, ...]
    start: float
    end: float


def sacct_argv(since: str) -> list[str]:
    """All users' jobs that ran since then (`now-30days`), each run of a requeued one. Times are to be epoch seconds."""
    form = f"--format={','.join(SACCT_FIELDS)}"
    return ["sacct", "--allusers", "--allocations", "--duplicates", "--parsable2", f"--starttime={since}", form]


def jobs_of_sacct(path: Path, text: str) -> tuple[BusyNodes, ...]:
    """Of what sacct --parsable2 printed: Start, End and NodeList; JobID tells steps, other columns are passed over.

    Jobs that have not started are left out. Times without a zone are local ones. Raises WorkloadError with the line.
    """
    jobs = []
    for place, cells in rows_of(path, text, ("Start", "End", "NodeList"), None, "|"):
        if "." in cells.get("JobID", "") or "." in cells.get("JobIDRaw", ""):
            continue
        if cells["Start"] in _NONE or cells["NodeList"] in _NONE:
            continue
        start = _moment(place, "Start", cells["Start"])
        end = inf if cells["End"] in _NONE else _moment(place, "End", cells["End"])
        if end < start:
            place.wrong("End", f"{shown(cells['End'])} is before Start, {shown(cells['Start'])}")
        jobs.append(BusyNodes(expand_nodes(cells["NodeList"]), start, end))
    if not jobs:
        Place(path).wrong("", "lists no job that has run: ask sacct with --allusers and --starttime")
    return tuple(jobs)


def _moment(place: Place, column: str, text: str) -> float:
    if text.isdigit():
        return place.number(column, text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        place.wrong(column, f"expected a time such as 2026-02-10T12:00:00, got {shown(text)}")


def record_jobs(jobs: Sequence[BusyNodes], path: Path, every_s: float) -> tuple[int, int]:
    """Writes what polls every `every_s` seconds would have seen into a new folder; how many polls, and how many lines.

    All nodes are those on which some job ran. Raises WorkloadError, RecordError, OSError.
    """
    begin = min(job.end for job in jobs)
    last = max(job.start for job in jobs)
    if not begin < last:
        raise WorkloadError(
            "no job began after another one had ended, so nothing is known of idle nodes: ask sacct for more days"
        )
    polls = int((last - begin) // every_s) + 1
    lines = 0
    with closing(RecordFolder(path, sync=False)) as folder:
        if folder.last is not None:
            raise RecordError(f"{path} holds a record already: name another folder for that of the accounting")
        for line in _lines(jobs, begin, every_s, polls, folder):
            folder.append(line)
            lines += 1
        folder.mark(PollMark(_at(begin, every_s, polls), polls, every_s))
    return polls, lines


def _at(begin: float, every_s: float, number: int) -> float:
    return round(begin + (number - 1) * every_s, 3)


def _lines(
    jobs: Sequence[BusyNodes], begin: float, every_s: float, polls: int, folder: RecordFolder
) -> Iterator[RecordLine]:
    nodes = {name for job in jobs for name in job.nodes}
    busy: Counter[str] = Counter()
    idle = set(nodes)
    for number, changes in _changes(jobs, begin, every_s, polls):
        touched = set[str]()
        for job, more in changes:
            touched.update(job.nodes)
            for name in job.nodes:
                busy[name] += more
        joined = frozenset(name for name in touched if not busy[name] and name not in idle)
        left = frozenset(name for name in touched if busy[name] and name in idle)
        idle |= joined
        idle -= left
        at = _at(begin, every_s, number)
        if number == 1 or (folder.full and (joined or left)):
            before = None if number == 1 else _at(begin, every_s, number - 1)
            yield StartLine(PollMark(at, number, every_s), "sacct", len(nodes), frozenset(idle), before)
        elif joined or left:
            yield ChangeLine(at, number, joined, left)


def _changes(
    jobs: Sequence[BusyNodes], begin: float, every_s: float, polls: int
) -> Iterator[tuple[int, Iterable[tuple[BusyNodes, int]]]]:
    """By the poll that is the first to see them, from 1 on: the jobs that began (+1) and ended (-1)."""

    def seen(at: float) -> int:
        return max(1, 1 + ceil((at - begin) / every_s))

    ended = [job for job in jobs if job.end < inf]
    found = [(seen(job.start), job, 1) for job in jobs] + [(seen(job.end), job, -1) for job in ended]
    found = [each for each in found if each[0] <= polls]
    found.sort(key=lambda each: each[0])
    for number, group in groupby(found, key=lambda each: each[0]):
        yield number, [(job, more) for _, job, more in group]
