"""What lies in a home outside of its ledger and tells what that must have known: folders of jobs, access file, agents.

Only names and small files are read. What is not hpcdl's, or cannot be read, tells nothing.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcdl.core.beginnings import NAME as BEGINNING
from hpcdl.core.model import World
from hpcdl.ledger.mark import NO_IDS, Ids

_JOB = re.compile(r"[1-9]\d{0,14}")
_RUN = re.compile(r"([1-9]\d{0,14})\.([1-9]\d{0,9})")
_LOG = re.compile(r"([1-9]\d{0,9})\..+\.log")
_PILOT = re.compile(r"p([1-9]\d{0,9})\.(?:log|out|err|sh)")
_BEGINNING = re.compile(re.escape(BEGINNING.format("")) + r"([1-9]\d{0,9})")
_CLAIM = "claim.json"
_REPORTS = "reports.jsonl"
_KEY = re.compile(rb'\{"(?:mark":\[|n":.{1,80}"body":\{"job":)([1-9]\d{0,14}),(?:"incarnation":)?([1-9]\d{0,9})\b')
"""A line of a report log: a report of an incarnation, or how far its reports came."""
_LINES = 100_000
"""Of a report log, so many lines are read at most."""


@dataclass(frozen=True, slots=True)
class Traces:
    """What was found. `ids`: all below are, or may be, somebody's. `served`: the fence of the daemon that served last.

    `heard`: the highest fence that an agent of this node has heard of. `folders`: there are folders of jobs.
    """

    ids: Ids = NO_IDS
    served: int = 0
    heard: int = 0
    folders: bool = False

    @property
    def fence(self) -> int:
        """The highest that is known to have been in use."""
        return max(self.served, self.heard)


def look(home: Path, runs: Iterable[Path] = ()) -> Traces:
    """What lies in the home; `runs`: folders of agents that are elsewhere."""
    jobs = [number for name in ("checkpoints", "logs") for number in _numbers(home / name, _JOB)]
    folders, incarnation, heard = bool(jobs), 0, 0
    for run in {*_folders(home / "run"), *runs}:
        for job, number in _pairs(run):
            jobs.append(job)
            incarnation = max(incarnation, number)
        fence, job, number = _reported(run / _REPORTS)
        heard, incarnation = max(heard, fence), max(incarnation, number)
        jobs.append(job)
    pilots = _numbers(home / "logs" / "pilots", _PILOT)
    ids = Ids(job=max(jobs, default=0) + 1, pilot=max(pilots, default=0) + 1, incarnation=incarnation)
    return Traces(ids, _served(home / "access.json"), heard, folders)


def look_at_jobs(home: Path, world: World) -> Ids:
    """What the logs and checkpoint folders of the unfinished jobs tell of attempts that the ledger does not know."""
    incarnation = beginning = 0
    for number in world.active:
        spec = world.jobs[number].spec
        folder = Path(spec.checkpoint_dir or home / "checkpoints" / str(number))
        begun = _numbers(folder, _BEGINNING)
        beginning = max([beginning, *begun])
        for each in (folder, *(folder / BEGINNING.format(which) for which in begun)):
            incarnation = max(incarnation, _claimed(each / _CLAIM))
        incarnation = max([incarnation, *_numbers(home / "logs" / str(number), _LOG)])
    return Ids(incarnation=incarnation, beginning=beginning)


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []


def _numbers(folder: Path, form: re.Pattern[str]) -> list[int]:
    matches = (form.fullmatch(name) for name in _names(folder))
    return [int(match[1] if match.re.groups else match[0]) for match in matches if match is not None]


def _folders(folder: Path) -> Iterator[Path]:
    for name in _names(folder):
        if (folder / name).is_dir():
            yield folder / name


def _pairs(run: Path) -> Iterator[tuple[int, int]]:
    for name in _names(run):
        if (match := _RUN.fullmatch(name)) is not None:
            yield int(match[1]), int(match[2])


def _claimed(path: Path) -> int:
    with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
        number = json.loads(_content(path))["incarnation"]
        return number if type(number) is int and 0 < number < 10**10 else 0
    return 0


def _served(path: Path) -> int:
    with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
        fence = json.loads(_content(path))["fence"]
        return fence if type(fence) is int and fence > 0 else 0
    return 0


def _content(path: Path) -> bytes:
    # Checkpoint folders may be others' too: nothing that is put there may hold us up.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        return file.read(1 << 16)


def _reported(path: Path) -> tuple[int, int, int]:
    """Of an agent's report log: the highest fence that it heard of, and the highest job and incarnation."""
    fence = job = incarnation = 0
    with suppress(OSError, ValueError, AttributeError, RecursionError):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            for line, _ in zip(file, range(_LINES), strict=False):
                if line.startswith((b'{"last"', b'{"fence"')):
                    number = json.loads(line).get("fence")
                    fence = max(fence, number if type(number) is int else 0)
                elif (match := _KEY.match(line)) is not None:
                    job, incarnation = max(job, int(match[1])), max(incarnation, int(match[2]))
    return fence, job, incarnation
