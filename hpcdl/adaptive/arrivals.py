"""What is left free for jobs that are likely to come, where GPUs that are given now cannot be had back soon.

An attempt is exempt from preemption until it has trained three times as long as its start took
(`core/rules/exemption`). So a start that takes 40 s holds its GPUs for 160 s at least, whoever comes meanwhile. What
that costs is the time that those who come would wait; what it gains is what the job is sooner done. Both are seconds of
completion time, as the objective `jct` counts them, and the number of GPUs is the one with the smallest sum.

Who comes is taken to come as lately: at the rate of the submits of the last MEMORY commitments, each for as many GPUs
and as long as those were. A backlog of them grows by that rate and shrinks as free GPUs take them, in a fluid model.
Free to them are also the GPUs that other jobs give back meanwhile: when they end, and before that what they hold beyond
their minimum, as soon as they may be preempted.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from hpcdl.adaptive.choice import Choice
from hpcdl.adaptive.options import Candidate, Floats, Option, OptionMenu
from hpcdl.adaptive.prior import LENGTH_S
from hpcdl.core.model.plan import View
from hpcdl.core.model.units import count, seconds_text
from hpcdl.core.rules.exemption import STARTS

MEMORY = 4.0
"""Submits of so many times the commitment back say how many come during the next one; but where none is known from
before, those of one commitment: that long a cluster has to be quiet to be taken for quiet."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Expected submissions: how many a second, for how many GPUs, for how long. `since`: when the oldest counted came.

    `seconds`: for which this is said.
    """

    rate: float
    gpus: float
    length_s: float
    seconds: float
    since: float

    def waits_s(self, free: float) -> float:
        """Seconds that all of them together wait, if so many GPUs are free throughout."""
        places = free / self.gpus
        grows = self.rate - places / self.length_s
        if grows <= 0:
            return 0.0
        left_s = self.seconds - places / grows  # until then all of them find a place
        return grows * left_s**2 / 2 if left_s > 0 else 0.0


def stream(view: View, seconds: float, but_at: float | None = None) -> Stream | None:
    """Submissions expected within so many seconds; None where none are. `but_at`: time of one that does not count."""
    began = min([view.now, *(node.since for node in view.nodes), *(each.at for each in view.arrivals)])
    window_s = max(seconds, min(MEMORY * seconds, view.now - began))
    lately = [each for each in view.arrivals if view.now - each.at < window_s and each.at != but_at]
    if not lately:
        return None
    lengths = [each.seconds for each in lately if each.seconds is not None]
    length_s = sum(lengths) / len(lengths) if lengths else LENGTH_S
    gpus = sum(each.gpus for each in lately) / len(lately)
    return Stream(len(lately) / window_s, gpus, max(length_s, 1.0), seconds, lately[0].at)


def spare(view: View, found: OptionMenu, choice: Choice) -> Choice:
    """The choice with GPUs left free for expected submissions: jobs that start or grow get fewer where that pays.

    While somebody waits that is no matter: who is there comes before who may come.
    """
    if not view.arrivals or any(choice.options.get(each.job.id) is None for each in found.candidates if each.options):
        return choice
    free = sum(found.capacity) - sum(option.units for option in choice.options.values() if option is not None)
    given_back = {each.job.id: _given_back(view.now, each, choice.options[each.job.id]) for each in found.candidates}
    releases = Releases.of(given_back.values())
    options, why, wakes = dict(choice.options), dict(choice.why), [] if choice.wake_at is None else [choice.wake_at]
    for each in found.candidates:
        wanted = options[each.job.id]
        if wanted is None or each.fixed or each.job.leaving or each.job.in_place or wanted.stall_s <= 0:
            continue
        others = releases.without(given_back[each.job.id])
        best, expected = _cheapest(view, each, wanted, free, others)
        if best is wanted or expected is None:
            continue
        options[each.job.id] = best
        less = wanted.units - best.units
        free += less
        how_often = f"as they did in the last {seconds_text(view.now - expected.since)}"
        if expected.since == each.job.submitted_at:
            how_often = "how often is not known yet"
        why[each.job.id] = f"leaves {count(less, 'GPU')} for jobs that may come, {how_often}"
        wakes.append(expected.since + (MEMORY + 1.0) * expected.seconds)
    if options == choice.options:
        return choice
    later = [at for at in wakes if at > view.now]
    return replace(choice, options=options, why=why, wake_at=min(later, default=None))


_GivenBack: TypeAlias = tuple[tuple[int, float], ...]
"""How many of its GPUs a job gives back, and in how many seconds."""


def _given_back(now: float, each: Candidate, option: Option | None) -> _GivenBack:
    """What a job with that option gives back by its end, and before that if others need it."""
    if option is None:
        return ()
    ends_s = math.inf if each.remaining is None else option.stall_s + each.remaining / option.rate
    if not each.fixed:
        stays_s = (1.0 + STARTS) * option.stall_s
    else:
        stays_s = each.job.exempt_until - now if each.job.exempt else math.inf
    least = min(option.units, each.job.gpus_min * option.nodes)
    return (least, ends_s), (option.units - least, min(stays_s, ends_s))


@dataclass(frozen=True, slots=True)
class Releases:
    """GPUs that jobs give back: `after_s`, ascending; `gpus` and `gpu_s` (gpus x after_s) summed up to each."""

    after_s: Floats
    gpus: Floats
    gpu_s: Floats
    but: _GivenBack = ()

    @classmethod
    def of(cls, all_given_back: Iterable[_GivenBack]) -> "Releases":
        """Those of all these jobs, as far as they are in sight."""
        listed = sorted((at, gpus) for each in all_given_back for gpus, at in each if math.isfinite(at))
        after_s = np.array([at for at, _ in listed])
        gpus = np.array([float(gpus) for _, gpus in listed])
        return cls(after_s, np.cumsum(gpus), np.cumsum(gpus * after_s))

    def without(self, own: _GivenBack) -> "Releases":
        """Those of the others."""
        return replace(self, but=own)

    def free(self, seconds: float) -> float:
        """How many of these GPUs are free, on average over the next seconds."""
        place = int(np.searchsorted(self.after_s, seconds))
        if not place:
            return 0.0
        own = sum(gpus * (1.0 - at / seconds) for gpus, at in self.but if at < seconds)
        return max(0.0, float(self.gpus[place - 1] - self.gpu_s[place - 1] / seconds) - own)


@dataclass(frozen=True, slots=True)
class _Way:
    """An option: seconds of training on it to the end, for how long it is held at least, and what that does to others:
    how many come a second, and for how many seconds they wait."""

    option: Option
    trains_s: float
    held_s: float
    rate: float
    waits_s: float

    def cost_s(self, back: "_Way") -> float:
        """Expected completion time: seconds to the job's end, and those for which others wait because of it.

        Where somebody may come who finds no place, the GPUs are likely to be given back once that may be: then the job
        goes on as in `back`, after one more start. That counts in full where somebody is expected before both changes
        have paid.
        """
        stall_s = self.option.stall_s
        again_s = max(stall_s, back.option.stall_s)
        done = (self.held_s - stall_s) / self.trains_s
        if self.waits_s <= 0 or done >= 1 or back is self:
            return stall_s + self.trains_s + self.waits_s
        gain = max(1e-6, 1.0 - self.trains_s / back.trains_s)
        likely = min(1.0, self.rate * max(self.held_s, (stall_s + again_s) / gain))
        goes_back_s = self.held_s + (1.0 - done) * back.trains_s + again_s
        return likely * goes_back_s + (1.0 - likely) * (stall_s + self.trains_s) + self.waits_s


def _cheapest(view: View, each: Candidate, wanted: Option, free: int, others: Releases) -> tuple[Option, Stream | None]:
    """The option with at most as many GPUs that costs least, with all waits that it makes; and who would wait.

    `free`: GPUs that nobody is given; `others`: what other jobs give back.
    """
    left, profile = each.remaining, each.job.profile
    if left is None:
        left = each.menu.unit * max(LENGTH_S, each.job.attained_gpu_s(view.now))
    doubt = 1.0 if profile is None else profile.spread
    # That it came itself says how often jobs come as long as nothing else does; then, that others did or did not.
    own = None if each.kept is None else each.job.submitted_at
    least_s = left / wanted.rate
    ways, whose = [], None
    for option in _smaller(each, wanted):
        trains_s = max(1e-6, least_s + (left / option.rate - least_s) / (1.0 + doubt**2))
        held_s = min((1.0 + STARTS) * option.stall_s, option.stall_s + trains_s)
        who = stream(view, held_s, own) if held_s > 0 else None
        whose = who if option is wanted else whose
        waits_s = 0.0 if who is None else who.waits_s(free + wanted.units - option.units + others.free(held_s))
        ways.append(_Way(option, trains_s, held_s, 0.0 if who is None else who.rate, waits_s))
    back = next((way for way in ways if way.waits_s <= 0), ways[-1])
    return min(ways, key=lambda way: way.cost_s(back)).option, whose


def _smaller(each: Candidate, wanted: Option) -> Sequence[Option]:
    """That option first, then those with fewer GPUs in its pool, the most first."""
    less = [option for option in each.options if option.pool == wanted.pool and option.units < wanted.units]
    return (wanted, *sorted(less, key=lambda option: -option.units))
