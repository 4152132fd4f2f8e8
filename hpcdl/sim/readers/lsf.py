"""LSF's accounting: what `bhist -l` and `bacct -l` print, one story a job.

Lines are broken at 80 columns, inside words too, and go on below at an indent of 21 columns; moments come
without a year, unless LSF is configured to show it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from hpcdl.sim.readers.job_rules import ReaderDefaults, WorkloadBuilder, WorkloadRow, parse_asked
from hpcdl.sim.readers.source import Place, read_text
from hpcdl.sim.workload import Workload

_JOB = re.compile(r"Job <(\d+(?:\[\d+\])?)>,")
_FIELD = {key: re.compile(rf"{key} <([^>]*)>") for key in ("Job Name", "User")}
_MOMENT = re.compile(r"(\w{3}) (\w{3}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d)(?: (\d{4}))?: (.*)", re.DOTALL)
_WRAP = re.compile(r"\n {21}")  # not more: a further space is the text's own
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_LATEST_YEAR = 2037
_MOST_YEARS = 5  # in so many in a row no date is the same day of the week twice
_Date: TypeAlias = tuple[str, str, int]
_GPUS = (
    re.compile(r"(?:GPU REQ[^:]{0,20}|^ Combined|^ Effective): ?num=(\d+)", re.MULTILINE),
    re.compile(r"-gpu \"?num=(\d+)"),
    re.compile(r"Requested GPU <num=(\d+)"),
    re.compile(r"ngpus_physical=(\d+)"),
)
_ELEMENT = re.compile(r"^\[\d+\] [dD](?=ispatched)")  # an element of an array
_HOSTS = re.compile(r"(?:Dispatched|Started)[^<]*((?:<[^>]+>[, ]*)+)")
_ENDS = ("Done successfully", "Exited", "Completed <", "Termination request")
_STOPS = ("Suspended", "Pending", "Job is being requeued", "Requeue")


@dataclass(slots=True)
class _LsfStory:
    """What the text says of a job; `events`: when (seconds since the epoch), and what happened."""

    number: str
    line: int
    name: str
    user: str
    text: str
    events: list[tuple[float, str]] = field(default_factory=list)

    def submitted(self) -> float | None:
        return next((at for at, what in self.events if what.startswith("Submitted")), None)

    def seconds(self) -> float:
        """Seconds that it ran: the summary's where bhist gives one, else between its starts and stops."""
        summary = re.search(r"PEND +PSUSP +RUN +USUSP .*\n +\d+ +\d+ +(\d+) ", self.text)
        if summary:
            return float(summary[1])
        total, since = 0.0, None
        for at, what in self.events:
            if since is None and what.startswith(("Starting", "Dispatched", "Started", "Running;")):
                since = at
            elif since is not None and what.startswith((*_ENDS, *_STOPS)):
                total, since = total + at - since, None
        return total

    def gpus(self) -> int | None:
        """GPUs on each host; None: it requested none."""
        for pattern in _GPUS:
            found = pattern.search(self.text)
            if found and int(found[1]):
                return int(found[1])
        return 1 if re.search(r"Requested GPU[;, <]|^ GPU_ALLOCATION:", self.text, re.MULTILINE) else None

    def hosts(self) -> int:
        """Different hosts that it was dispatched to; 1 if that is not said."""
        for _, what in reversed(self.events):
            found = _HOSTS.match(what)
            if found:
                return len({each.rsplit("*", 1)[-1] for each in re.findall(r"<([^>]+)>", found[1])})
        return 1


def read_lsf(path: Path, given: ReaderDefaults) -> Workload:
    """Every job that had GPUs and ran, for as long as it ran; the first submit becomes 0.

    Left out and counted in the notes: jobs without GPUs, and those that have not run.
    """
    place = Place(path)
    jobs = WorkloadBuilder(place, given)
    for story in _stories(place, read_text(path)):
        place.line = story.line
        submit, gpus = story.submitted(), story.gpus()
        if submit is None:
            place.wrong("", f"job {story.number}: no moment of its submit: use bhist -l or bacct -l")
        seconds = story.seconds()
        if gpus is None:
            jobs.note("left out: a job without GPUs")
        elif seconds <= 0:
            jobs.note("left out: a job that has not run")
        else:
            hosts = story.hosts()
            asked = parse_asked(place, gpus, hosts if hosts > 1 else None, given.per_node)
            name = f"{story.number} {story.name}".strip()[:200]
            jobs.add(WorkloadRow(submit, "", asked, duration_s=seconds, user=story.user, name=name))
    none = "tells of no job with GPUs that ran: give it what bhist -l or bacct -l prints"
    return jobs.workload(f"LSF history {path.name}", none, rebase=True)


def _stories(place: Place, text: str) -> Iterator[_LsfStory]:
    text = text.replace("\r\n", "\n")
    starts = [match.start() for match in re.finditer(r"^Job <\d", text, re.MULTILINE)]
    wholes = [_WRAP.sub("", text[start:end]) for start, end in pairwise([*starts, len(text)])]
    years = _years({_date(moment) for whole in wholes for moment in _moments(whole) if not moment[7]})
    line, at = 1, 0
    for start, whole in zip(starts, wholes, strict=True):
        line, at = line + text.count("\n", at, start), start
        head = whole.split("\n", 1)[0]
        found = _JOB.match(head)
        if found is None:
            continue
        told = {key: match[1] if (match := pattern.search(head)) else "" for key, pattern in _FIELD.items()}
        place.line = line
        events = [(_seconds(place, moment, years), _ELEMENT.sub("D", moment[8])) for moment in _moments(whole)]
        yield _LsfStory(found[1], line, told["Job Name"], told["User"], whole, events)


def _moments(whole: str) -> Iterator[re.Match[str]]:
    return (moment for each in whole.split("\n") if (moment := _MOMENT.match(each)) is not None)


def _date(moment: re.Match[str]) -> _Date:
    return moment[1], moment[2], int(moment[3])


def _years(dates: set[_Date]) -> dict[_Date, int]:
    """A year for every date, such that it is that day of the week: the fewest years in a row that explain them all.

    Only differences count, so which years they are does not matter (2037 at the latest). Empty if there are none.
    """
    for width in range(1, _MOST_YEARS + 1):
        for last in range(_LATEST_YEAR, _LATEST_YEAR - 28, -1):
            fitting = {
                each: next((year for year in range(last, last - width, -1) if _is(each, year)), None) for each in dates
            }
            found = {each: year for each, year in fitting.items() if year is not None}
            if len(found) == len(dates):
                return found
    return {}


def _is(date: _Date, year: int) -> bool:
    weekday, month, day = date
    try:
        return datetime(year, _MONTHS.index(month) + 1, day, tzinfo=UTC).weekday() == _DAYS.index(weekday)
    except ValueError:  # 29 February, or no date at all
        return False


def _seconds(place: Place, moment: re.Match[str], years: dict[_Date, int]) -> float:
    year = int(moment[7]) if moment[7] else years.get(_date(moment), 0)
    try:
        month = _MONTHS.index(moment[2]) + 1
        clock = (int(moment[4]), int(moment[5]), int(moment[6]))
        return datetime(year, month, int(moment[3]), *clock, tzinfo=UTC).timestamp()
    except ValueError:
        place.wrong("", f"{moment[0][:19]!r} is no moment, or not within {_MOST_YEARS} years of the others")
