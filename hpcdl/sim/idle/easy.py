"""A machine under EASY backfill, and which of its nodes idle: jobs of few nodes and of nearly all, short and long.

First come, first served; a job that cannot start yet has a reservation at the earliest moment at which the walltimes of
those that run leave it enough nodes, and later jobs run before it where they do not delay that (Lifka 1995). Nodes that
nobody can use until then are what BFTrainer lives on. Jobs are drawn: `BatchLoad`.
"""

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from hpcdl.sim.workload import NodeSpell, WorkloadError

HOUR_S = 3600.0
WARM_H = 72.0
"""Hours after which the machine no longer shows that it was empty at first."""


@dataclass(frozen=True, slots=True)
class BatchLoad:
    """The jobs of a machine, with assumed numbers. They arrive by a Poisson process.

    The tails are heavy, so that the machine is empty at times and full at others, as Summit was: with these numbers
    elastic trainers that rescale for nothing reach 92 to 95 % of what they do on the mean number of nodes, as there.

    load: node-seconds that are asked for over those that there are, runtimes being known. tail: of the sizes, the
    exponent of a Pareto law from one node on, cut at `largest` of all nodes. runtime_s, sigma: median and spread of a
    lognormal law of runtimes, cut at `longest_s`. slack: walltimes are up to so many times the runtime, evenly, in
    whole `step_s`.
    """

    load: float = 0.92
    tail: float = 0.6
    largest: float = 0.4
    runtime_s: float = 2400.0
    sigma: float = 1.2
    longest_s: float = 12 * HOUR_S
    slack: float = 2.0
    step_s: float = 600.0

    def __post_init__(self) -> None:
        for name in ("load", "tail", "runtime_s", "sigma", "longest_s", "step_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise WorkloadError(f"{name} must be above 0, got {getattr(self, name)}")
        if self.largest > 1:
            raise WorkloadError(f"largest is a share of all nodes, got {self.largest}")
        if not 1 <= self.slack < math.inf:
            raise WorkloadError(f"slack must be 1 or more, got {self.slack}")

    def size(self, rng: random.Random, nodes: int) -> int:
        """Nodes of a job, of a machine that has so many."""
        return max(1, min(int(self.largest * nodes), int(rng.paretovariate(self.tail))))

    def runtime(self, rng: random.Random) -> float:
        """Seconds that a job runs, in whole ones."""
        return float(round(min(self.longest_s, max(60.0, rng.lognormvariate(math.log(self.runtime_s), self.sigma)))))

    def walltime(self, rng: random.Random, runtime_s: float) -> float:
        """Seconds that are asked for a job that runs so long."""
        asked = runtime_s * rng.uniform(1.0, self.slack)
        return min(max(self.longest_s, runtime_s), self.step_s * math.ceil(asked / self.step_s))


@dataclass(frozen=True, slots=True)
class BatchArrival:
    """A job. Seconds."""

    at: float
    nodes: int
    runtime_s: float
    walltime_s: float


def arrivals(load: BatchLoad, nodes: int, end_s: float, seed: int) -> Iterator[BatchArrival]:
    """Jobs that arrive until then, in order."""
    rng = random.Random(seed)
    probe = random.Random(f"{seed} mean")  # the mean work of a job, by drawing: laws that are cut have no plain one
    drawn = [(load.size(probe, nodes), load.runtime(probe)) for _ in range(20_000)]
    work = sum(size * runtime_s for size, runtime_s in drawn) / len(drawn)
    at = 0.0
    while True:
        at += rng.expovariate(load.load * nodes / work)
        if at >= end_s:
            return
        size, runtime_s = load.size(rng, nodes), load.runtime(rng)
        yield BatchArrival(float(math.ceil(at)), size, runtime_s, load.walltime(rng, runtime_s))


def backfilled(load: BatchLoad, nodes: int, hours: float, seed: int) -> tuple[NodeSpell, ...]:
    """When which node idles in so many hours, after the machine has run for WARM_H; by begin and name.

    The same arguments give the same times, which are whole seconds.
    """
    machine = _Machine(nodes)
    begin, end = WARM_H * HOUR_S, float(round((WARM_H + hours) * HOUR_S))
    for job in arrivals(load, nodes, end, seed):
        machine.until(job.at)
        machine.submit(job)
    machine.until(end)
    return machine.spells(begin, end)


class _Machine:
    """Runs jobs. Nodes are given by number, the lowest first."""

    def __init__(self, nodes: int) -> None:
        self._free = list(range(nodes))  # a heap
        self._since = dict.fromkeys(range(nodes), 0.0)
        self._idle: list[tuple[float, float, int]] = []
        self._running: list[tuple[float, int, float, list[int]]] = []  # a heap: end, number, walltime's end, nodes
        self._queue: list[BatchArrival] = []
        self._started = 0

    def until(self, now: float) -> None:
        """Ends what ends by then, and starts what that makes room for."""
        while self._running and self._running[0][0] <= now:
            at = self._running[0][0]
            while self._running and self._running[0][0] == at:
                for node in heapq.heappop(self._running)[3]:
                    heapq.heappush(self._free, node)
                    self._since[node] = at
            self._start(at)

    def submit(self, job: BatchArrival) -> None:
        """A job arrives."""
        self._queue.append(job)
        self._start(job.at)

    def spells(self, begin: float, end: float) -> tuple[NodeSpell, ...]:
        """What idled from `begin` to `end`, in seconds since `begin`."""
        every = [*self._idle, *((self._since[node], end, node) for node in self._free)]
        found = [
            NodeSpell(f"n{node + 1}", 1, "", max(since, begin) - begin, min(until, end) - begin)
            for since, until, node in every
            if max(since, begin) < min(until, end)
        ]
        return tuple(sorted(found, key=lambda spell: (spell.from_s, int(spell.name[1:]))))

    def _start(self, now: float) -> None:
        while self._queue and self._queue[0].nodes <= len(self._free):
            self._run(self._queue.pop(0), now)
        if not self._queue or not self._free:
            return
        until, spare = self._reservation(now)
        waits = self._queue[:1]
        for job in self._queue[1:]:
            if job.nodes > len(self._free) or (now + job.walltime_s > until and job.nodes > spare):
                waits.append(job)
                continue
            if now + job.walltime_s > until:
                spare -= job.nodes
            self._run(job, now)
        self._queue = waits

    def _reservation(self, now: float) -> tuple[float, int]:
        """When the first of the queue is to start at the latest, and how many nodes it leaves free then."""
        free = len(self._free)
        for until, nodes in sorted((max(now, until), len(nodes)) for _, _, until, nodes in self._running):
            free += nodes
            if free >= self._queue[0].nodes:
                return until, free - self._queue[0].nodes
        raise AssertionError("a job of more nodes than there are")

    def _run(self, job: BatchArrival, now: float) -> None:
        held = [heapq.heappop(self._free) for _ in range(job.nodes)]
        self._idle += [(self._since[node], now, node) for node in held if self._since[node] < now]
        self._started += 1
        heapq.heappush(self._running, (now + job.runtime_s, self._started, now + job.walltime_s, held))
