"""The objective `makespan`: the last job is to end as soon as possible.

Jobs that scale badly waste GPUs when they are spread wide, and the longest job decides when all are done. So for a time
T, let each waiting job have the option of least GPU time on which it ends within T (the canonical allotment of Turek,
Wolf and Yu for malleable jobs); small T make jobs wide, large T thrifty. Which T and which order of the queue are best
is not guessed but tried: every T at which an option changes, longest or largest first, is run forward to the end of all
jobs (adaptive/rollout.py), and so is each single change of a running job, which must gain more than `WORTH`. The start
that leads to the earliest end of all is the decision; of equal ones, that with the earlier ends of all jobs together.

The work is bounded by a number, not by a clock: the most promising T come first, those near to the one at which all
GPU time just fits, and where even a few runs would be too much only that one is taken, without trying.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from hpcdl.adaptive.allotment import Allotment
from hpcdl.adaptive.choice import Choice
from hpcdl.adaptive.options import Candidate, Found, Option
from hpcdl.adaptive.rollout import Entrant, Forecast, Given, Running, at_once, fit, forward
from hpcdl.adaptive.smooth import concave
from hpcdl.core.model import JobState
from hpcdl.core.plan import JobView, View
from hpcdl.core.units import GpuRef, count, seconds_text

WORK = 10_000
"""Work (see `Forecast.work`) for one decision: about 15 ms."""

FEWEST_RUNS = 6
"""Where that is not enough for so many trials, none is made."""

WORTH = 0.005
"""Share of the time to go that a suspend must gain beyond its cost: predictions err, and every change is a risk."""

PATIENCE_S = 4 * 3600.0
"""Who has waited for longer is served before all others, in FIFO order: no stream of longer jobs can starve it."""

UNKNOWN_S = 1800.0
"""How long jobs without a number of steps are thought to take where nothing is known of any."""

_Wants: TypeAlias = tuple[Option, ...]
"""What each waiting job should have, in the order of `Case.waiting`."""


def choose(view: View, found: Found) -> Choice:
    """The option of each job; None: it waits."""
    case = Case.of(view, found)
    if case.waiting or any(case.free):
        search = Search(case)
        if case.effort <= WORK / FEWEST_RUNS:
            search.starts()
            search.changes()
        else:
            search.best = search.canonical()
        return _choice(case, search.best)
    return _choice(case, None)


@dataclass(frozen=True, slots=True)
class Case:
    """The jobs and nodes of one decision, as the model sees them.

    `waiting`: in FIFO order. `overdue`: how many of the first of them have waited longer than PATIENCE_S.
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

    @classmethod
    def of(cls, view: View, found: Found) -> "Case":
        """From what the policy sees. Jobs that fit no empty node are `never`."""
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
        never: list[int] = []
        kept: dict[int, Option] = {}
        for each in found.candidates:
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
                waiting.append((each.job.submitted_at, entrant))
            else:
                never.append(each.job.id)
        return cls(
            kinds,
            tuple(pool_of[name] for name in names),
            tuple(max(0, room) for room in free),
            tuple(running),
            frozenset(each.job.id for each in found.candidates if each.kept is not None and _movable(each)),
            tuple(entrant for _, entrant in waiting),
            sum(1 for submitted_at, _ in waiting if submitted_at < view.now - PATIENCE_S),
            kept,
            tuple(never),
            {each.job.id: each.options for each in found.candidates},
        )

    @property
    def effort(self) -> float:
        """The work of running all jobs forward once, or about that."""
        return (len(self.running) + len(self.waiting)) * (1 + len(self.kinds) / 16)

    def original(self, job: int, given: Given) -> Option:
        """The candidate's own option for what the model gave it: the same shape, in the pool of the first node."""
        like, pool = given.option, self.pools[given.on[0]]
        shape = (like.kind, like.nodes, like.gpus)
        alike = [each for each in self.options[job] if (each.kind, each.nodes, each.gpus) == shape]
        return next((each for each in alike if each.pool == pool), alike[0])


@dataclass(frozen=True, slots=True)
class Trial:
    """A decision and what it leads to.

    `wants`, `order` (places in `Case.waiting`) and `squeeze` are how the queue is served; `changed`: running jobs that
    go to another option.
    """

    wants: _Wants
    order: tuple[int, ...]
    squeeze: bool
    changed: Mapping[int, Given]
    forecast: Forecast

    @property
    def given(self) -> dict[int, Given]:
        """What jobs are given now that is not what they hold."""
        return {**self.forecast.at_once, **self.changed}


class Search:
    """The trials for one case. `work`: starts of jobs that may still be looked at in the model."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.work = WORK
        self.best: Trial | None = None
        self._allotment = Allotment(case.waiting)
        self._tried: set[tuple[_Wants, tuple[int, ...]]] = set()

    def starts(self) -> None:
        """Every T, each order, with and without taking less than wanted; the likeliest first."""
        for limit_s in self._limits():
            wants = self._allotment.wants(limit_s)
            for order in self.orders(wants):
                if (wants, order) not in self._tried:
                    self._tried.add((wants, order))
                    for squeeze in (True, False):
                        if self.best is None or self.work > 0:
                            self._try(wants, order, squeeze)
            if self.work <= 0:
                return

    def changes(self) -> None:
        """Each single change of a running job, the queue served as in the best trial."""
        assert self.best is not None
        base = self.best
        least = base.forecast.makespan_s * (1 - WORTH)
        for each in sorted(self.case.running, key=lambda running: -running.ends_s):
            if each.entrant.id not in self.case.movable:
                continue
            for option in each.entrant.options:
                if self.work <= 0:
                    return
                if option.stall_s > 0:
                    trial = self._changed(base, each, option)
                    if trial is not None and trial.forecast.makespan_s < least and self._better(trial):
                        self.best = trial

    def canonical(self) -> Trial:
        """The start for the T at which all GPU time just fits, and nothing of what follows."""
        limits = self._allotment.limits()
        wants = self._allotment.wants(self._balance_s(limits))
        order = self.orders(wants)[0]
        waiting = self.case.waiting
        given = at_once(
            self.case.kinds, self.case.free, self.case.running, [(waiting[place], wants[place]) for place in order]
        )
        return Trial(wants, order, True, {}, Forecast(math.nan, {}, given, 0))

    def orders(self, wants: _Wants) -> tuple[tuple[int, ...], ...]:
        """The longest first, those with most GPU time first, FIFO; overdue jobs come before all others in each."""
        waiting = self.case.waiting
        seconds = [entrant.seconds(option) for entrant, option in zip(waiting, wants, strict=True)]
        areas = [each * option.units for each, option in zip(seconds, wants, strict=True)]
        first = range(self.case.overdue)
        later = range(self.case.overdue, len(waiting))
        longest = sorted(later, key=lambda place: (-seconds[place], place))
        largest = sorted(later, key=lambda place: (-areas[place], place))
        return (*first, *longest), (*first, *largest), (*first, *later)

    def _try(self, wants: _Wants, order: tuple[int, ...], squeeze: bool) -> None:
        trial = self._run(wants, order, squeeze, self.case.running, self.case.free, {})
        if self.best is None or self._better(trial):
            self.best = trial

    def _better(self, trial: Trial) -> bool:
        assert self.best is not None
        new, old = trial.forecast, self.best.forecast
        same = 1e-9 * (1 + old.makespan_s)
        if abs(new.makespan_s - old.makespan_s) > same:
            return new.makespan_s < old.makespan_s
        return new.total_s < old.total_s - same

    def _changed(self, base: Trial, each: Running, option: Option) -> Trial | None:
        """The trial in which that running job goes to the option; None where it does not fit."""
        free = list(self.case.free)
        for place in each.on:
            free[place] += each.option.gpus
        stays = len(each.on) == option.nodes and all(
            free[place] >= option.gpus and self.case.kinds[place] == option.kind for place in each.on
        )
        on = each.on if stays else fit(self.case.kinds, free, option)
        if on is None:
            return None
        for place in on:
            free[place] -= option.gpus
        moved = replace(each, option=option, on=on, stall_s=option.stall_s)
        running = tuple(moved if other is each else other for other in self.case.running)
        return self._run(base.wants, base.order, base.squeeze, running, free, {each.entrant.id: Given(option, on)})

    def _run(
        self,
        wants: _Wants,
        order: tuple[int, ...],
        squeeze: bool,
        running: Sequence[Running],
        free: Sequence[int],
        changed: Mapping[int, Given],
    ) -> Trial:
        queue = [(self.case.waiting[place], wants[place]) for place in order]
        forecast = forward(self.case.kinds, free, running, queue, squeeze)
        self.work -= forecast.work
        return Trial(wants, order, squeeze, changed, forecast)

    def _limits(self) -> list[float]:
        """Every T at which an option changes, those first that are nearest (as a ratio) to where the GPU time fits."""
        limits = self._allotment.limits()
        balance_s = self._balance_s(limits)
        return sorted(limits or [0.0], key=lambda limit_s: abs(math.log(max(limit_s, 1e-9) / max(balance_s, 1e-9))))

    def _balance_s(self, limits: list[float]) -> float:
        if not limits:
            return 0.0
        running = self.case.running
        held = sum(each.ends_s * each.option.gpus * len(each.on) for each in running)
        gpus = sum(self.case.free) + sum(each.option.gpus * len(each.on) for each in running)
        return self._allotment.balance_s(limits, held, gpus)


def _sizes(view: View, names: Sequence[str]) -> list[int]:
    """GPUs of each node that jobs can be given: all but those that a blocked job still holds."""
    held = {gpu for job in view.jobs if job.blocked and job.placement is not None for gpu in job.placement.gpus}
    usable = {node.name: node.gpus for node in view.nodes}
    return [sum(GpuRef(name, gpu) not in held for gpu in usable[name]) for name in names]


class _Entrants:
    """Makes jobs of the model; those with the same options share them."""

    def __init__(self, now: float, found: Found) -> None:
        self.now = now
        self.guess_s = _typical_s(found.candidates)
        self._shapes: dict[tuple[int, int], tuple[Option, ...]] = {}

    def of(self, each: Candidate) -> Entrant:
        """The job with one option of each shape, the fastest first."""
        job = each.job
        key = (id(each.options), id(job.profile))
        options = self._shapes.get(key)
        if options is None:
            options = self._shapes[key] = _shapes(_believable(each))
        left = each.remaining
        if left is None and each.fixed and each.kept is not None:
            left = job.remaining(self.now, each.kept.kind)
        if left is None:
            left = self.guess_s * max((option.rate for option in options), default=1.0)
        again_s = math.inf
        if job.profile is not None and (job.can_suspend or job.started_at is None) and len(options) > 1:
            again_s = job.profile.restart_s(1, 2, False, True)
        return Entrant(job.id, max(left, 1e-6), options, again_s)


def _shapes(options: Iterable[Option]) -> tuple[Option, ...]:
    """Of options that differ only in where they are, the one that costs least to go to."""
    found: dict[tuple[str, int, int], Option] = {}
    for option in options:
        shape = (option.kind, option.nodes, option.gpus)
        if shape not in found or option.stall_s < found[shape].stall_s:
            found[shape] = option
    return tuple(sorted(found.values(), key=lambda option: (-option.rate, option.units)))


def _believable(each: Candidate) -> Iterable[Option]:
    """Its options with rates that make a curve, where its profile says that they have an error."""
    profile = each.job.profile
    if profile is None or profile.spread == 0:
        return each.options
    families: dict[tuple[str, int], list[Option]] = {}
    for option in sorted(each.options, key=lambda option: option.gpus):
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


def _choice(case: Case, best: Trial | None) -> Choice:
    given = {} if best is None else {job: case.original(job, each) for job, each in best.given.items()}
    options: dict[int, Option | None] = dict(case.kept)
    why: dict[int, str] = {}
    makespan_s = math.nan if best is None else best.forecast.makespan_s
    jobs = count(len(case.running) + len(case.waiting), "job")
    end = f": the last of {jobs} ends in {seconds_text(makespan_s)}" if math.isfinite(makespan_s) else ""
    for each in case.running:
        if each.entrant.id in given:
            why[each.entrant.id] = f"goes to {_words(given[each.entrant.id])}{end}"
    for entrant in case.waiting:
        options[entrant.id] = None
        if entrant.id in given:
            why[entrant.id] = f"starts on {_words(given[entrant.id])}{end}"
        else:
            ends_s = None if best is None else best.forecast.ends.get(entrant.id)
            own = "" if ends_s is None else f"; should end in {seconds_text(ends_s)}"
            why[entrant.id] = f"waits: the last job ends sooner if longer ones come first{own}"
    for number in case.never:
        options[number], why[number] = None, "fits no node"
    return Choice({**options, **given}, False, None, why, None)


def _words(option: Option) -> str:
    gpus = count(option.gpus, "GPU")
    return gpus if option.nodes == 1 else f"{option.nodes} nodes with {gpus} each"
