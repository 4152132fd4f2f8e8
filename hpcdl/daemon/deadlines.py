"""Whether a job meets its deadline: said when it is submitted, and whenever its user asks why it is where it is."""

import logging
from typing import TYPE_CHECKING, Any

from hpcdl.core.model import Job, World
from hpcdl.core.plan import Profiles
from hpcdl.core.views import build_view

if TYPE_CHECKING:
    from hpcdl.adaptive.forecast import Foreseen

Json = dict[str, Any]

MEANT_FOR = ("deadline", frozenset({"adaptive", "adaptive-fifo"}))
"""The objective and the policies that the forecast is about: any other may take jobs in another order."""


log = logging.getLogger("hpcdl.daemon")


def forecast(world: World, job: Job, profiles: Profiles, now: float) -> Json | None:
    """`{"deadline", "probability", "ends_at", "helps", "text"}`; None without a deadline or once it is finished.

    `probability` and `ends_at` are None where the job's length is not known: it needs steps and a profile.
    """
    if job.spec.deadline is None or job.finished:
        return None
    try:
        found = _foreseen(world, job, profiles, now)
    except Exception:  # the job is queued already: its submit must not be answered as if it were not
        log.exception("whether job %d meets its deadline could not be foreseen", job.id)
        return None
    answer: Json = {"deadline": job.spec.deadline, "probability": None, "ends_at": None, "helps": [], "text": ""}
    if found is None:
        late = " has passed" if job.spec.deadline < now else " cannot be foreseen: that needs --steps and a profile"
        return answer | {"text": f"its deadline{late}"}
    objective, policies = MEANT_FOR
    text = found.text
    if world.objective != objective or world.policy not in policies:
        text = f"under the objective {objective} (hpcdl config objective {objective}) it {text}"
    return answer | {
        "probability": round(found.probability, 4),
        "ends_at": found.ends_at,
        "helps": list(found.helps),
        "text": text,
    }


def _foreseen(world: World, job: Job, profiles: Profiles, now: float) -> "Foreseen | None":
    from hpcdl.adaptive.forecast import foresee  # numpy takes its time, and few jobs have a deadline

    view = build_view(world, profiles, now)
    seen = next(each for each in view.jobs if each.id == job.id)
    return foresee(view, seen) if seen.profile is not None else None
