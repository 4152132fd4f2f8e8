"""The best that any schedule can do for a few jobs on one node, found exactly, and a bound for all schedules.

It knows the future that no policy knows: all jobs are there at time 0, and their curves and costs are the truth. The
node has GPUs that are all alike; a job on several nodes with as many GPUs on each is the same with the curve of its
number of nodes.

The space of `optimum`: at time 0, whenever a job ends, and every `every_s` seconds where that is given, each unfinished
job is given any number of GPUs from 0 on, in any combination that the node holds. A job that never ran needs
`startup_s` before its first step. One that trains and is given another number (or none) stands still for its suspend
and resume. One that has not come to its first step yet starts over. In between nothing changes, so the time until the
next end follows. GPUs that a suspended job gives up are free at once, which favours suspends: what is found is a bound
for such schedules, and where it suspends nothing it is the optimum exactly.

The search is depth first, the most promising decision first, and leaves what cannot beat the best schedule found: the
longest remaining job at its fastest, and the least GPU time of all jobs together, are what is yet to come at least.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.optimize import linprog

from hpcdl.core.model.profile import Profile

_BETTER = 1e-6  # seconds; less than that is rounding


@dataclass(frozen=True, slots=True)
class OfflineJob:
    """A job of the set: its true profile and its steps."""

    profile: Profile
    steps: int


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best schedule. `decisions`: (when, GPUs of each job); `visited`: decision points that were looked at."""

    makespan_s: float
    decisions: tuple[tuple[float, tuple[int, ...]], ...]
    visited: int

    @property
    def ends(self) -> tuple[float, ...]:
        """When each job ends, in seconds."""
        jobs = len(self.decisions[0][1]) if self.decisions else 0
        return tuple(
            next((when for when, counts in self.decisions if counts[job] < 0), self.makespan_s) for job in range(jobs)
        )

    @property
    def suspends(self) -> int:
        """How often a job that had GPUs is given another number before it ends, none included."""
        return sum(
            1
            for (_, before), (_, after) in zip(self.decisions, self.decisions[1:], strict=False)
            for old, new in zip(before, after, strict=True)
            if old and new >= 0 and old != new
        )


@dataclass(frozen=True, slots=True)
class _State:
    """A job in a decision point: steps left, GPUs, seconds until it trains on them, whether it has a checkpoint."""

    left: float
    gpus: int
    stall_s: float
    saved: bool


_States = tuple[_State | None, ...]


def optimum(
    jobs: Sequence[OfflineJob],
    gpus: int,
    nodes: int = 1,
    every_s: float | None = None,
    changes: int | None = None,
    below_s: float = math.inf,
) -> Optimum:
    """The schedule with the shortest makespan, see above. In `decisions`, -1 is a job that has ended.

    `nodes`: each job runs on all of so many nodes with `gpus` GPUs. `changes`: at most so many suspends in all; without
    it the search with `every_s` takes very long for more than two jobs. `below_s`: only what is shorter is looked for,
    which is quicker; where there is nothing, the makespan is `below_s` and there are no decisions.
    """
    if not jobs or gpus < 1 or nodes < 1:
        raise ValueError(f"needs jobs, gpus >= 1 and nodes >= 1, got {len(jobs)} jobs, {gpus} and {nodes}")
    return _Search(jobs, gpus, nodes, every_s, changes, below_s).run()


class _Search:
    def __init__(
        self,
        jobs: Sequence[OfflineJob],
        gpus: int,
        nodes: int,
        every_s: float | None,
        changes: int | None,
        below_s: float,
    ) -> None:
        self.jobs, self.gpus, self.every_s, self.changes = jobs, gpus, every_s, changes
        self.rates = [[job.profile.rate(count, nodes) for count in range(gpus + 1)] for job in jobs]
        self.fastest = [max(rates) for rates in self.rates]
        self.thrift = [min(count / rates[count] for count in range(1, gpus + 1)) for rates in self.rates]
        self.splits = {alive: tuple(splits(alive, gpus)) for alive in range(1, len(jobs) + 1)}
        self.best = Optimum(below_s, (), 0)
        self.visited = 0
        self.seen: dict[tuple[float, _States], int] = {}

    def run(self) -> Optimum:
        self._visit(0.0, tuple(_State(float(job.steps), 0, 0.0, False) for job in self.jobs), (), 0)
        return Optimum(self.best.makespan_s, self.best.decisions, self.visited)

    def _visit(self, now: float, states: _States, path: tuple[tuple[float, tuple[int, ...]], ...], made: int) -> None:
        self.visited += 1
        alive = [number for number, state in enumerate(states) if state is not None]
        if not alive:
            if now < self.best.makespan_s - _BETTER:
                self.best = Optimum(now, path, 0)
            return
        if self.changes is not None:
            key = (round(now, 3), states)  # with fewer changes made, it was looked at with more freedom
            if self.seen.get(key, self.changes + 1) <= made:
                return
            self.seen[key] = made
        begun = [[self._begin(n, states[n], count) for count in range(self.gpus + 1)] for n in alive]
        spans = [
            [math.inf] + [s.stall_s + s.left / self.rates[n][s.gpus] for s in each[1:]]
            for n, each in zip(alive, begun, strict=True)
        ]
        found = []
        for split in self.splits[len(alive)]:
            span = min([each[count] for each, count in zip(spans, split, strict=True)])
            if span == math.inf or now + span >= self.best.makespan_s - _BETTER:
                continue
            changed = 0
            if self.changes is not None:
                changed = sum(self._changed(states[n], count) for n, count in zip(alive, split, strict=True))
                if made + changed > self.changes:
                    continue
            chosen = {n: each[count] for n, each, count in zip(alive, begun, split, strict=True)}
            after, later = self._advance(now, chosen, span)
            least = after + self._to_come(later)
            if least < self.best.makespan_s - _BETTER:
                counts = tuple(chosen[n].gpus if n in chosen else -1 for n in range(len(states)))
                found.append((least, after, later, counts, made + changed))
        found.sort(key=lambda entry: entry[0])
        for least, after, later, counts, total in found:
            if least < self.best.makespan_s - _BETTER:
                self._visit(after, later, (*path, (now, counts)), total)

    @staticmethod
    def _changed(state: _State | None, count: int) -> int:
        return int(state is not None and state.gpus not in (0, count))

    def _begin(self, number: int, state: _State | None, count: int) -> _State:
        """The job right after the decision that gives it `count` GPUs."""
        assert state is not None
        profile = self.jobs[number].profile
        if count == state.gpus:
            return state
        if state.gpus == 0 or state.stall_s > 0:  # nothing to save
            stall_s = profile.resume_for(state.gpus, count, False) if state.saved else profile.startup_s
            return _State(state.left, count, stall_s if count else 0.0, state.saved)
        stall_s = profile.restart_s(state.gpus, count, False, True) if count else 0.0
        return _State(state.left, count, stall_s, True)

    def _advance(self, now: float, begun: dict[int, _State], span: float) -> tuple[float, _States]:
        """The next decision point, at the latest after `span` seconds, and the jobs there."""
        if self.every_s is not None:
            span = min(span, (int(now / self.every_s + 1e-9) + 1) * self.every_s - now)
        later: list[_State | None] = [None] * len(self.jobs)
        for number, state in begun.items():
            left = state.left - max(0.0, span - state.stall_s) * self.rates[number][state.gpus]
            if left > 1e-9 * self.jobs[number].steps:
                later[number] = _State(left, state.gpus, max(0.0, state.stall_s - span), state.saved)
        return now + span, tuple(later)

    def _to_come(self, states: _States) -> float:
        """Seconds that no schedule can avoid."""
        longest = area = 0.0
        for number, state in enumerate(states):
            if state is not None:
                profile = self.jobs[number].profile
                first = min(profile.resume_s, profile.resume_for(0, 1, False)) if state.saved else profile.startup_s
                stall_s = state.stall_s if state.gpus else first
                longest = max(longest, stall_s + state.left / self.fastest[number])
                area += stall_s + state.left * self.thrift[number]
        return max(longest, area / self.gpus)


def splits(jobs: int, gpus: int) -> Iterator[tuple[int, ...]]:
    """Every way to give `jobs` jobs at most `gpus` GPUs together."""
    if jobs == 0:
        yield ()
        return
    for first in range(gpus + 1):
        for rest in splits(jobs - 1, gpus - first):
            yield (first, *rest)


def bound(jobs: Sequence[OfflineJob], gpus: int, nodes: int = 1) -> float:
    """Seconds below which no schedule can be, even if GPUs could change hands at any moment free of charge.

    A linear programme over how long each split of the GPUs is in force: each job must make its steps, and must have a
    GPU for as long as its start-up takes.
    """
    columns = []
    for split in splits(len(jobs), gpus):
        choices = [(True, False) if count == 1 else (False,) for count in split]
        for starting in product(*choices):
            steps = [
                0.0 if first else job.profile.rate(count, nodes)
                for job, count, first in zip(jobs, split, starting, strict=True)
            ]
            columns.append(steps + [float(first) for first in starting])
    needs = [float(job.steps) for job in jobs] + [job.profile.startup_s for job in jobs]
    solved = linprog(np.ones(len(columns)), A_ub=-np.array(columns).T, b_ub=-np.array(needs))
    if solved.status != 0:
        raise ArithmeticError(f"the bound could not be found: {solved.message}")
    return float(solved.fun)
