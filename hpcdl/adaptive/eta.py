"""When a job will start and be done, with a band: the answer of `hpcdl why` for every job whose length is known.

The model of forecast.py is run forward as for deadlines. Its band is no quantile: `low` is what the job needs if its
rate is better than its profile by what that may be off, `high` if it is worse by as much, and jobs that need less and
keep coming as they did go before it. What runs, and shows its rate, is told by that rate.
"""

import math
from dataclasses import dataclass

from hpcdl.adaptive.forecast import Rollout, roll
from hpcdl.core.plan import JobView, View

Z = 1.2816
"""Standard errors on either side: four of five lie within."""
LEAST = 0.1
"""A rate may be so far off whatever its profile says: neighbours, file systems, and steps that are reported late."""
MOST_TAKEN = 0.9
"""Of all GPUs, by jobs that will come: with more, nothing could be said."""


@dataclass(frozen=True, slots=True)
class Band:
    """Seconds from now: as expected, and from `low` to `high`."""

    expected_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class Eta:
    """When a job is done, and when it starts; `starts` is None for one that has GPUs."""

    ends: Band
    starts: Band | None


def eta_of(view: View, job: JobView, measured_s: float | None = None) -> Eta | None:
    """`measured_s`: seconds to its end by the rate that it shows itself. None where nothing can be said."""
    rolled = roll(view, job) if job.profile is not None and not job.blocked else None
    spread = 0.0 if job.profile is None else job.profile.spread
    off = max(LEAST, Z * spread)  # over 1 where little is known: rates are so many times better or worse
    if job.placement is not None and not job.leaving:
        modelled_s = None if rolled is None or not math.isfinite(rolled.ends_s) else rolled.ends_s
        known = [seconds for seconds in (measured_s, modelled_s) if seconds is not None]
        if not known:
            return None
        return Eta(Band(known[0], min(known) / (1 + off), max(known) * (1 + off)), None)
    if rolled is None:
        return None
    # The policy's last word counts: to whom it gives nothing now, others keep what they have; at best they do not.
    rolls = [each for each in (rolled, roll(view, job, unmoved=True)) if each is not None and _seen(each)]
    if not rolls:
        return None
    expected = rolls[0] if job.target is not None else rolls[-1]
    later = (1 + off) / (1 - min(MOST_TAKEN, rolled.shorter))
    low, high = (pick(rolls, key=lambda each: each.ends_s) for pick in (min, max))
    waits_s = max(each.waits_s for each in rolls) * later
    starts = Band(expected.waits_s, min(each.waits_s for each in rolls) / (1 + off), waits_s)
    ends = Band(expected.ends_s, low.ends_s / (1 + off), waits_s + (high.ends_s - high.waits_s) * (1 + off))
    return Eta(ends, starts)


def _seen(rolled: Rollout) -> bool:
    """Whether its start and end are in sight."""
    return math.isfinite(rolled.ends_s) and math.isfinite(rolled.waits_s)
