"""Will a job with a deadline meet it, how likely is that, and what would help? The answer to `submit --deadline`.

All jobs of the view are run forward in a model of what the objective `deadline` does (deadline.py): on the cheapest
option that is on time, by counts alone, from one end to the next. That gives when the job would be done if nothing else
came and all profiles were true. How likely it is then to be on time follows from four numbers, each in units that do
not depend on the site: how much of all GPUs is taken by what keeps coming and needs less than the job, which goes
before it; how long it waits and how much slack it has, both against what it needs; and whether the model itself has it
late. Their weights (`WEIGHTS`, a logistic regression) were fitted to simulations; benchmarks/deadline_calibration.py
prints, for workloads that they were not fitted to, how often what was foretold came true. Rates that are uncertain
lower the probability by what the fastest option may then miss.

Nothing is drawn by chance: same view, same answer.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from hpcdl.adaptive.deadline import HELD, SHORT, TOLERANCE_S, URGENT
from hpcdl.adaptive.due import Clock
from hpcdl.adaptive.options import Candidate, Floats, Found, candidates
from hpcdl.core.plan import JobView, View
from hpcdl.core.units import count, seconds_text

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MOST_STEPS = 400
"""Ends that the model looks ahead."""
RECENT_S = 4 * 3600.0
"""What was submitted within it is taken to go on coming."""
SLOWER, SLOWEST = 1.1, 20.0
"""A job that shows a rate so many times lower than its profile's on what it has is taken to be as slow everywhere; more
than the latter is not believed."""
LIKELY = 0.9
GAIN = 0.05
"""What helps less is not told."""
LATER_S = tuple(60.0 * minutes for minutes in (5, 10, 20, 30, 40, 60, 90, 120, 180, 240, 360, 480, 720, 1440, 2880))

WEIGHTS = (3.26, -2.22, -2.52, -5.72, 1.65)
"""Of 1, of the GPUs' share that shorter jobs take, of being late in the model, of ln(1 + wait / need), of slack / need
(at most 2)."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """Of one job in the model: seconds from now until it first has GPUs, and until it is done (inf: not in sight).

    `fastest_s`, `needs_s`: how long it takes on its fastest option, and on the cheapest one that is on time (the
    fastest, where none is). `shorter`: share of all GPUs that is needed by what keeps coming and needs less than that.
    """

    waits_s: float
    ends_s: float
    fastest_s: float
    needs_s: float
    shorter: float


@dataclass(frozen=True, slots=True)
class Foreseen:
    """`probability` that the deadline is met; `ends_at`: when the job would be done if nothing else came, None: not in
    sight; `helps`: what would make it likelier, in words; `text`: all of it in one line."""

    probability: float
    ends_at: float | None
    helps: tuple[str, ...]
    text: str


def foresee(view: View, job: JobView, measured: float | None = None) -> Foreseen | None:
    """Whether the job, of the view or new, meets its deadline; None where it has none, or its length is not known.

    `measured`: see `roll`.
    """
    if job.deadline is None:
        return None
    rolled = roll(view, job, measured=measured)
    if rolled is None:
        return None
    chance = probability(view, job, rolled)
    clock = Clock(view.now)
    helps = tuple(_helps(view, job, chance, clock, measured)) if chance < LIKELY else ()
    ends_at = view.now + rolled.ends_s if math.isfinite(rolled.ends_s) else None
    text = f"meets its deadline at {clock.text(job.deadline)} with a probability of {_percent(chance)}"
    if chance == 0.0:
        text = (
            f"cannot meet its deadline at {clock.text(job.deadline)}: needs {seconds_text(rolled.fastest_s)} at least"
        )
    elif ends_at is not None:
        text += f"; if nothing else comes, it is done by {clock.text(ends_at)}"
    return Foreseen(chance, ends_at, helps, "; ".join((text, *helps)))


def probability(view: View, job: JobView, rolled: Rollout) -> float:
    """That the job is done by its deadline."""
    if job.deadline is None:
        raise ValueError(f"job {job.id} has no deadline")
    due_s = job.deadline - view.now
    if rolled.fastest_s > due_s + TOLERANCE_S:
        return 0.0
    needs_s = max(60.0, rolled.needs_s)
    waits = math.log1p(min(20.0, rolled.waits_s / needs_s))
    slack = min(2.0, max(0.0, (due_s - rolled.needs_s) / needs_s))
    late = float(rolled.ends_s > due_s + TOLERANCE_S)
    score = sum(
        weight * value for weight, value in zip(WEIGHTS, (1.0, rolled.shorter, late, waits, slack), strict=True)
    )
    chance = 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, score))))
    spread = job.profile.spread if job.profile is not None else 0.0
    if spread > 0.0:
        chance *= NormalDist().cdf((due_s - rolled.fastest_s) / (spread * rolled.fastest_s))
    return chance


def outlooks(
    view: View, numbers: Iterable[int], measured: Mapping[int, float]
) -> dict[int, tuple[float, float | None]]:
    """Of jobs of the view that have deadlines: how likely each is met, and when the job would be done if nothing else
    came (None: not in sight); without those of which that cannot be said. One look ahead for all of them.

    `measured`: see `roll`, by job.
    """
    found = _as_measured(candidates(view), measured)
    able = {each.job.id: each.job for each in found.candidates if each.options and each.left_s is not None}
    asked = [able[number] for number in numbers if number in able and able[number].deadline is not None]
    if not asked:
        return {}
    rolled = _Model(view.now, found).run([job.id for job in asked])
    coming = Coming(view.now, found)
    answers = {}
    for job in asked:
        each = rolled[job.id]
        chance = probability(view, job, replace(each, shorter=coming.shorter(each.needs_s)))
        answers[job.id] = chance, view.now + each.ends_s if math.isfinite(each.ends_s) else None
    return answers


def _helps(view: View, job: JobView, chance: float, clock: Clock, measured: float | None) -> Iterator[str]:
    gpus = 2 * job.gpus_max
    while job.gpus_max < view.largest_node and not job.counts:
        gpus = min(gpus, view.largest_node)
        more = _chance(view, replace(job, gpus_max=gpus), measured)
        if more > chance + GAIN:
            yield f"with up to {count(gpus, 'GPU')} per node instead of {job.gpus_max}: {_percent(more)}"
        if more >= LIKELY or gpus == view.largest_node:
            break
        gpus *= 2
    low, high = -1, len(LATER_S) - 1
    due = job.deadline or view.now
    found = _chance(view, replace(job, deadline=due + LATER_S[high]), measured)
    if found < LIKELY:
        return
    while high - low > 1:
        middle = (low + high) // 2
        each = _chance(view, replace(job, deadline=due + LATER_S[middle]), measured)
        low, high, found = (low, middle, each) if each >= LIKELY else (middle, high, found)
    later = f"{round(LATER_S[high] / 60)} min" if LATER_S[high] < 5400 else seconds_text(LATER_S[high])
    yield f"with a deadline {later} later ({clock.text(due + LATER_S[high])}): {_percent(found)}"


def _chance(view: View, job: JobView, measured: float | None) -> float:
    rolled = roll(view, job, measured=measured)
    return 0.0 if rolled is None else probability(view, job, rolled)


def _percent(chance: float) -> str:
    return f"{min(99, max(1, round(100 * chance)))} %"


def roll(view: View, job: JobView, *, measured: float | None = None) -> Rollout | None:
    """What becomes of a job, of the view or new; None where nothing fits it or its length is not known.

    `measured`: steps/s that the job makes on what it has.
    """
    jobs = (*(each for each in view.jobs if each.id != job.id), job)
    found = candidates(replace(view, jobs=jobs))
    if measured is not None:
        found = _as_measured(found, {job.id: measured})
    mine = next((each for each in found.candidates if each.job.id == job.id), None)
    if mine is None or not mine.options or mine.left_s is None:
        return None
    rolled = _Model(view.now, found).run([job.id])[job.id]
    return replace(rolled, shorter=Coming(view.now, found).shorter(rolled.needs_s))


def _as_measured(found: Found, measured: Mapping[int, float]) -> Found:
    """With more left to do for those that are slower on what they have than their profiles say: by as much."""

    def slowed(each: Candidate) -> Candidate:
        rate = measured.get(each.job.id)
        if rate is None or each.kept is None or each.remaining is None or rate * SLOWER >= each.kept.rate:
            return each
        return replace(each, remaining=each.remaining * min(SLOWEST, each.kept.rate / max(1e-12, rate)))

    if not measured:
        return found
    return replace(found, candidates=tuple([slowed(each) for each in found.candidates]))


class Coming:
    """What keeps coming: as the jobs of the last RECENT_S did.

    Of these only those that are not finished are in the view; how many came follows from the ids: `per_s` a second.
    """

    def __init__(self, now: float, found: Found) -> None:
        recent = [each for each in found.candidates if each.job.submitted_at > now - RECENT_S]
        self._units = max(1, sum(found.capacity))
        self.per_s = 0.0
        self._known: list[tuple[float, float]] = []
        if len(recent) >= 2:
            first, last = (pick(recent, key=lambda each: each.job.id) for pick in (min, max))
            self.per_s = (last.job.id - first.job.id) / max(now - first.job.submitted_at, RECENT_S / 4)
            self._known = [whole for each in recent if (whole := whole_of(each)) is not None]

    def shorter(self, needs_s: float) -> float:
        """Share of all GPUs that is needed by what comes and takes less than `needs_s`."""
        short = sum(gpu_s for gpu_s, seconds in self._known if seconds < needs_s) / max(1, len(self._known))
        return self.per_s * short / self._units


def whole_of(candidate: Candidate) -> tuple[float, float] | None:
    """GPU seconds and seconds of the whole job on the option with the fewest GPU seconds."""
    job = candidate.job
    if job.total is None or job.profile is None or not candidate.options:
        return None
    steps, startup_s = job.total, job.profile.startup_s
    return min((each.units * (steps / each.rate + startup_s), steps / each.rate) for each in candidate.options)


class _Model:
    """All candidates as columns, one for each option; times are seconds from now on."""

    def __init__(self, now: float, found: Found) -> None:
        listed = [each for each in found.candidates if each.options]
        lengths = [len(each.options) for each in listed]
        self.ids = [each.job.id for each in listed]
        self.starts = np.concatenate([[0], np.cumsum(lengths)])[:-1].astype(np.int64)
        self.owner = np.repeat(np.arange(len(listed)), lengths)
        self.units = np.array([units for each in listed for units in each.menu.units])
        self.pool = np.array([pool for each in listed for pool in each.menu.pools])
        self.speed = np.concatenate([each.menu.speed for each in listed])
        self.stall_s = np.concatenate([each.menu.stall_s for each in listed])
        self.again_s = np.array([each.job.profile.suspend_resume_s if each.job.profile else 0.0 for each in listed])
        known = [each.left_s for each in listed if each.left_s is not None]
        typical = float(np.median(known)) if known else 3600.0
        self.left_s = np.array([typical if each.left_s is None else max(1e-3, each.left_s) for each in listed])
        self.due_s = np.array([math.inf if (due := each.job.deadline) is None else due - now for each in listed])
        self.has = np.array(
            [
                -1 if each.kept is None else at + each.options.index(each.kept)
                for at, each in zip(self.starts, listed, strict=True)
            ],
            dtype=np.int64,
        )
        self.fixed = np.array([each.fixed for each in listed])
        self.trains_s = np.zeros(len(listed))  # when it makes progress on what it has
        self.room = list(found.capacity)
        self.lists = (self.units.tolist(), self.pool.tolist(), self.starts.tolist())

    def run(self, numbers: Sequence[int]) -> dict[int, Rollout]:
        """Until each of these jobs is done, or too far ahead."""
        at = {number: place for place, number in enumerate(self.ids)}
        asked = np.array([at[number] for number in numbers])
        fastest_s = np.minimum.reduceat(self.stall_s + self.left_s[self.owner] / self.speed, self.starts)
        needs_s = fastest_s
        alive = np.ones(len(self.ids), dtype=np.bool_)
        waits_s = np.full(len(self.ids), math.inf)
        ends_s = waits_s.copy()
        now = 0.0
        for step in range(MOST_STEPS):
            seconds, best = self._cheapest(now, alive)
            if step == 0:
                needs_s = np.where(best >= 0, seconds[best], fastest_s)
            given = self._give(now, alive, seconds, best)
            waits_s = np.where((given >= 0) & np.isinf(waits_s), now, waits_s)
            self._change(now, given)
            running = alive & (self.has >= 0)
            if not running.any():
                break
            rate = np.where(running, self.speed[self.has], 1.0)
            begins = np.maximum(self.trains_s, now)
            ends = np.where(running, begins + self.left_s / rate, math.inf)
            now = float(ends.min())
            self.left_s = np.where(
                running, np.maximum(0.0, self.left_s - np.maximum(0.0, now - begins) * rate), self.left_s
            )
            ended = running & (ends <= now + 1e-6)
            ends_s = np.where(ended, now, ends_s)
            if not np.isinf(ends_s[asked]).any():
                break
            alive &= ~ended
            self.has = np.where(ended, -1, self.has)
        return {
            number: Rollout(float(waits_s[me]), float(ends_s[me]), float(fastest_s[me]), float(needs_s[me]), 0.0)
            for number, me in zip(numbers, asked.tolist(), strict=True)
        }

    def _cheapest(self, now: float, alive: Mask) -> tuple[Floats, Ints]:
        """Seconds to the end on every option; and of each job the one that is on time for the fewest GPU seconds."""
        stall_s = self.stall_s.copy()
        held = self.has[self.has >= 0]
        stall_s[held] = np.maximum(0.0, self.trains_s[self.owner[held]] - now)
        seconds = stall_s + self.left_s[self.owner] / self.speed
        due_s = self.due_s[self.owner]
        on_time = np.isfinite(due_s) & (now + seconds <= due_s + TOLERANCE_S) & alive[self.owner]
        gpu_s = np.where(on_time, self.units * seconds, math.inf)
        hits = np.flatnonzero(on_time & (gpu_s == np.minimum.reduceat(gpu_s, self.starts)[self.owner]))
        best = np.full(len(self.ids), -1)
        best[self.owner[hits[::-1]]] = hits[::-1]
        return seconds, best

    def _give(self, now: float, alive: Mask, seconds: Floats, best: Ints) -> Ints:
        """Options by what a GPU is worth on them; those who cannot be on time come last, the shortest first."""
        good = best >= 0
        needs_s = np.where(good, np.maximum(1.0, seconds[best]), 1.0)
        slack_s = np.where(good, np.maximum(0.0, np.where(good, self.due_s, 0.0) - now - needs_s), 0.0)
        worth = (3600.0 / needs_s) ** SHORT * (1.0 + URGENT * np.exp(-slack_s / needs_s)) / self.units[best]
        worth = np.where(good, worth * np.where(self.has >= 0, HELD, 1.0), 0.0)
        worth = np.where(self.fixed, math.inf, worth)
        given = [-1] * len(self.ids)
        room, left = self.room.copy(), sum(self.room)
        # Lists: hundreds of times thousands of jobs are looked at one by one.
        units, pools, wanted, held, first = (
            self.lists[0],
            self.lists[1],
            best.tolist(),
            self.has.tolist(),
            self.lists[2],
        )
        order = np.lexsort((self.left_s, -worth))
        for at in order[alive[order]].tolist():
            for option in (wanted[at], held[at], first[at]):
                if option >= 0 and units[option] <= room[pools[option]]:
                    given[at] = option
                    room[pools[option]] -= units[option]
                    left -= units[option]
                    break
            if not left:
                break
        return np.array(given, dtype=np.int64)

    def _change(self, now: float, given: Ints) -> None:
        """Whoever goes to another option stalls, and from then on has to be suspended and resumed for another one."""
        goes = (given >= 0) & (given != self.has)
        self.trains_s = np.where(goes, now + self.stall_s[given], self.trains_s)
        self.stall_s = np.where(goes[self.owner], self.again_s[self.owner], self.stall_s)
        self.has = given
