"""Will a job with a deadline meet it, how likely is that, and what would help? The answer to `submit --deadline`.

All jobs of the view are run forward in a model of what the objective `deadline` does (lookahead.py). That gives when
the job would be done if nothing else came and all profiles were true. How likely it is then to be on time follows from
four numbers (`signs`), each in units that do not depend on the site: how much of all GPUs is taken by what keeps coming
and needs less than the job, which goes before it; how long it waits and how much slack it has, both against what it
needs; and whether the model itself has it late. Their weights (`WEIGHTS`, a logistic regression) were fitted to
simulations; `benchmarks/deadline_calibration.py` prints, for workloads that they were not fitted to, how often the
predictions came true, and with --fit the weights that those would have. How long the job takes may be known from others
only, or from few steps: the probability is the mean over that (certainty.py), and `low` to `high` what it would be were
the job at one end or the other of the middle 80 %. It is 0, "cannot be met", only where the fastest that is possible
misses the deadline. Where nothing like the job has shown a rate or a length, nothing is said.

Nothing is drawn by chance: same view, same answer.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from hpcdl.adaptive.deadline import TOLERANCE_S, TimeOfDay
from hpcdl.adaptive.lookahead import LookAhead, Rollout
from hpcdl.adaptive.options import Candidate, OptionMenu, candidates
from hpcdl.adaptive.prior import UNKNOWN, certainty_of, doubt
from hpcdl.core.model.plan import JobView, View
from hpcdl.core.model.units import count, seconds_text
from hpcdl.estimators.certainty import Certainty

RECENT_S = 4 * 3600.0
"""What was submitted within it is taken to go on coming."""
SLOWER, SLOWEST = 1.1, 20.0
"""A job that shows a rate so many times lower than its profile's on what it has is taken to be as slow everywhere; more
than the latter is not believed."""
LEAST_CHANCE = 0.005
"""Of a deadline that is not impossible."""
LIKELY = 0.9
GAIN = 0.05
"""What raises the probability by less is not suggested."""
LATER_S = tuple(60.0 * minutes for minutes in (5, 10, 20, 30, 40, 60, 90, 120, 180, 240, 360, 480, 720, 1440, 2880))

WEIGHTS = (3.26, -2.22, -2.52, -5.72, 1.65)
"""Of 1, of the GPUs' share that shorter jobs take, of being late in the model, of ln(1 + wait / need), of slack / need
(at most 2)."""


@dataclass(frozen=True, slots=True)
class DeadlineEstimate:
    """Whether a deadline will be met: `probability` that it is, from `low` to `high` by how long the job may be;
    `ends_at`: when it would be done if nothing else came, None: not in sight; `helps`: what would make it likelier, in
    words; `basis`: of whose jobs or steps its length is known, "" where it is its own.

    `needs_s`: what it needs on its fastest option, with its band; `least_s`: what it needs at least.
    """

    deadline: float
    probability: float
    ends_at: float | None
    helps: tuple[str, ...]
    low: float
    high: float
    basis: str
    needs_s: float
    needs_low_s: float
    needs_high_s: float
    least_s: float

    def lines(self, now: float, under: str = "") -> list[str]:
        """All of it in short lines. `under`: where it is only so under something else than there is, what that is."""
        clock = TimeOfDay(now)
        due = f"deadline {clock.text(self.deadline)}"
        helps = "; ".join(self.helps)
        if self.probability == 0.0:
            least = f"cannot be met: needs {seconds_text(self.least_s)} at least"
            first = f"{due} {'has passed' if self.deadline <= now else least}"
            return [first, f"{under and f'{under}: '}{helps}"] if helps else [first]
        low, high = _percent(self.low), _percent(self.high)
        more = [self.needs_text()] if self.basis else []
        if self.basis and low != high:
            more.append(f"{low} to {high} by how long it may be")
        if self.ends_at is not None:
            more.append(f"if nothing else comes, it is done by {clock.text(self.ends_at)}")
        first = f"{due}: {_percent(self.probability)} likely {under or 'to be met'}"
        return [each for each in (first, "; ".join(more), helps) if each]

    def needs_text(self) -> str:
        """`needs 3 min 30 s, perhaps 1 min 00 s to 6 min 00 s: from 20 steps of job 3`."""
        needs, low, high = map(seconds_text, (self.needs_s, self.needs_low_s, self.needs_high_s))
        return f"needs {needs}{'' if low == high else f', perhaps {low} to {high}'}: from {self.basis}"


def estimate_deadline(view: View, job: JobView, measured: float | None = None) -> DeadlineEstimate | None:
    """Whether the job, of the view or new, meets its deadline; None where it has none, or its length is not known.

    `measured`: see `roll`.
    """
    if job.deadline is None:
        return None
    rolled = roll(view, job, measured=measured)
    if rolled is None or doubt(job) >= UNKNOWN:
        return None
    chance = probability(view, job, rolled)
    clock = TimeOfDay(view.now)
    helps = tuple(_helps(view, job, chance, clock, measured)) if chance < LIKELY else ()
    ends_at = view.now + rolled.ends_s if math.isfinite(rolled.ends_s) else None
    sure = rolled.certainty
    slow, fast = (_chance_at(view, job, scaled(rolled, by)) for by in (sure.high, sure.low))
    needs_low_s, needs_high_s, least_s = (rolled.fastest_s * math.exp(by) for by in (sure.low, sure.high, sure.least))
    return DeadlineEstimate(
        job.deadline,
        chance,
        ends_at,
        helps,
        min(slow, chance),
        max(fast, chance),
        sure.of,
        rolled.fastest_s,
        needs_low_s,
        needs_high_s,
        least_s,
    )


def probability(view: View, job: JobView, rolled: Rollout) -> float:
    """The probability that the job is done by its deadline, over all times that it may take; 0 where it cannot be."""
    if job.deadline is None:
        raise ValueError(f"job {job.id} has no deadline")
    sure = rolled.certainty
    if rolled.fastest_s * math.exp(sure.least) > job.deadline - view.now + TOLERANCE_S:
        return 0.0
    chance = sum(weight * _chance_at(view, job, scaled(rolled, by)) for by, weight in sure.points)
    return max(LEAST_CHANCE, chance)


def scaled(rolled: Rollout, by: float) -> Rollout:
    """The rollout of a job that needs exp(`by`) times as long once it has GPUs.

    Its wait is the same, and `ends_s` says so; but `waits_s` keeps its ratio to what the job needs: a shorter job is
    not less likely to be on time because it waits longer for its length.
    """
    factor, waits_s = math.exp(by), rolled.waits_s
    ends_s = waits_s + (rolled.ends_s - waits_s) * factor if math.isfinite(rolled.ends_s) else math.inf
    return replace(
        rolled,
        waits_s=waits_s * factor,
        ends_s=ends_s,
        fastest_s=rolled.fastest_s * factor,
        needs_s=rolled.needs_s * factor,
    )


def _chance_at(view: View, job: JobView, rolled: Rollout) -> float:
    """The probability for a job that is as long as the rollout says."""
    if job.deadline is None:
        raise ValueError(f"job {job.id} has no deadline")
    due_s = job.deadline - view.now
    if rolled.fastest_s > due_s + TOLERANCE_S:
        return 0.0
    score = sum(weight * value for weight, value in zip(WEIGHTS, signs(due_s, rolled), strict=True))
    return 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, score))))


def signs(due_s: float, rolled: Rollout) -> tuple[float, ...]:
    """The features of the regression (see WEIGHTS) for a job that is due in so many seconds."""
    needs_s = max(60.0, rolled.needs_s)
    waits = math.log1p(min(20.0, rolled.waits_s / needs_s))
    slack = min(2.0, max(0.0, (due_s - rolled.needs_s) / needs_s))
    return 1.0, rolled.shorter, float(rolled.ends_s > due_s + TOLERANCE_S), waits, slack


def outlooks(
    view: View, numbers: Iterable[int], measured: Mapping[int, float]
) -> dict[int, tuple[float, float | None]]:
    """Of jobs of the view that have deadlines: how likely each is met, and when the job would be done if nothing else
    came (None: not in sight); without those of which that cannot be said. One look ahead for all of them.

    `measured`: see `roll`, by job.
    """
    found = _as_measured(candidates(view), measured)
    able = {
        each.job.id: each
        for each in found.candidates
        if each.options and each.left_s is not None and doubt(each.job) < UNKNOWN
    }
    asked = [job for number in numbers if number in able and (job := able[number].job).deadline is not None]
    if not asked:
        return {}
    rolled = LookAhead(view.now, found).run([job.id for job in asked])
    coming = ArrivalModel(view.now, found)
    answers = {}
    for job in asked:
        each = rolled[job.id]
        sure = _sureness(able[job.id], job.id in measured)
        chance = probability(view, job, replace(each, shorter=coming.shorter(each.needs_s), certainty=sure))
        answers[job.id] = chance, view.now + each.ends_s if math.isfinite(each.ends_s) else None
    return answers


def _helps(view: View, job: JobView, chance: float, clock: TimeOfDay, measured: float | None) -> Iterator[str]:
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
    """A job, of the view or new, run forward; None where nothing fits it or its length is not known.

    `measured`: steps/s that the job makes on what it has.
    """
    jobs = (*(each for each in view.jobs if each.id != job.id), job)
    found = candidates(replace(view, jobs=jobs))
    if measured is not None:
        found = _as_measured(found, {job.id: measured})
    mine = next((each for each in found.candidates if each.job.id == job.id), None)
    if mine is None or not mine.options or mine.left_s is None:
        return None
    rolled = LookAhead(view.now, found).run([job.id])[job.id]
    shorter = ArrivalModel(view.now, found).shorter(rolled.needs_s)
    return replace(rolled, shorter=shorter, certainty=_sureness(mine, measured is not None))


def _sureness(candidate: Candidate, shown: bool) -> Certainty:
    """How sure its time on its fastest option is; `shown`: it shows its rate on what it has."""
    left_s, menu = candidate.left_s or 0.0, candidate.menu
    each_s = menu.stall_s + left_s / menu.speed
    place = int(each_s.argmin())
    option = menu.options[place]
    return certainty_of(candidate.job, option, float(each_s[place]), shown and place == candidate.place)


def _as_measured(found: OptionMenu, measured: Mapping[int, float]) -> OptionMenu:
    """With more left to do for those that are slower on what they have than their profiles say: by as much."""

    def slowed(each: Candidate) -> Candidate:
        rate = measured.get(each.job.id)
        if rate is None or each.kept is None or each.remaining is None or rate * SLOWER >= each.kept.rate:
            return each
        return replace(each, remaining=each.remaining * min(SLOWEST, each.kept.rate / max(1e-12, rate)))

    if not measured:
        return found
    return replace(found, candidates=tuple([slowed(each) for each in found.candidates]))


class ArrivalModel:
    """The arrival rate and the sizes of jobs that keep coming, as those of the last RECENT_S did.

    Of these only those that are not finished are in the view; how many came follows from the ids: `per_s` a second.
    """

    def __init__(self, now: float, found: OptionMenu) -> None:
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
