"""The jobs and nodes of one decision, as the forward model (rollout.py) takes them, for the objective `makespan`.

Made once for each decision; makespan.py tries starts on it. Nothing here chooses.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hpcdl.adaptive import objectives
from hpcdl.adaptive.options import Candidate, Option, OptionMenu
from hpcdl.adaptive.prior import concave
from hpcdl.adaptive.rollout import Entrant, JobGrant, Running, fit
from hpcdl.core.model.plan import JobView, View
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import JobState

UNKNOWN_S = 1800.0
"""How long jobs without a number of steps are thought to take where nothing is known of any."""


@dataclass(frozen=True, slots=True)
class RolloutCase:
    """The jobs and nodes of one decision, as the model sees them.

    `waiting`: in FIFO order, except that the `overdue` first of them have waited for so long (objectives.PATIENCE_S)
    that nobody may start before them. No running job is suspended for good, so each of them starts when those that ran
    at that time are through, at the latest, and the overdue ones before it. `wake_at`: when the next one gets overdue.
    `kept`: what jobs have. `never`: who fits no empty node.
    """

    kinds: tuple[str, ...]
    pools: tuple[int, ...]
    free: tuple[int, ...]
    running: tuple[Running, ...]
    movable: frozenset[int]
    waiting: tuple[Entrant, ...]
    overdue: int
    kept: Mapping[int, Option]
    never: tuple[int, ...]
    options: Mapping[int, tuple[Option, ...]]
    wake_at: float | None

    @classmethod
    def of(cls, view: View, found: OptionMenu) -> "RolloutCase":
        """The case of a view and its candidates."""
        pool_of = {name: number for number, pool in enumerate(found.pools) for name in pool.nodes}
        names = [node.name for node in view.nodes if node.name in pool_of]
        places = {name: place for place, name in enumerate(names)}
        kinds = tuple(found.pools[pool_of[name]].kind for name in names)
        sizes = _sizes(view, names)
        free = list(sizes)
        entrants = _Entrants(view.now, found)
        fits: dict[int, bool] = {}
        running: list[Running] = []
        waiting: list[tuple[float, Entrant]] = []
        left_s = objectives.left_of(view, found).tolist() if found.candidates else []
        never: list[int] = []
        kept: dict[int, Option] = {}
        for each, alone_s in zip(found.candidates, left_s, strict=True):
            entrant = entrants.of(each)
            if each.kept is not None:
                on = tuple(places[name] for name in _nodes(each.job) if name in places)
                for place in on:
                    free[place] -= each.kept.gpus
                running.append(Running(entrant, each.kept, on, _stall_s(each.job, each.kept, view.now)))
                kept[each.job.id] = each.kept
                continue
            key = id(entrant.options)
            if key not in fits:
                fits[key] = any(fit(kinds, sizes, option) is not None for option in entrant.options)
            if fits[key]:
                patience_s = objectives.PATIENCE_S + objectives.PATIENCE_RUNS * alone_s
                waiting.append((each.job.submitted_at + patience_s, entrant))
            else:
                never.append(each.job.id)
        risky = [entrant for _, entrant in waiting if entrant.id in found.first]
        late = [entrant for at, entrant in waiting if at <= view.now and entrant.id not in found.first]
        others = [entrant for at, entrant in waiting if at > view.now and entrant.id not in found.first]
        late = risky + late
        return cls(
            kinds,
            tuple(pool_of[name] for name in names),
            tuple(max(0, room) for room in free),
            tuple(running),
            frozenset(each.job.id for each in found.candidates if each.kept is not None and _movable(each)),
            (*late, *others),
            len(late),
            kept,
            tuple(never),
            {each.job.id: each.options for each in found.candidates},
            min((overdue_at for overdue_at, _ in waiting if overdue_at > view.now), default=None),
        )

    @property
    def effort(self) -> float:
        """The work of running all jobs forward once, or about that."""
        return (len(self.running) + len(self.waiting)) * (1 + len(self.kinds) / 16)

    def original(self, job: int, given: JobGrant) -> Option:
        """The candidate's own option for what the model gave it: the same shape, in the pool of the first node."""
        like, pool = given.option, self.pools[given.on[0]]
        shape = (like.kind, like.nodes, like.gpus)
        alike = [each for each in self.options[job] if (each.kind, each.nodes, each.gpus) == shape]
        return next((each for each in alike if each.pool == pool), alike[0])


def _sizes(view: View, names: Sequence[str]) -> list[int]:
    """GPUs of each node that jobs can be given: all but those that a blocked job still holds."""
    held = {gpu for job in view.jobs if job.blocked and job.placement is not None for gpu in job.placement.gpus}
    usable = {node.name: node.gpus for node in view.nodes}
    if not held:
        return [len(usable[name]) for name in names]
    return [sum(GpuRef(name, gpu) not in held for gpu in usable[name]) for name in names]


class _Entrants:
    """Makes jobs of the model; those with the same options share them."""

    def __init__(self, now: float, found: OptionMenu) -> None:
        self.now = now
        self._candidates = found.candidates
        self._sizes = [pool.size for pool in found.pools]
        self._shapes: dict[Hashable, tuple[Option, ...]] = {}

    @cached_property
    def guess_s(self) -> float:
        """Seconds that a job of unknown length is taken to last."""
        return _typical_s(self._candidates)

    def of(self, each: Candidate) -> Entrant:
        """A candidate as a job of the model, with one option of each shape, the fastest first."""
        job = each.job
        key: Hashable = (id(each.options), id(job.profile))
        if _grows_later(each):  # its only option is its own; what it will have is not
            key = (each.kept, id(job.profile), job.gpus_min, job.gpus_max, job.counts)
        options = self._shapes.get(key)
        if options is None:
            options = self._shapes[key] = _shapes(_believable(each, self._later(each)))
        left = each.remaining
        if left is None and each.fixed and each.kept is not None:
            left = job.remaining(self.now, each.kept.kind)
        if left is None:
            left = self.guess_s * max((option.rate for option in options), default=1.0)
        again_s = math.inf
        if job.profile is not None and (job.can_suspend or job.step_at is None) and len(options) > 1:
            again_s = job.profile.restart_s(1, 2, False, True)
        return Entrant(job.id, max(left, 1e-6), options, again_s)

    def _later(self, each: Candidate) -> tuple[Option, ...]:
        """Its options; of one that starts, and cannot be suspended only because of that, those it will have."""
        job, kept = each.job, each.kept
        if not _grows_later(each) or kept is None or job.profile is None:
            return each.options
        there = job.profile.on(kept.kind)
        stall_s = there.restart_s(kept.units, kept.units, False, True)
        return tuple(
            kept if gpus == kept.gpus else replace(kept, gpus=gpus, rate=there.rate(gpus, kept.nodes), stall_s=stall_s)
            for gpus in job.allowed(self._sizes[kept.pool])
        )


def _grows_later(each: Candidate) -> bool:
    """Whether the job starts, and cannot be suspended only because of that."""
    return each.fixed and each.kept is not None and each.job.profile is not None and each.job.step_at is None


def _shapes(options: Iterable[Option]) -> tuple[Option, ...]:
    """Of options that differ only in where they are, the one that costs least to go to."""
    found: dict[tuple[str, int, int], Option] = {}
    for option in options:
        shape = (option.kind, option.nodes, option.gpus)
        if shape not in found or option.stall_s < found[shape].stall_s:
            found[shape] = option
    return tuple(sorted(found.values(), key=lambda option: (-option.rate, option.units)))


def _believable(each: Candidate, options: tuple[Option, ...]) -> Iterable[Option]:
    """The options with rates that make a curve, where its profile says that they have an error."""
    profile = each.job.profile
    if profile is None or profile.spread == 0:
        return options
    families: dict[tuple[str, int], list[Option]] = {}
    for option in sorted(options, key=lambda option: option.gpus):
        families.setdefault((option.kind, option.nodes), []).append(option)
    found = []
    for family in families.values():
        rates = concave(tuple(option.gpus for option in family), tuple(option.rate for option in family))
        found += [replace(option, rate=rate) for option, rate in zip(family, rates, strict=True)]
    return found


def _typical_s(found: Sequence[Candidate]) -> float:
    """How long a job without a number of steps is thought to take: as the middle one of the others at its fastest."""
    known = sorted(
        each.remaining / max(option.rate for option in each.options)
        for each in found
        if each.remaining is not None and each.options
    )
    return known[len(known) // 2] if known else UNKNOWN_S


def _nodes(job: JobView) -> tuple[str, ...]:
    held = job.target if job.leaving and job.target is not None else job.placement or job.target
    return () if held is None else held.nodes


def _movable(each: Candidate) -> bool:
    job = each.job
    return job.can_suspend and not job.leaving and job.state is JobState.RUNNING and job.step_at is not None


def _stall_s(job: JobView, kept: Option, now: float) -> float:
    """Seconds until a job trains on what it keeps."""
    profile = job.profile
    if profile is None or (job.step_at is not None and not job.leaving):
        return 0.0
    if job.leaving:
        before = 0 if job.placement is None else len(job.placement.gpus)
        moved = job.placement is not None and job.target is not None and job.placement.nodes != job.target.nodes
        return profile.restart_s(before, kept.gpus * kept.nodes, moved, True)
    whole = profile.resume_s if job.step > 0 else profile.startup_s
    return max(0.0, whole - (now - (job.held_since if job.held_since is not None else now)))
