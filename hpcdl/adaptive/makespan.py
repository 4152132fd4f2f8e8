"""The objective `makespan`: the last job is to end as soon as possible.

Jobs that scale badly waste GPUs when they are spread wide, and the longest job decides when all are done. How wide each
should be, and who starts first, is not guessed but tried: many starts are run forward to the end of all jobs
(adaptive/rollout.py), and the one with the earliest end is the decision; of equal ones, that with the smaller sum of
ends. Tried are the canonical allotments for every time T at which one changes (adaptive/allotment.py), each with the
queue in three orders; every way to share the free GPUs, where few jobs wait; and changes of running jobs, which must
gain more than `WORTH`. Nobody is suspended for good.

The work is bounded by a number, not by a clock: the most promising T come first, those near to the one at which all
GPU time just fits, and where even a few runs would be too much that one is taken, without trying.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from hpcdl.adaptive.allotment import AllotmentTable
from hpcdl.adaptive.case import RolloutCase
from hpcdl.adaptive.choice import Choice
from hpcdl.adaptive.options import Option, OptionMenu
from hpcdl.adaptive.rollout import JobGrant, RolloutResult, Running, at_once, fit, forward
from hpcdl.core.model.plan import View
from hpcdl.core.model.units import count, seconds_text

WORK = 15_000
"""Work (see `RolloutResult.work`) for one decision: about 20 ms."""

FEWEST_RUNS = 6
"""Where that is not enough for so many trials, none is made."""

MOST_TO_SPLIT = 5
"""Up to so many waiting jobs, every way to share the free GPUs among them is tried as well."""

WORTH = 0.005
"""Share of the time to go that a suspend must gain beyond its cost: predictions err, and every change is a risk."""

_Wants: TypeAlias = tuple[Option, ...]
"""What each waiting job should have, in the order of `RolloutCase.waiting`."""


def choose(view: View, found: OptionMenu) -> Choice:
    """The option of each job; None: it waits."""
    case = RolloutCase.of(view, found)
    if case.waiting or any(case.free):
        search = Search(case)
        if case.effort <= WORK / FEWEST_RUNS:
            search.starts()
            if not case.overdue:
                search.splits()
                search.changes()
            return _choice(case, search.decided())
        return _choice(case, search.canonical())
    return _choice(case, None)


@dataclass(frozen=True, slots=True)
class Trial:
    """A decision and what it leads to.

    `wants`, `order` (places in `RolloutCase.waiting`) and `squeeze` are how the queue is served; `fixed`: what was laid
    down beforehand.
    """

    wants: _Wants
    order: tuple[int, ...]
    squeeze: bool
    fixed: Mapping[int, JobGrant]
    forecast: RolloutResult

    @property
    def given(self) -> dict[int, JobGrant]:
        """What jobs are given now that is not what they hold."""
        return {**self.forecast.at_once, **self.fixed}


class Search:
    """The trials for one case.

    `work`: how much may still be done in the model. `best`: the best trial that changes no running job; `bold`: the
    best one that does.
    """

    def __init__(self, case: RolloutCase) -> None:
        self.case = case
        self.work = WORK
        self.best: Trial | None = None
        self.bold: Trial | None = None
        self._allotment = AllotmentTable(case.waiting)
        self._tried: set[tuple[_Wants, tuple[int, ...]]] = set()

    def decided(self) -> Trial:
        """The best trial, where a change of running jobs is worth it."""
        assert self.best is not None
        worth_s = self.best.forecast.makespan_s * (1 - WORTH)
        return self.bold if self.bold is not None and self.bold.forecast.makespan_s < worth_s else self.best

    def starts(self) -> None:
        """Tries every T, each order, with and without taking less than wanted; the likeliest first."""
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

    def splits(self) -> None:
        """Tries every way to share the free GPUs among a few waiting jobs; the rest as in the best trial."""
        assert self.best is not None
        base, case = self.best, self.case
        if 1 <= len(case.waiting) <= MOST_TO_SPLIT:
            for started in _splits(case, list(case.free), 0):
                if self.work <= 0:
                    return
                free = list(case.free)
                for each in started:
                    _take(free, each.on, each.option.gpus)
                given = {each.entrant.id: JobGrant(each.option, each.on) for each in started}
                self._try(base.wants, base.order, base.squeeze, (*case.running, *started), free, given)

    def changes(self) -> None:
        """Tries each running job with each other option, one at a time, the queue served as in the best trial."""
        assert self.best is not None
        base, case = self.best, self.case
        for each in sorted(case.running, key=lambda running: -running.ends_s):
            if each.entrant.id not in case.movable:
                continue
            for option in each.entrant.options:
                if self.work <= 0:
                    return
                if option.stall_s == 0:
                    continue
                free = list(case.free)
                _take(free, each.on, -each.option.gpus)
                on = self._where(each, option, free)
                if on is not None:
                    _take(free, on, option.gpus)
                    moved = replace(each, option=option, on=on, stall_s=option.stall_s)
                    running = tuple(moved if other is each else other for other in case.running)
                    given = {each.entrant.id: JobGrant(option, on)}
                    self._try(base.wants, base.order, base.squeeze, running, free, given)

    def _where(self, each: Running, option: Option, free: Sequence[int]) -> tuple[int, ...] | None:
        """Its own nodes, if the option fits there, else others."""
        kinds = self.case.kinds
        if len(each.on) == option.nodes and all(
            free[place] >= option.gpus and kinds[place] == option.kind for place in each.on
        ):
            return each.on
        return fit(kinds, free, option)

    def canonical(self) -> Trial:
        """The start for the T at which all GPU time just fits, and nothing of what follows."""
        limits = self._allotment.limits()
        wants = self._allotment.wants(self._balance_s(limits))
        order = self.orders(wants)[0]
        waiting = self.case.waiting
        given = at_once(
            self.case.kinds,
            self.case.free,
            self.case.running,
            [(waiting[place], wants[place]) for place in order],
            self.case.overdue,
        )
        return Trial(wants, order, True, {}, RolloutResult(math.nan, {}, given, 0))

    def orders(self, wants: _Wants) -> tuple[tuple[int, ...], ...]:
        """Orders of the queue: the longest first, most GPU time first, FIFO; overdue jobs come first in each."""
        waiting = self.case.waiting
        seconds = [entrant.seconds(option) for entrant, option in zip(waiting, wants, strict=True)]
        areas = [each * option.units for each, option in zip(seconds, wants, strict=True)]
        first = range(self.case.overdue)
        later = range(self.case.overdue, len(waiting))
        longest = sorted(later, key=lambda place: (-seconds[place], place))
        largest = sorted(later, key=lambda place: (-areas[place], place))
        return (*first, *longest), (*first, *largest), (*first, *later)

    def _try(
        self,
        wants: _Wants,
        order: tuple[int, ...],
        squeeze: bool,
        running: Sequence[Running] | None = None,
        free: Sequence[int] | None = None,
        given: Mapping[int, JobGrant] | None = None,
    ) -> None:
        """Runs it forward, with running jobs changed at once or only later; remembers the best of each."""
        case = self.case
        queue = [(case.waiting[place], wants[place]) for place in order]
        if given:
            queue = [entry for entry in queue if entry[0].id not in given]
        for settled in (False, True):
            forecast = forward(
                case.kinds,
                case.free if free is None else free,
                case.running if running is None else running,
                queue,
                squeeze,
                case.overdue,
                settled,
            )
            self.work -= forecast.work
            trial = Trial(wants, order, squeeze, given or {}, forecast)
            if case.kept.keys().isdisjoint(trial.given):
                if _better(trial, self.best):
                    self.best = trial
                return
            if _better(trial, self.bold):
                self.bold = trial

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


def _better(trial: Trial, other: Trial | None) -> bool:
    """Whether the last job ends sooner, or all together do."""
    if other is None:
        return True
    new, old = trial.forecast, other.forecast
    same = 1e-9 * (1 + old.makespan_s)
    if abs(new.makespan_s - old.makespan_s) > same:
        return new.makespan_s < old.makespan_s
    return new.total_s < old.total_s - same


def _take(free: list[int], on: Sequence[int], gpus: int) -> None:
    for place in on:
        free[place] -= gpus


def _splits(case: RolloutCase, free: list[int], first: int) -> Iterator[tuple[Running, ...]]:
    """Every choice of options, or none, for the waiting jobs from `first` on, that fits what is free."""
    if first == len(case.waiting):
        yield ()
        return
    entrant = case.waiting[first]
    for option in entrant.options:
        on = fit(case.kinds, free, option)
        if on is not None:
            _take(free, on, option.gpus)
            for rest in _splits(case, free, first + 1):
                yield (Running(entrant, option, on, option.stall_s), *rest)
            _take(free, on, -option.gpus)
    yield from _splits(case, free, first + 1)


def _choice(case: RolloutCase, best: Trial | None) -> Choice:
    # The model expects one that only starts to grow as soon as it can; that is decided then, not now.
    stays = case.kept.keys() - case.movable
    given = (
        {} if best is None else {job: case.original(job, each) for job, each in best.given.items() if job not in stays}
    )
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
            own = "" if ends_s is None else f"; predicted to end in {seconds_text(ends_s)}"
            why[entrant.id] = f"the last job ends sooner if longer jobs go first{own}"
    for number in case.never:
        options[number], why[number] = None, "fits no node"
    return Choice({**options, **given}, False, None, why, case.wake_at)


def _words(option: Option) -> str:
    gpus = count(option.gpus, "GPU")
    return gpus if option.nodes == 1 else f"{option.nodes} nodes with {gpus} each"
