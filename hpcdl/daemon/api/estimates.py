"""Estimates of when a job starts and is done, and whether it meets its deadline, as the API answers them.

They are made when somebody asks, in a thread beside the event loop, and decide nothing; `adaptive/eta` and
`adaptive/forecast` compute them, `queue` has the places.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hpcdl.core.controller.light_runs import without_light_runs
from hpcdl.core.controller.view_builder import build_view
from hpcdl.core.model.plan import Profiles, deadlines_unheeded
from hpcdl.core.model.units import count, seconds_text
from hpcdl.core.model.world import Job, World
from hpcdl.daemon.api.context import ApiContext
from hpcdl.daemon.api.rows import Json
from hpcdl.daemon.queue import LastViews
from hpcdl.daemon.time_left import measured_rate, remaining

if TYPE_CHECKING:
    from hpcdl.adaptive.eta import Band, Eta, EtaBasis
    from hpcdl.adaptive.forecast import DeadlineEstimate

MEANT_FOR = ("deadline", frozenset({"adaptive", "adaptive-fifo"}))
"""The objective and the policies that the forecast is about: any other may take jobs in another order."""

KNOWN_ONCE = "once it, or a job like it, shows how fast it trains"

log = logging.getLogger("hpcdl.daemon")


def forecast(world: World, job: Job, profiles: Profiles, now: float) -> Json | None:
    """`{"deadline", "probability", "probability_low", "probability_high", "basis", "ends_at", "needs_s",
    "needs_low_s", "needs_high_s", "helps", "text", "lines"}`; None without a deadline or once it is finished.

    The probabilities, `ends_at` and what it needs are None where nothing is known of the job's length. `text` is the
    `lines` in one.
    """
    if job.spec.deadline is None or job.finished:
        return None
    try:
        found = _deadline_estimate(world, job, profiles, now)
    except Exception:  # the job is queued already: its submit must not be answered as if it were not
        log.exception("whether job %d meets its deadline could not be predicted", job.id)
        return None
    answer: Json = {
        "deadline": job.spec.deadline,
        "probability": None,
        "probability_low": None,
        "probability_high": None,
        "basis": "",
        "ends_at": None,
        "needs_s": None,
        "needs_low_s": None,
        "needs_high_s": None,
        "helps": [],
        "text": "",
        "lines": [],
    }
    if found is None:
        total = profiles.total_of(job, world.observed.get(job.spec.learns_as))
        needs = f" yet: {KNOWN_ONCE}" if total else ": that needs --steps, or a job like it that has ended"
        late = " has passed" if job.spec.deadline < now else f" cannot be estimated{needs}"
        return answer | {"text": f"its deadline{late}", "lines": [f"its deadline{late}"]}
    first, *more = found.lines(now, _condition(world))
    lines = [first, *_protected(world), *more]
    return answer | {
        "probability": round(found.probability, 4),
        "probability_low": round(found.low, 4),
        "probability_high": round(found.high, 4),
        "basis": found.basis,
        "ends_at": found.ends_at,
        "needs_s": round(found.needs_s, 3),
        "needs_low_s": round(found.needs_low_s, 3),
        "needs_high_s": round(found.needs_high_s, 3),
        "helps": list(found.helps),
        "text": "; ".join(lines),
        "lines": lines,
    }


def _condition(world: World) -> str:
    """What must be chosen for a forecast to be about what the daemon does; "" where it is."""
    objective, policies = MEANT_FOR
    if world.policy not in policies:
        return f"under the policy adaptive and the objective {objective} (now {world.policy})"
    return "" if world.objective == objective else f"under hpcdl config objective {objective} (now {world.objective})"


def _protected(world: World) -> list[str]:
    """What is done for a deadline under an objective that plans for none; nothing where the forecast is about that."""
    objective, policies = MEANT_FOR
    if world.policy not in policies or world.objective == objective:
        return []
    return [f"under {world.objective} it comes before other jobs once it is at risk"]


def _deadline_estimate(world: World, job: Job, profiles: Profiles, now: float) -> "DeadlineEstimate | None":
    from hpcdl.adaptive.forecast import estimate_deadline  # numpy takes its time, and few jobs have a deadline

    view = without_light_runs(build_view(world, profiles, now))
    seen = next(each for each in view.jobs if each.id == job.id)
    return estimate_deadline(view, seen, measured_rate(job, now))


async def unheeded(api: ApiContext, jobs: Iterable[Job]) -> str:
    """What is said of these jobs' deadlines, if any has one that nothing is done for; "" otherwise."""
    if all(job.spec.deadline is None or job.finished for job in jobs):
        return ""
    world, policies = api.world, await api.call(lambda controller: controller.policies)
    return deadlines_unheeded(policies.make(world.policy), world.objective) if world.policy in policies.names() else ""


async def forecast_json(api: ApiContext, world: World, job: Job, now: float) -> Json:
    """`{"forecast": ...}` as `forecast` has it, {} where that is None; others need not wait while it is computed."""
    found = None if job.spec.deadline is None else await asyncio.to_thread(forecast, world, job, api.profiles, now)
    return {} if found is None else {"forecast": found}


def when(world: World, job: Job, profiles: Profiles, now: float, views: LastViews | None = None) -> "Eta | None":
    """When the job starts and is done, as far as that can be said; None once it is finished."""
    if job.finished or job.held or world.stopping or job.spec.light_steps is not None:
        return None  # or a light run, which nobody waits for
    try:
        found = grounds(world, job, profiles, now, views)
        return None if found is None else found.eta()
    except Exception:  # why it is where it is, is answered all the same
        log.exception("when job %d is done could not be predicted", job.id)
        return None


def grounds(
    world: World, job: Job, profiles: Profiles, now: float, views: LastViews | None = None
) -> "EtaBasis | None":
    """What `when` says follows from: of an unfinished job, None where nothing can be said."""
    from hpcdl.adaptive.eta import grounds_of  # as above

    view = without_light_runs(build_view(world, profiles, now)) if views is None else views.build(world, profiles, now)
    seen = view.by_id[job.id]
    held = remaining(world, job, profiles, now)
    if held is None and seen.placement is not None and not seen.leaving:
        return None
    return grounds_of(
        view, seen, world.policy, None if held is None else held.seconds, held is not None and held.measured
    )


def not_known_text(world: World, job: Job, profiles: Profiles, now: float, views: LastViews | None = None) -> str:
    """From when on it is known when the job is done, of one that has shown nothing yet that would say so; else ""."""
    from hpcdl.adaptive.prior import UNKNOWN, doubt  # as above

    if job.finished or job.held or world.stopping or job.spec.light_steps is not None:
        return ""
    view = without_light_runs(build_view(world, profiles, now)) if views is None else views.build(world, profiles, now)
    seen = view.by_id[job.id]
    if seen.total is None or seen.blocked or seen.leaving or seen.in_end or doubt(seen) < UNKNOWN:
        return ""
    return f"when it is done is not known yet: {KNOWN_ONCE}"


def metric_text(world: World, job: Job, profiles: Profiles) -> str:
    """After how many steps a job with `--accuracy` is expected to be done, and what that rests on; "" for any other."""
    target = job.spec.accuracy_target
    if target is None or job.finished or job.progress.total is not None:
        return ""
    seen = world.observed.get(job.spec.learns_as)
    total, own = profiles.total_of(job, seen), len(job.progress.accuracy)
    grounds = [count(own, "report") + " of its own"] if own else []
    earlier = None if seen is None else seen.metric
    if earlier is not None and earlier.job != job.id:
        grounds.append(f"the curve of job {earlier.job}")
    elif profiles.metric_before(job, None):
        grounds.append("the curve of its profile")
    if total is None:
        known = f" by {' and '.join(grounds)}" if grounds else ""
        return f"when its metric reaches {target:g} is not known yet{known}"
    return f"its metric is expected to reach {target:g} after {total} steps: by {' and '.join(grounds)}"


def when_json(eta: "Eta | None") -> Json:
    """`eta_s`, `eta_low_s`, `eta_high_s`, and `starts_in_s`, `starts_low_s`, `starts_high_s`; null where not known.

    `eta_claim`: how often the truth is to be from low to high.
    """
    ends, starts = (None, None) if eta is None else (eta.ends, eta.starts)
    return {
        "eta_claim": None if eta is None else eta.claim,
        "eta_s": None if ends is None else ends.expected_s,
        "eta_low_s": None if ends is None else ends.low_s,
        "eta_high_s": None if ends is None else ends.high_s,
        "starts_in_s": None if starts is None else starts.expected_s,
        "starts_low_s": None if starts is None else starts.low_s,
        "starts_high_s": None if starts is None else starts.high_s,
    }


def when_text(eta: "Eta", policy: str) -> str:
    """`starts in about 5 min (80 %: 4 to 9 min), done in about 1 h 05 min (80 %: 55 min to 1 h 30 min)`."""
    done = f"done in about {_about(eta.ends, eta.claim)}"
    if eta.starts is None:
        return done if eta.ends.expected_s > 0.0 else "has made its last step; it finishes"
    starts = eta.starts
    if starts.expected_s < 1.0:
        begin = "starts as soon as its GPUs are free"
    else:
        begin = f"starts in about {_about(starts, eta.claim)}"
    other = "" if policy in MEANT_FOR[1] else f"; the policy {policy} may take jobs in another order"
    return f"{begin}, {done}{other}"


def _about(band: "Band", claim: float) -> str:
    low, high = seconds_text(band.low_s), seconds_text(band.high_s)
    return f"{seconds_text(band.expected_s)} ({100 * claim:.0f} %: {low} to {high})"
