"""What starts, saves and whole jobs took on this instance, by script and model, model, script, framework and user.

Who knows nothing of a job itself asks the narrowest of its groups of which something is known. All of it follows from
the jobs in the world, so nothing is stored, and a builder that starts anew says the same. `view_builder.py` shows
policies what is usual; the API answers `hpcdl why` and submits with deadlines from it. It decides nothing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean

from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.profile import UsualJob
from hpcdl.core.model.units import SHORTEST_S, count, seconds_text, took_text
from hpcdl.core.model.world import Job, JobState, World

MOST = 2_000
"""Jobs that are looked at, the last ones; in steps of BLOCK, so that it is rarely counted anew."""

BLOCK = 500

RECENT = 32
"""Jobs of one group that count, the last ones."""

SCALING = 0.85
"""n GPUs train n to this power times as fast as one, where nothing better is known."""

GRAIN = 1.25
"""What policies see is rounded to powers of it, so that it stays the same while nothing new is learnt."""

DOUBT = {"job": 0.25, "model": 0.6, "script": 0.6, "framework": 0.9, "user": 1.0}
"""Sigma of the logarithm within a group of which one job is known; it counts for DOUBT_COUNTS jobs, so that what was
seen replaces it."""

LENGTH_DOUBT = 1.0
"""The same, at least, of lengths and steps: most scripts are tried with few steps before they are run."""

DOUBT_COUNTS = 2.0

LAUNCHERS = {"torchrun": "torch", "accelerate": "accelerate", "deepspeed": "deepspeed", "horovodrun": "horovod"}

Group = tuple[str, str]
"""(level, name), the level as in DOUBT."""


def framework_of(spec: JobSpec) -> str:
    """The framework that the job's options or its command name; "" where they name none."""
    named = spec.progress or (spec.signal if spec.signal in ("hf", "lightning", "submitit") else "")
    programs = (part.rpartition("/")[2] for part in spec.command[:4])
    return named or next((LAUNCHERS[each] for each in programs if each in LAUNCHERS), "")


def groups_of(spec: JobSpec) -> tuple[Group, ...]:
    """The groups that a job belongs to, the narrowest first."""
    likeness = spec.learns_as
    named = (
        ("job", likeness),
        ("model", (spec.model or "").lower()),
        ("script", likeness.rpartition(" @ ")[2]),
        ("framework", framework_of(spec)),
        ("user", spec.user),
    )
    return tuple((level, name) for level, name in named if name)


def _words(group: Group) -> str:
    """Whose jobs those of a group are: `bert by train.py`, `model bert`, `train.py`, `hf jobs`, `ann's jobs`."""
    level, name = group
    if level == "job":
        model, _, script = name.rpartition(" @ ")
        return script if model == script else f"{model} by {script}"
    return {"model": f"model {name}", "script": name, "framework": f"{name} jobs"}.get(level, f"{name}'s jobs")


@dataclass(frozen=True, slots=True)
class Sample:
    """What one job took; None where that is not known. Seconds, and steps."""

    start: float | None  # its last start of which its trainer said when it began to train
    save: float | None  # its newest durable checkpoint
    length: float | None  # all of its training, on one GPU; None until it is DONE
    steps: float | None  # of the whole job, once it is DONE


FIELDS = ("start", "save", "length", "steps")


def sample_of(job: Job) -> Sample | None:
    """What the job took so far; None where nothing is known."""
    length = steps = None
    held = job.last.placement
    if job.outcome is JobState.DONE and held is not None and job.held_gpu_s > 0:
        gpus = len(held.gpus)
        starts_s = (job.costs.start_s or 0.0) * (1 + job.suspends) * gpus
        length = max(0.1 * job.held_gpu_s, job.held_gpu_s - starts_s) * gpus ** (SCALING - 1.0)
        steps = job.progress.total or job.progress.step or None
    # One that never said when it begins to train was first seen at some step.
    found = Sample(
        job.costs.start_s if job.can_suspend else None,
        job.costs.save_s,
        length,
        None if steps is None else float(steps),
    )
    return None if found == Sample(None, None, None, None) else found


@dataclass(frozen=True, slots=True)
class Learnt:
    """What something took the last jobs of one group: mean, least and most; `spread`: sigma of its logarithm."""

    group: Group
    mean: float
    low: float
    high: float
    times: int
    spread: float

    def text(self, of: str) -> str:
        """`about 24 s (18 s to 41 s, 5 starts of train.py)`; `of`: what was counted, in the singular."""
        about = "about " if self.mean >= SHORTEST_S else ""
        low, high = seconds_text(self.low), seconds_text(self.high)
        span = f"{low} to {high}" if self.low >= SHORTEST_S else f"up to {high}"
        band = f"{span}, " if self.times > 1 and self.high >= SHORTEST_S and low != high else ""
        return f"{about}{took_text(self.mean)} ({band}{count(self.times, of)} of {self.whose})"

    @property
    def whose(self) -> str:
        """Whose jobs these are, in words."""
        return _words(self.group)


def _learnt(group: Group, what: str, values: Sequence[float]) -> Learnt:
    doubt = max(DOUBT[group[0]], LENGTH_DOUBT) if what in ("length", "steps") else DOUBT[group[0]]
    logs = [math.log(max(each, 1e-3)) for each in values]
    middle = fmean(logs)
    squares = DOUBT_COUNTS * doubt**2 + sum((each - middle) ** 2 for each in logs)
    spread = math.sqrt(squares / (DOUBT_COUNTS + len(logs) - 1))
    return Learnt(group, fmean(values), min(values), max(values), len(values), spread)


class Histories:
    """What the jobs of one world after another took. Only a cache: one that starts anew says the same."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[tuple[Group, ...], Sample]] = {}
        self._members: dict[Group, dict[int, Sample]] = {}
        self._learnt: dict[Group, dict[str, Learnt]] = {}
        self._usual: dict[tuple[Group, ...], UsualJob | None] = {}
        self._first = 0
        self._retired: dict[str, int] | None = None

    def look(self, world: World, changed: Iterable[int] | None) -> bool:
        """Takes in what jobs took since the last look; `changed`: those that may have, None: any of them.

        Whether anything is known otherwise than before.
        """
        first = max(0, (world.next_job - MOST) // BLOCK * BLOCK)
        news = False
        if first != self._first or world.retired is not self._retired:
            self._first, self._retired = first, world.retired
            for number in [each for each in self._of if each < first or each not in world.jobs]:
                self._drop(number)
                news = True
        for number in range(first, world.next_job) if changed is None else changed:
            job = world.jobs.get(number)
            if job is not None and number >= first:
                news = self._put(job) or news
        if news:
            self._usual.clear()
        return news

    def _put(self, job: Job) -> bool:
        found, known = sample_of(job), self._of.get(job.id)
        if found is None or (known is not None and known[1] == found):
            if found is None and known is not None:
                self._drop(job.id)
                return True
            return False
        groups = groups_of(job.spec) if known is None else known[0]
        self._of[job.id] = (groups, found)
        for group in groups:
            self._members.setdefault(group, {})[job.id] = found
            self._learnt.pop(group, None)
        return True

    def _drop(self, number: int) -> None:
        groups, _ = self._of.pop(number)
        for group in groups:
            members = self._members[group]
            del members[number]
            self._learnt.pop(group, None)
            if not members:
                del self._members[group]

    def learnt(self, groups: Iterable[Group], what: str) -> Learnt | None:
        """What a field of `Sample` was in the first group of which it is known; None: it never was."""
        return next((found for group in groups if (found := self._learnt_in(group).get(what)) is not None), None)

    def _learnt_in(self, group: Group) -> Mapping[str, Learnt]:
        """By field of `Sample`, where it is known. Kept: thousands of jobs may ask for one user's."""
        known = self._learnt.get(group)
        if known is None:
            members = self._members.get(group)
            if members is None:
                return {}
            newest = [members[number] for number in sorted(members, reverse=True)]
            known = self._learnt[group] = {}
            for what in FIELDS:
                found = (value for sample in newest if (value := getattr(sample, what)) is not None)
                if values := list(islice(found, RECENT)):
                    known[what] = _learnt(group, what, values)
        return known

    def usual(self, groups: tuple[Group, ...]) -> UsualJob | None:
        """What is usual of jobs of these groups, rounded; None where nothing of them is known."""
        if groups not in self._usual:
            self._usual[groups] = self._usual_of(groups)
        return self._usual[groups]

    def _usual_of(self, groups: tuple[Group, ...]) -> UsualJob | None:
        start, save, length, steps = (self.learnt(groups, what) for what in FIELDS)
        if start is None and save is None and length is None:
            return None
        return UsualJob(
            None if start is None else _rounded(start.mean),
            None if save is None else _rounded(save.mean),
            None if length is None else _rounded(length.mean),
            0.0 if length is None else _rounded(length.spread),
            None if steps is None else float(f"{steps.mean:.2g}"),
            0.0 if steps is None else _rounded(steps.spread),
            "" if length is None else f"{count(length.times, 'job')} of {length.whose}",
            0.0 if start is None else _rounded(start.spread),
            length is not None and length.group[0] in ("job", "script"),
        )


def _rounded(value: float) -> float:
    return 0.0 if value <= 0 else float(GRAIN ** round(math.log(value, GRAIN)))
