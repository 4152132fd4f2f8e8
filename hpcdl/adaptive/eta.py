"""When a job will start and be done, with a band: the answer of `hpcdl why` for every job whose length is known.

What runs is estimated by the rate that it shows, else by its profile; what waits by a model of the queue (`courses`).
That model has one plain rule: who has GPUs keeps them to its end, and whenever some are free, those who wait start in
one order, each on the fewest GPUs that it takes; whom nothing fits is passed over. It counts GPUs, from one end to the
next, in a few milliseconds for thousands of jobs. What policies really do is more, and differs; so the band claims
CLAIM: of so many answers the truth is to be within, as many of the rest before it as after it. How wide it has to be
for that follows from what the model cannot know (`Signs`): jobs that will come, in which of two orders the policy takes
those that wait, and the job's own rate. With none of these it is LEAST to either side.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median

from hpcdl.adaptive.forecast import ArrivalModel, whole_of
from hpcdl.adaptive.options import Candidate, Menu, OptionMenu, candidates
from hpcdl.adaptive.prior import UNKNOWN, certainty_of, doubt
from hpcdl.core.model.plan import JobView, View

LOOK = 50
"""When so many who wait did not fit, later ones are not looked at until the next end."""

Order = Callable[[Candidate], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class StartAndEnd:
    """Seconds from now until a job first has GPUs, and until it is done."""

    waits_s: float
    ends_s: float


def shortest_first(each: Candidate) -> tuple[float, ...]:
    """Sort key: a higher priority first, then the least remaining time, as policies for short completion times do."""
    left_s = each.left_s
    return (-each.job.priority, float("inf") if left_s is None else left_s, each.job.id)


def in_turn(each: Candidate) -> tuple[float, ...]:
    """Sort key: a higher priority first, then the order of submission."""
    return (-each.job.priority, each.job.id)


def stays_s(each: Candidate, now: float, usual_s: float) -> float:
    """Seconds to a job's end on what it has or is to have (`kept`). `usual_s`: what is left of one of unknown
    length."""
    left_s = usual_s if each.left_s is None else each.left_s
    stall_s, speed = float(each.menu.stall_s[each.place]), float(each.menu.speed[each.place])
    return max(0.0, each.starts_at - now) + stall_s + left_s / speed


def run(found: OptionMenu, number: int, now: float, order: Order, usual_s: float) -> StartAndEnd | None:
    """When one waiting job would start and end in the model; None where it never fits, and where a job that shows no
    rate yet has to end before."""
    starts = courses(found, now, order, usual_s, number)
    mine = next(((course, guess) for each, course, guess in starts if each.job.id == number), None)
    if mine is None or (mine[1] is not None and not_yet(mine[1])):
        return None
    return mine[0]


def not_yet(each: Candidate) -> bool:
    """Whether the job's steps are known, but nothing yet of how fast it does them."""
    return each.job.total is not None and doubt(each.job) >= UNKNOWN


def courses(
    found: OptionMenu, now: float, order: Order, usual_s: float, number: int = 0
) -> Iterator[tuple[Candidate, StartAndEnd, Candidate | None]]:
    """The model of the queue: each waiting job in the order of starts, its start and end, and whether that is a guess.

    It is one where a job of unknown length, which is given then, has ended before. `number`: a job that is taken to
    wait, whatever it holds.
    """
    room = list(found.capacity)
    ends: list[tuple[float, int, int, int, Candidate | None]] = []
    queue = []
    for each in found.candidates:
        if each.kept is not None and each.job.id != number and each.options:
            room[each.kept.pool] -= each.kept.units
            ends.append((stays_s(each, now, usual_s), each.job.id, each.kept.pool, each.kept.units, _unknown(each)))
        elif each.options:
            queue.append(each)
    heapq.heapify(ends)
    queue.sort(key=order)
    smallest: dict[int, list[tuple[int, int, float, float]]] = {}
    at = 0.0
    guess: Candidate | None = None
    while queue:
        place, free = 0, sum(each for each in room if each > 0)
        while place < min(len(queue), LOOK) and free > 0:
            each = queue[place]
            ways = smallest.get(id(each.menu))
            if ways is None:
                ways = smallest[id(each.menu)] = _smallest(each.menu)
            way = next((way for way in ways if way[0] <= room[way[1]]), None)
            if way is None:
                place += 1
                continue
            units, pool, speed, stall_s = way
            left_s = usual_s if each.left_s is None else each.left_s
            done = at + stall_s + left_s / speed
            yield each, StartAndEnd(at, done), guess
            heapq.heappush(ends, (done, each.job.id, pool, units, _unknown(each)))
            room[pool] -= units
            free -= units
            del queue[place]
        if not ends:
            return
        at = ends[0][0]
        while ends and ends[0][0] <= at:
            _, _, pool, units, unknown = heapq.heappop(ends)
            room[pool] += units
            guess = guess or unknown


def _unknown(each: Candidate) -> Candidate | None:
    """The job, where its length is not known."""
    return each if each.left_s is None or not_yet(each) else None


def _smallest(menu: Menu) -> list[tuple[int, int, float, float]]:
    """Of each pool the option with the fewest GPUs, the fastest of these first: GPUs, pool, speed, stall."""
    found: dict[int, tuple[int, int, float, float]] = {}
    for units, pool, speed, stall_s in zip(
        menu.units, menu.pools, menu.speed.tolist(), menu.stall_s.tolist(), strict=True
    ):
        if pool not in found or units < found[pool][0]:
            found[pool] = (units, pool, speed, stall_s)
    return sorted(found.values(), key=lambda way: (way[0], -way[2], way[3]))


CLAIM = 0.8

LEAST = 0.05
"""A trainer is so much faster or slower from one hour to the next. Assumed, since simulated ones never are."""

MOST_TAKEN = 0.9
"""Of all GPUs, by jobs that will come: with more, nothing could be said."""

UNKNOWN_S = 3600.0
"""What a job of unknown length has left on one GPU, where no length is known."""

GRAIN_S = 60.0
"""Shorter times count as equal: `log_ratio` is of times with this added to both."""

Signs = tuple[float, float, float, float]
"""What a forecast does not know, each 0 where nothing speaks against it, else more.

How much later, and how much sooner the other order would have it, as `log_ratio`; of what has GPUs, its slowest and its
fastest option. -ln(1 - share of all GPUs that shorter jobs which come will take), by which these stretch a wait. n /
(1 + n) with n jobs that come until then: 0 where nothing comes, and with many not more than 1, since what they do to a
job does not go on growing with their number.
"""

NONE: Signs = (0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Weights:
    """How far signs open the band downwards and upwards, in logarithms; none is negative.

    Quantile regressions, of CLAIM's two ends, on simulated jobs, and then scaled so that as many are outside as CLAIM
    allows, under each policy: `benchmarks/eta_calibration.py --fit` does both (seeds 0 to 2, our policies or others);
    without --fit it prints, for job sets that they were not fitted to, how often the band held.
    """

    low: Signs
    high: Signs


@dataclass(frozen=True, slots=True)
class StartEndWeights:
    """Weights for the end of what runs, and for end and start of what waits."""

    running: Weights
    ends: Weights
    starts: Weights


OUR_POLICIES = frozenset({"adaptive", "adaptive-fifo"})

OURS = StartEndWeights(
    running=Weights((0.0, 0.0, 0.0, 0.0), (0.24, 0.0, 0.32, 0.03)),
    ends=Weights((0.0, 0.31, 0.0, 0.59), (0.83, 0.19, 0.13, 0.42)),
    starts=Weights((0.0, 0.13, 0.0, 2.39), (0.37, 0.0, 0.39, 0.8)),
)
"""For these: the model knows their orders."""

OTHERS = StartEndWeights(
    running=Weights((0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.51, 0.0)),
    ends=Weights((0.0, 0.0, 0.0, 0.89), (0.92, 0.19, 0.09, 1.36)),
    starts=Weights((0.0, 1.02, 0.0, 0.0), (0.54, 0.0, 0.04, 3.84)),
)


@dataclass(frozen=True, slots=True)
class Band:
    """Seconds from now: as expected, and from `low` to `high`, within which CLAIM of all are."""

    expected_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class Eta:
    """When a job is done, and when it starts; `starts` is None for one that has GPUs. `claim`: of the bands."""

    ends: Band
    starts: Band | None
    claim: float = CLAIM


@dataclass(frozen=True, slots=True)
class BandBasis:
    """What a band is made of. `base_s`: as the model has it; `faster`, `slower`: the part of its logarithm that the
    job's own length and rate may be off by; `least_s`: it cannot be less, were there nothing but this job.
    """

    base_s: float
    signs: Signs
    faster: float = 0.0
    slower: float = 0.0
    least_s: float = 0.0

    def band(self, weights: Weights) -> Band:
        """The band that these weights give."""
        base_s = self.base_s
        sooner_s = base_s - scaled(base_s, -LEAST - dot(weights.low, self.signs))
        later_s = scaled(base_s, LEAST + dot(weights.high, self.signs)) - base_s
        low = max(0.0, base_s - math.hypot(sooner_s, -base_s * math.expm1(-self.faster)))
        high = base_s + math.hypot(later_s, base_s * math.expm1(self.slower))
        least_s = scaled(self.least_s, -LEAST) * math.exp(-self.faster)
        return Band(base_s, max(low, min(base_s, least_s)), high)


@dataclass(frozen=True, slots=True)
class EtaBasis:
    """What the estimate of one job is made of. `starts` is None for one that has GPUs. `ours`: the policy is one of
    this package."""

    ends: BandBasis
    starts: BandBasis | None = None
    ours: bool = True

    def eta(self) -> Eta:
        """The estimate, with bands."""
        opening = OURS if self.ours else OTHERS
        if self.starts is None:
            return Eta(self.ends.band(opening.running), None)
        starts, ends = self.starts.band(opening.starts), self.ends.band(opening.ends)
        # No job is done before it has started.
        return Eta(Band(ends.expected_s, max(ends.low_s, starts.low_s), max(ends.high_s, starts.high_s)), starts)


def grounds_of(
    view: View, job: JobView, policy: str, shown_s: float | None = None, measured: bool = True
) -> EtaBasis | None:
    """The basis of a job's estimate under that policy; None where nothing can be said.

    `shown_s`: seconds to its end, of one that holds GPUs: by the rate that it shows, or not `measured`: by its profile.
    """
    ours = policy in OUR_POLICIES
    found = candidates(view)
    me = next((each for each in found.candidates if each.job.id == job.id), None)
    holds = job.placement is not None and not job.leaving
    if me is None or not me.options or (doubt(job) >= UNKNOWN and not holds):
        return None if shown_s is None or not holds else EtaBasis(BandBasis(shown_s, NONE), ours=ours)
    usual_s = _usual_s(found)
    on_each = None if me.left_s is None else me.menu.stall_s + me.left_s / me.menu.speed
    place = max(0, me.place)
    sure = certainty_of(job, me.options[place], 0.0 if on_each is None else float(on_each[place]))
    coming = ArrivalModel(view.now, found)
    whole, left = whole_of(me), me.remaining
    best_s = math.inf if whole is None or not job.total or left is None else whole[1] * left / job.total
    stretched = -math.log(1 - min(MOST_TAKEN, coming.shorter(best_s)))

    def signs(later_s: float, sooner_s: float, base_s: float, until_s: float) -> Signs:
        come = coming.per_s * until_s
        later, sooner = max(0.0, log_ratio(later_s, base_s)), max(0.0, -log_ratio(sooner_s, base_s))
        return later, sooner, stretched, come / (1.0 + come)

    if holds:
        stays = stays_s(me, view.now, usual_s) if me.kept is not None and on_each is not None else None
        base_s = stays if shown_s is None and job.profile is not None else shown_s
        if base_s is None:
            return None
        doubts = (
            (0.0, 0.0, 0.0) if stays is None or on_each is None else (float(on_each.max()), float(on_each.min()), stays)
        )
        return EtaBasis(
            BandBasis(base_s, signs(*doubts, base_s))
            if shown_s is not None and measured
            else BandBasis(base_s, signs(*doubts, base_s), -sure.low, sure.high),
            ours=ours,
        )
    if job.blocked or on_each is None:
        return None
    if me.kept is None:
        first = order_of(policy)
        second = in_turn if first is shortest_first else shortest_first
        base, other = (run(found, job.id, view.now, order, usual_s) for order in (first, second))
    else:  # the plan has given it GPUs that others are about to free
        base = other = StartAndEnd(0.0, stays_s(me, view.now, usual_s))
    if base is None or other is None:
        return None
    fastest_s = float(on_each.min())
    trains = 1 - base.waits_s / base.ends_s if base.ends_s > 0.0 else 0.0
    return EtaBasis(
        BandBasis(
            base.ends_s,
            signs(other.ends_s, other.ends_s, base.ends_s, base.ends_s),
            -trains * sure.low,
            trains * sure.high,
            fastest_s,
        ),
        BandBasis(base.waits_s, signs(other.waits_s, other.waits_s, base.waits_s, base.ends_s)),
        ours,
    )


def order_of(policy: str) -> Order:
    """In which order the model starts the jobs that wait, under that policy."""
    return in_turn if "fifo" in policy else shortest_first


def _usual_s(found: OptionMenu) -> float:
    """What a job of unknown length has left on one GPU, in seconds."""
    known = [each.left_s for each in found.candidates if each.left_s is not None]
    return median(known) if known else UNKNOWN_S


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """The estimated start of a job that waits. `in_s`: seconds from now; None where a job of unknown length is before
    it: `until` is that one's id where it is known as soon as it shows how fast it trains, else 0.
    """

    job: int
    in_s: float | None
    until: int = 0


def queue_of(view: View, policy: str, most: int) -> tuple[list[StartEstimate], frozenset[int]]:
    """The first `most` jobs that wait for GPUs, in the order of their estimated starts; and all that wait for some."""
    found = candidates(view)
    waiting = frozenset(each.job.id for each in found.candidates if each.kept is None and each.options)
    if not waiting:
        return [], waiting
    starts = courses(found, view.now, order_of(policy), _usual_s(found))
    first = [
        StartEstimate(each.job.id, course.waits_s)
        if guess is None
        else StartEstimate(each.job.id, None, guess.job.id if not_yet(guess) else 0)
        for each, course, guess in islice(starts, most)
    ]
    return first, waiting


def log_ratio(seconds: float, base_s: float) -> float:
    """How much longer than `base_s`: 0 as long, ln 2 twice as long."""
    return math.log((seconds + GRAIN_S) / (base_s + GRAIN_S))


def scaled(base_s: float, by: float) -> float:
    """The seconds with this `log_ratio` to `base_s`; 0 at least."""
    return max(0.0, (base_s + GRAIN_S) * math.exp(by) - GRAIN_S)


def dot(weights: Sequence[float], signs: Sequence[float]) -> float:
    """How far these signs open the band."""
    return math.fsum(weight * sign for weight, sign in zip(weights, signs, strict=True))
