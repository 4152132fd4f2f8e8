"""What becomes of a decision: all jobs run forward to their ends in a model, with a plain rule for what comes later.

Pure arithmetic on the believed rates and costs, fast enough to compare hundreds of decisions at one event. Nodes and
their free GPUs are numbers; which GPU is which does not matter here. The rule, at the start and whenever a job ends:
waiting jobs start in the given order on the option that each is to have, or, where that does not fit, on the fastest
one that does (`squeeze`), or are passed over. Once nobody waits, the jobs beside the one that would end last are given
the numbers of GPUs with which the last of them ends soonest, what the changes cost included.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hpcdl.adaptive.options import Option

LOOK = 100
"""When so many waiting jobs did not fit, the later ones are not looked at until the next job ends."""

MOST_SHARED = 17
"""One more than the jobs whose nodes are shared out anew at once where nothing is run forward: those that end last."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A job in the model. `left`: steps to do. `again_s`: seconds without progress of a later change; inf: it has none.

    The options' `stall_s` is what going there costs now.
    """

    id: int
    left: float
    options: tuple[Option, ...]
    again_s: float

    def seconds(self, option: Option) -> float:
        """From now to its end on that option."""
        return option.stall_s + self.left / option.rate


@dataclass(frozen=True, slots=True)
class Running:
    """A job that has GPUs: which option, on which nodes (by number), and seconds until it trains on them."""

    entrant: Entrant
    option: Option
    on: tuple[int, ...]
    stall_s: float

    @property
    def ends_s(self) -> float:
        """Seconds until it ends if nothing changes."""
        return self.stall_s + self.entrant.left / self.option.rate


@dataclass(frozen=True, slots=True)
class JobGrant:
    """What a job is given, and on which nodes."""

    option: Option
    on: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """Jobs run forward to their ends. `ends`: seconds from now by job. `at_once`: what jobs are given now.

    `work`: how much it took to find out, in units of about a microsecond; the same for the same arguments.
    """

    makespan_s: float
    ends: dict[int, float]
    at_once: dict[int, JobGrant]
    work: int

    @property
    def total_s(self) -> float:
        """Sum of the ends."""
        return sum(self.ends.values())


def fit(kinds: Sequence[str], free: Sequence[int], option: Option) -> tuple[int, ...] | None:
    """The nodes with fewest free GPUs on which the option fits, or None."""
    if option.nodes == 1:
        best, least = -1, math.inf
        for number, room in enumerate(free):
            if option.gpus <= room < least and kinds[number] == option.kind:
                best, least = number, room
                if room == option.gpus:
                    break
        return (best,) if best >= 0 else None
    rooms = sorted(
        (room, number) for number, room in enumerate(free) if room >= option.gpus and kinds[number] == option.kind
    )
    if len(rooms) < option.nodes:
        return None
    return tuple(number for _, number in rooms[: option.nodes])


def forward(
    kinds: Sequence[str],
    free: Sequence[int],
    running: Sequence[Running],
    queue: Sequence[tuple[Entrant, Option]],
    squeeze: bool,
    first: int = 0,
    settled: bool = False,
) -> RolloutResult:
    """Runs all jobs forward, up to the end of the last one.

    `kinds`, `free`: the nodes' type of GPU and GPUs that nobody of `running` has. `queue`: who waits, in the order in
    which they are served, with the option that each should have; the `first` ones of them start in this order and
    before all others. `settled`: no running job is changed now, only later. Jobs that never fit are left out.
    """
    run = _RolloutRun(kinds, free, running, queue, squeeze, first)
    run.serve(settled)
    at_once = dict(run.given)
    while run.next_end():
        run.serve()
    return RolloutResult(max(run.ends.values(), default=0.0), run.ends, at_once, run.work)


def at_once(
    kinds: Sequence[str],
    free: Sequence[int],
    running: Sequence[Running],
    queue: Sequence[tuple[Entrant, Option]],
    first: int = 0,
) -> dict[int, JobGrant]:
    """What `forward` with `squeeze` gives jobs now, without what follows; running jobs get what nobody waits for."""
    run = _RolloutRun(kinds, free, running, queue, True, first)
    run.serve(settled=True)
    if not run.queue:
        for last in sorted(run.active.values(), key=_end)[:-MOST_SHARED:-1]:
            run.share(last)
    return run.given


_Way: TypeAlias = tuple[float, int, Option]


@dataclass(slots=True)
class _At:
    entrant: Entrant
    option: Option
    on: tuple[int, ...]
    trains_s: float
    left: float  # when it trains
    ends_s: float


class _RolloutRun:
    """A run of the model, changed from one end of jobs to the next; the arguments are those of `forward`."""

    def __init__(
        self,
        kinds: Sequence[str],
        free: Sequence[int],
        running: Sequence[Running],
        queue: Sequence[tuple[Entrant, Option]],
        squeeze: bool,
        first: int,
    ) -> None:
        self.kinds, self.free, self.queue = list(kinds), list(free), list(queue)
        self.squeeze, self.first = squeeze, first
        self.now = 0.0
        self.room = sum(free)
        self.active: dict[int, _At] = {}
        self.heap: list[tuple[float, int]] = []
        self.ends: dict[int, float] = {}
        self.given: dict[int, JobGrant] = {}
        self.most = _most(self.kinds, self.free)  # by type: no node has more free GPUs than that
        self.work = 0
        self.step = 1 + len(free) // 16
        for each in running:
            self.add(each.entrant, each.option, each.on, each.stall_s)

    def add(self, entrant: Entrant, option: Option, on: tuple[int, ...], stall_s: float) -> None:
        self.work += 1
        self._put(_At(entrant, option, on, self.now + stall_s, entrant.left, 0.0))

    def _put(self, at: _At) -> None:
        at.ends_s = at.trains_s + at.left / at.option.rate
        self.active[at.entrant.id] = at
        heapq.heappush(self.heap, (at.ends_s, at.entrant.id))

    def _take(self, on: tuple[int, ...], gpus: int) -> None:
        for number in on:
            self.free[number] -= gpus
            if gpus < 0:
                kind = self.kinds[number]
                self.most[kind] = max(self.most[kind], self.free[number])
        self.room -= gpus * len(on)

    def _fit(self, option: Option) -> tuple[int, ...] | None:
        if option.gpus > self.most.get(option.kind, 0):
            return None
        self.work += self.step
        found = fit(self.kinds, self.free, option)
        if found is None and option.nodes == 1:
            self.most[option.kind] = option.gpus - 1
        return found

    def next_end(self) -> bool:
        """Moves to the next moment at which jobs end; False where there is none."""
        moment = -1.0
        while self.heap and (moment < 0 or self.heap[0][0] <= moment + 1e-9):
            ends_s, number = heapq.heappop(self.heap)
            at = self.active.get(number)
            if at is None or at.ends_s != ends_s:
                continue  # it was changed meanwhile
            del self.active[number]
            self._take(at.on, -at.option.gpus)
            self.ends[number] = moment = ends_s
        if moment >= 0:
            self.now = moment
        return moment >= 0

    def serve(self, settled: bool = False) -> None:
        """Gives GPUs to those that wait; with nobody waiting, shares them out anew unless `settled`."""
        place = 0
        while place < min(len(self.queue), LOOK) and self.room > 0:
            self.work += 1
            if self._start(*self.queue[place]):
                del self.queue[place]
                self.first -= self.first > 0
            elif place < self.first:
                break
            else:
                place += 1
        if not self.queue and self.active and not settled:
            self.share(max(self.active.values(), key=_end))

    def _start(self, entrant: Entrant, wanted: Option) -> bool:
        option, on = wanted, self._fit(wanted)
        if on is None and self.squeeze:
            most = wanted.units
            for other in entrant.options:  # the fastest first
                if other.units < most or other.kind != wanted.kind:
                    option, on = other, self._fit(other)
                    if on is not None:
                        break
        if on is None:
            return False
        self._take(on, option.gpus)
        self.add(entrant, option, on, option.stall_s)
        if self.now == 0.0:
            self.given[entrant.id] = JobGrant(option, on)
        return True

    def share(self, last: _At) -> None:
        """Shares the GPUs of its nodes out anew, if that lets the last of the jobs there end sooner."""
        if self.now < last.trains_s or self.now + last.entrant.again_s >= last.ends_s:
            return
        there = frozenset(last.on)
        beside = [each for each in self.active.values() if not there.isdisjoint(each.on)]
        group = [each for each in beside if each.on == last.on]
        if len(group) < len(beside):
            group = [last]  # the others also have GPUs elsewhere
        spare = min(self.free[number] for number in last.on)
        ways = [self._ways(each) for each in group]
        self.work += len(self.active) // 8 + sum(map(len, ways))
        limits = sorted({ends_s for each in ways for ends_s, _, _ in each if ends_s < last.ends_s - 1e-6})
        low, high = 0, len(limits)
        while low < high:
            middle = (low + high) // 2
            if _extra(ways, limits[middle]) <= spare:
                high = middle
            else:
                low = middle + 1
        if low < len(limits):
            self._change(group, ways, limits[low], spare)

    def _ways(self, at: _At) -> list[_Way]:
        """What a job could have on its nodes: when it would end, GPUs more than now, the option. First: as it is."""
        found: list[_Way] = [(at.ends_s, 0, at.option)]
        again_s = at.entrant.again_s
        if self.now >= at.trains_s and self.now + again_s < at.ends_s:
            left = at.left - (self.now - at.trains_s) * at.option.rate
            for option in at.entrant.options:
                if (option.kind, option.nodes) == (at.option.kind, at.option.nodes) and option.gpus != at.option.gpus:
                    ends_s = self.now + again_s + left / option.rate
                    found.append((ends_s, option.gpus - at.option.gpus, option))
        return found

    def _change(self, group: list[_At], ways: list[list[_Way]], limit_s: float, spare: int) -> None:
        """Gives each job the fewest GPUs with which it ends by then; as it is, where there is room for that."""
        taken = [min((way for way in each if way[0] <= limit_s), key=lambda way: way[1]) for each in ways]
        spare -= sum(more for _, more, _ in taken)
        for place, each in enumerate(ways):
            if each[0][0] <= limit_s and taken[place][1] < 0 and -taken[place][1] <= spare:
                spare += taken[place][1]
                taken[place] = each[0]
        for at, (ends_s, more, option) in zip(group, taken, strict=True):
            if more:
                left = (ends_s - self.now - at.entrant.again_s) * option.rate
                self._take(at.on, more)
                self._put(_At(at.entrant, option, at.on, self.now + at.entrant.again_s, left, 0.0))
                if self.now == 0.0:
                    self.given[at.entrant.id] = JobGrant(option, at.on)


def _most(kinds: list[str], free: list[int]) -> dict[str, int]:
    """By type the most free GPUs of a node, 0 at least."""
    if kinds and kinds.count(kinds[0]) == len(kinds):  # as nearly everywhere, and this is done hundreds of times
        return {kinds[0]: max(0, *free)}
    found: dict[str, int] = {}
    for kind, room in zip(kinds, free, strict=True):
        found[kind] = max(room, found.get(kind, 0))
    return found


def _end(at: _At) -> tuple[float, int]:
    return at.ends_s, -at.entrant.id


def _extra(ways: Sequence[Sequence[_Way]], limit_s: float) -> float:
    """How many GPUs more the jobs need, all together, to end by then; infinite where one cannot."""
    return sum(min((more for ends_s, more, _ in each if ends_s <= limit_s), default=math.inf) for each in ways)
