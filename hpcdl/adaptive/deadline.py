"""Objective `deadline`: as many jobs as possible done by their deadlines, the others on what is left, in bounded time.

Three classes, served in one exact optimisation over counts:

1. Jobs that can still be on time and are accepted. Acceptance is Moore and Hodgson's rule (Management Science, 1968) on
   GPU time, each job on the option that meets its deadline with the fewest GPU seconds, all GPUs as one machine: in the
   order of deadlines, and whenever one would be late, the job with most GPU time is given up. What a job has done
   counts, so one that was accepted stays so unless jobs with less left need its GPU time.
2. Of the others that are overdue, `AGE_S` and `AGE_RUNS` times their own length after their submission, the first ones,
   on `KEPT_SHARE` of all GPUs. This bounds their wait: whatever else comes, such a job has GPUs as soon as those that
   were overdue before it are done on the GPUs so kept.
3. All others, by what they are worth to the objective `jct`, or by their speed where they had a deadline, and soon by
   the time for which they have waited.

That an accepted job of t seconds gets an option that is on time is worth (1 h / t)^0.5, since short jobs meet more
deadlines with the same GPUs; up to three times that where its slack is short against t, since it can be on time only
now; a fifth more where it loses no GPU, since every change loses time. Late jobs make no other late: who cannot be on
time any more is out of the first class at once.

A job whose deadline leaves it no time to wait, not even for others to save, needs GPUs that are free already. While
such jobs come, some are kept free for the next one.
"""

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from hpcdl.adaptive import priority
from hpcdl.adaptive.choice import Choice, pick
from hpcdl.adaptive.objectives import left_of, submits, values, worth
from hpcdl.adaptive.options import Candidate, Floats, Option, OptionMenu
from hpcdl.adaptive.prior import certainty_of
from hpcdl.core.model.plan import JobView, View
from hpcdl.core.model.units import count, seconds_text
from hpcdl.estimators.certainty import standard_error

Ints = npt.NDArray[np.int64]

Mask = npt.NDArray[np.bool_]

AGE_S = 4 * 3600.0

AGE_RUNS = 12.0

KEPT_SHARE = 1 / 16
"""Of all GPUs, at least one."""

TOLERANCE_S = 1.0
"""Reported steps are whole, so an end is not known better than this."""

RECENT_S = 2 * 3600.0
"""Jobs without time to wait that were submitted within it are taken to go on coming."""

MOST_SPARE = 1 / 8
"""Of all GPUs; more that are kept free would cost more than they gain."""

LEAST_START_S = 1.0

SHORT = 0.5

URGENT = 2.0

HELD = 1.2

OLDER = 3.0
"""What is left is worth more to a job by its hours since its submission, plus 1, to this power."""

REST = 1e-3
"""All that an option is worth to `jct`, of what the least job of the first class is worth."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """A job that can still meet its deadline.

    `cheapest`: the option on which it does with the fewest GPU seconds, `gpu_s`, in `needs_s` seconds from now on.
    `starts_by`: when it needs GPUs at the latest, on its fastest option.
    """

    job: JobView
    due: float
    cheapest: Option
    needs_s: float
    gpu_s: float
    starts_by: float

    def worth(self, now: float) -> float:
        """The worth of an option on which it is on time."""
        needs_s = max(self.needs_s, 1.0)
        slack_s = max(0.0, self.due - now - self.needs_s)
        return float((3600.0 / needs_s) ** SHORT * (1.0 + URGENT * math.exp(-slack_s / needs_s)))


@dataclass(frozen=True, slots=True)
class CompletionTable:
    """Predicted completion on every option of every candidate, in columns.

    `seconds`: from now to the end, inf where it is not known.

    Candidate i has the columns from `starts[i]` to `starts[i + 1]`, of which it is the `owner`. `on_time`: whether its
    deadline is met there.
    """

    starts: list[int]
    owner: Ints
    units: Ints
    pools: Ints
    seconds: Floats
    on_time: Mask
    prospects: tuple[Prospect, ...]


def outlook(view: View, found: OptionMenu) -> CompletionTable:
    """The completion table of a view: when every job would be done on each of its options, and who can be on time.

    Where a profile's rates are uncertain, they are taken one standard error lower; but a job that would then miss its
    deadline, and well may meet it (with one chance in ten), is given the chance on its fastest option: it is on time
    there. A job without GPUs that needs more than are free starts when others have saved.
    """
    listed = found.candidates
    lengths = [len(each.options) for each in listed]
    starts = [0, *np.cumsum(lengths, dtype=np.int64).tolist()]
    owner = np.repeat(np.arange(len(listed)), lengths)
    menus = [each.menu for each in listed]
    units = np.fromiter(chain.from_iterable(menu.units for menu in menus), np.int64, starts[-1])
    pools = np.fromiter(chain.from_iterable(menu.pools for menu in menus), np.int64, starts[-1])
    if not starts[-1]:
        return CompletionTable(starts, owner, units, pools, np.zeros(0), np.zeros(0, dtype=np.bool_), ())
    left = np.array([math.inf if (left := each.left_s) is None else left for each in listed])
    cautions = {id(each.menu): _caution(each) for each in listed}  # jobs that are alike share their menus
    caution = np.concatenate([cautions[id(menu)] for menu in menus])
    free, save_s = _freed(view, found)
    holds = np.array([each.kept is not None for each in listed])
    stall_s, speed = (
        np.concatenate(each) for each in zip(*((menu.stall_s, menu.speed) for menu in menus), strict=True)
    )
    seconds = stall_s + left[owner] / speed * caution
    seconds += np.where(holds[owner] | (units <= free[pools]), 0.0, save_s[pools])
    for at, each in zip(starts, listed, strict=False):
        if each.kept is not None and each.job.step_at is None:
            seconds[at + each.options.index(each.kept)] += _until_it_trains(each.job, view.now)
    dues = np.array([-math.inf if (due := each.job.deadline) is None else due for each in listed])
    on_time = view.now + seconds <= dues[owner] + TOLERANCE_S
    _give_chances(view.now, listed, starts, seconds, on_time, (caution - 1.0) / speed)
    prospects = _prospects(listed, starts, owner, seconds, np.where(on_time, units * seconds, math.inf))
    return CompletionTable(starts, owner, units, pools, seconds, on_time, prospects)


def _give_chances(
    now: float, listed: Sequence[Candidate], starts: Sequence[int], seconds: Floats, on_time: Mask, spare_s: Floats
) -> None:
    """Of jobs that are late on every option only because little is known of their rate, the fastest option is put on
    time, as late as their deadline allows. `spare_s`: of what is left, what of each option's seconds is caution."""
    for at, end, each in zip(starts[:-1], starts[1:], listed, strict=True):
        due = each.job.deadline
        if due is None or at == end or due <= now or each.left_s is None or on_time[at:end].any():
            continue
        place = at + int(seconds[at:end].argmin())
        option = each.options[place - at]
        needs_s = float(seconds[place] - each.left_s * spare_s[place])
        if needs_s * math.exp(certainty_of(each.job, option, needs_s).low) <= due - now:
            on_time[place], seconds[place] = True, due - now


def _prospects(
    listed: Sequence[Candidate], starts: Sequence[int], owner: Ints, seconds: Floats, cost: Floats
) -> tuple[Prospect, ...]:
    """`cost`: GPU seconds of each option, inf where it is not on time."""
    least, fastest = np.full(len(listed), math.inf), np.full(len(listed), math.inf)
    np.minimum.at(least, owner, cost)
    np.minimum.at(fastest, owner, seconds)
    hits = np.flatnonzero(np.isfinite(cost) & (cost == least[owner]))
    whose, first = np.unique(owner[hits], return_index=True)
    found = []
    for number, place in zip(whose.tolist(), hits[first].tolist(), strict=True):
        each = listed[number]
        option, due = each.options[place - starts[number]], each.job.deadline
        if due is not None:
            needs_s, gpu_s = float(seconds[place]), float(cost[place])
            found.append(Prospect(each.job, due, option, needs_s, gpu_s, due - float(fastest[number])))
    return tuple(found)


def _freed(view: View, found: OptionMenu) -> tuple[Ints, Floats]:
    """By pool: how many GPUs nobody holds, and how long the slowest of those who train there takes to save."""
    where = {name: number for number, pool in enumerate(found.pools) for name in pool.nodes}
    free = np.array(found.capacity, dtype=np.int64)
    save_s = np.zeros(len(found.pools))
    for job in view.jobs:
        if job.placement is None or job.blocked:
            continue
        pool = where.get(job.placement.shares[0].node)
        if pool is not None:
            free[pool] -= len(job.placement.gpus)
            if job.profile is not None and job.step_at is not None:
                save_s[pool] = max(save_s[pool], job.profile.save_s)
    return free, save_s


def _caution(candidate: Candidate) -> Floats:
    """By how much longer its time on each option is taken to be: by a standard error of the rate there."""
    profile = candidate.job.profile
    if profile is None:
        return np.ones(len(candidate.options))
    return np.exp([standard_error(profile, each.kind, each.nodes, each.gpus) for each in candidate.options])


def _starts(job: JobView, now: float) -> bool:
    """Whether it waits for the GPUs that it was given to be free, or has only begun to start on them.

    These are left to it: else two decisions could undo each other without end.
    """
    if job.placement is None or job.leaving:
        return job.target is not None
    if job.step_at is not None or job.held_since is None:
        return False
    return now < job.held_since + LEAST_START_S or _until_it_trains(job, now) > 0.0


def _until_it_trains(job: JobView, now: float) -> float:
    """Seconds for which a job that keeps its GPUs makes no progress yet, since it still starts."""
    if job.profile is None or job.placement is None or job.leaving or job.held_since is None:
        return 0.0
    whole = job.profile.resume_s if job.step > 0 else job.profile.startup_s
    return max(0.0, job.held_since + whole - now)


def accept(prospects: Sequence[Prospect], now: float, gpus: int) -> tuple[Prospect, ...]:
    """As many as can be on time together, judged by GPU time alone, by Moore and Hodgson's rule."""
    kept: list[tuple[float, int, Prospect]] = []
    used_s = 0.0
    for each in sorted(prospects, key=lambda each: (each.due, each.job.id)):
        heapq.heappush(kept, (-each.gpu_s, -each.job.id, each))
        used_s += each.gpu_s
        while used_s > (each.due - now + TOLERANCE_S) * gpus:
            used_s += heapq.heappop(kept)[0]
    return tuple(sorted((each for _, _, each in kept), key=lambda each: each.job.id))


def overdue_at(candidate: Candidate) -> float:
    """When a job that no deadline helps becomes overdue: from then on GPUs are kept for it."""
    return candidate.job.submitted_at + AGE_S + AGE_RUNS * (candidate.left_s or 0.0)


def aged(found: Sequence[Candidate], now: float, gpus: int) -> tuple[Candidate, ...]:
    """The overdue jobs that are served now: in the order in which they became overdue, as far as the kept GPUs go."""
    room = max(1, int(gpus * KEPT_SHARE))
    chosen: list[Candidate] = []
    old = sorted((when, each.job.id, each) for each in found if each.options and (when := overdue_at(each)) <= now)
    for _, _, each in old:
        least = min(each.menu.units)
        if chosen and least > room:
            break  # in order: nobody overtakes
        chosen.append(each)
        room -= least
        if room <= 0:
            break
    return tuple(chosen)


def _spared(view: View, found: OptionMenu) -> OptionMenu:
    """The same with fewer GPUs in the emptiest pool, where some are to be kept free for jobs that cannot wait.

    As many as such jobs come, by those of the last `RECENT_S`, while one that trains saves.
    """
    gpus = sum(found.capacity)
    if gpus == 0:
        return found
    free, _ = _freed(view, found)
    slowest = max((each.job.profile.save_s for each in found.candidates if each.job.profile is not None), default=0.0)
    hasty = sum(_cannot_wait(each, slowest) for each in found.candidates if each.job.submitted_at > view.now - RECENT_S)
    spare = math.ceil(hasty * slowest / RECENT_S)
    pool = int(free.argmax())
    if not 0 < spare <= min(gpus * MOST_SPARE, found.pools[pool].units):
        return found
    less = replace(found.pools[pool], units=found.pools[pool].units - spare)
    return replace(found, pools=(*found.pools[:pool], less, *found.pools[pool + 1 :]))


def _cannot_wait(candidate: Candidate, save_s: float) -> bool:
    """Whether the job's deadline left it, when it was submitted, less time than a save takes on its fewest GPUs."""
    job = candidate.job
    if job.deadline is None or job.total is None or job.profile is None or not candidate.options:
        return False
    least = min(candidate.options, key=lambda option: (option.units, -option.rate))
    slack_s = job.deadline - job.submitted_at - job.profile.startup_s - job.total / least.rate
    return -TOLERANCE_S <= slack_s < save_s


def choose(view: View, found: OptionMenu) -> Choice:
    """The option of each job, None: it waits (or is suspended)."""
    if not found.candidates:
        return Choice({}, True)
    gpus = sum(found.capacity)
    seen = outlook(view, found)
    accepted = {each.job.id: each for each in accept(seen.prospects, view.now, gpus)}
    rest = [each for each in found.candidates if each.job.id not in accepted]
    first = priority.required(found, list(aged(rest, view.now, gpus)))
    choice = pick(_spared(view, found), _worths(view, found, seen, accepted), first)
    times = [at for at in _times(found, choice, accepted) if at > view.now + TOLERANCE_S]
    return replace(choice, why=_why(view, found, seen, choice, accepted), wake_at=min(times, default=None))


def _worths(
    view: View, found: OptionMenu, seen: CompletionTable, accepted: Mapping[int, Prospect]
) -> list[list[float]]:
    """What each option of each job is worth: to be on time, and far below that, what it is worth otherwise."""
    listed = found.candidates
    olds = np.maximum(0.0, view.now - submits(found)) / 3600.0 + 1.0
    rest = np.fromiter(chain.from_iterable(_rest(view, found)), np.float64, seen.starts[-1]) * olds[seen.owner] ** OLDER
    dues = [0.0 if (each := accepted.get(candidate.job.id)) is None else each.worth(view.now) for candidate in listed]
    most = float(rest.max(initial=0.0))
    least = min((due for due in dues if due), default=1.0)
    worth = rest * (REST * least / most if most > 0.0 else 1.0)
    # Who goes on with what it has, or that and more, loses no GPU.
    kept = [(-1, 0) if each.kept is None else (each.kept.pool, each.kept.units) for each in listed]
    pool, units = np.array(kept, dtype=np.int64).T
    goes_on = (seen.pools == pool[seen.owner]) & (seen.units >= units[seen.owner])
    worth += np.where(seen.on_time, np.array(dues)[seen.owner] * np.where(goes_on, HELD, 1.0), 0.0)
    starting = 2.0 * HELD * sum(dues) + 1.0
    for candidate, first in zip(listed, seen.starts, strict=False):
        if candidate.kept is not None and _starts(candidate.job, view.now):
            worth[first + candidate.options.index(candidate.kept)] += starting
    flat = (worth * priority.weights(found)[seen.owner]).tolist()
    return [flat[first:end] for first, end in pairwise(seen.starts)]


def _rest(view: View, found: OptionMenu) -> list[list[float]]:
    """What each option is worth without regard to deadlines: to `jct`; or its speed alone, where there was a deadline.

    Who is late is not served the shortest first, which would leave the longest for the very end.
    """
    left_s = left_of(view, found)
    speeds = worth(view, found, left_s, np.ones(len(left_s)))
    if all(each.job.deadline is not None for each in found.candidates):
        return speeds
    plain = values(view, found)
    return [
        mine if each.job.deadline is None else fast
        for each, mine, fast in zip(found.candidates, plain, speeds, strict=True)
    ]


def _times(found: OptionMenu, choice: Choice, accepted: Mapping[int, Prospect]) -> Iterator[float]:
    """When jobs that wait stand otherwise than now though nothing happens."""
    for candidate in found.candidates:
        if choice.options[candidate.job.id] is None:
            yield overdue_at(candidate)
            each = accepted.get(candidate.job.id)
            if each is not None:
                yield each.due - each.needs_s
                yield each.starts_by


def _why(
    view: View, found: OptionMenu, seen: CompletionTable, choice: Choice, accepted: Mapping[int, Prospect]
) -> dict[int, str]:
    clock = TimeOfDay(view.now)
    first = set(choice.first)
    why: dict[int, str] = {}
    for candidate, start in zip(found.candidates, seen.starts, strict=False):
        job, option = candidate.job, choice.options[candidate.job.id]
        each = accepted.get(job.id)
        if job.deadline is None:
            text = ""
        elif each is None:
            seconds = seen.seconds[start : start + len(candidate.options)]
            text = late_words(candidate, job.deadline, seconds, clock)
        elif option is None:
            text = (
                f"due at {clock.text(job.deadline)}: waits, and is on time if it starts by {clock.text(each.starts_by)}"
            )
        else:
            ends = view.now + float(seen.seconds[start + candidate.options.index(option)])
            if ends < job.deadline:
                text = f"due at {clock.text(job.deadline)}, expected to be done by {clock.text(ends)}"
            else:
                text = f"due at {clock.text(job.deadline)}, and may be done by then"
        if job.id in first:
            text += f"{'; ' if text else ''}has waited longest of those that no deadline helps: GPUs are kept for it"
        if text:
            why[job.id] = text
    return why


class TimeOfDay:
    """Times of day as people read them: with the day only where it is another than that of `now`."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._day = _local(now).date().toordinal()

    def text(self, at: float) -> str:
        """`14:20`; with its day, `21 Nov 14:20`, where that is not today."""
        return _text(int(at // 60), self._day)


def _local(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC).astimezone()


@lru_cache(maxsize=4096)
def _text(minute: int, day: int) -> str:
    there = _local(60.0 * minute)
    return there.strftime("%H:%M" if there.date().toordinal() == day else "%d %b %H:%M")


def late_words(candidate: Candidate, due: float, seconds: Floats, clock: TimeOfDay) -> str:
    """Why a job will not be on time. `seconds`: to its end, on each of its options."""
    at = clock.text(due)
    if not candidate.options:
        return f"due at {at}"
    if candidate.left_s is None:
        return f"due at {at}: how long it takes is not known, so its deadline cannot be planned for"
    best = int(seconds.argmin())
    takes_s = float(seconds[best])
    key = (due, candidate.options[best], takes_s, clock.now + takes_s > due)
    known = candidate.job.memo.get("late")
    if known is None or known[0] != key:
        option = candidate.options[best]
        needs = f"needs {seconds_text(takes_s)} on {count(option.units, 'GPU')}"
        least_s = takes_s * math.exp(certainty_of(candidate.job, option, takes_s).least)
        verb = "cannot" if clock.now + least_s > due or clock.now + takes_s <= due else "will hardly"
        beside = "" if clock.now + takes_s > due else " beside those that need less GPU time"
        known = candidate.job.memo["late"] = (key, f"{verb} meet its deadline at {at}{beside}: {needs}")
    text: str = known[1]
    return text
