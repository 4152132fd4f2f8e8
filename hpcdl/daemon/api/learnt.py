"""What was learnt from earlier jobs, for one job: the lines and the JSON of `hpcdl why`.

It reads the world alone; `core/controller/history.py` says which jobs count.
"""

from hpcdl.core.controller.history import FIELDS, Histories, Learnt, groups_of
from hpcdl.core.controller.type_profiles import TypeProfiles
from hpcdl.core.fold.observations import observations_of
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import Job, World
from hpcdl.daemon.api.rows import Json

LINES = (
    ("start", "starts take", "start"),
    ("save", "saves take", "job"),
    ("length", "on one GPU a whole job trains for", "job"),
)
"""Field of `Sample`, how its line begins, and what it counts."""


ALIKE = 1.25
"""Jobs whose steps differ by no more than this factor are about as long."""


def learnt_of(world: World, job: Job) -> tuple[list[str], Json]:
    """Lines, and by field of `Sample` `{"mean", "low", "high", "times", "of", "spread"}`, null where none is known: of
    starts for a job, too, that has run and does not say when it begins to train."""
    known = Histories()
    known.look(world, None)
    groups = groups_of(job.spec)
    found = {what: known.learnt(groups, what) for what in FIELDS}
    if job.first_start_at is not None and not job.can_suspend:
        found["start"] = None
    told = {what: each for what, each in found.items() if each is not None}
    if not _as_long(job, told.get("steps")):
        told.pop("length", None)
    lines = [f"{begins} {told[what].text(unit)}" for what, begins, unit in LINES if what in told]
    return lines, {what: None if each is None else _json(each) for what, each in found.items()}


def predicted_text(world: World, job: Job, profiles: Profiles) -> str:
    """By what the job's rate is predicted, or why it is not; "" where it is known, or the job says no batch size."""
    batch, known = job.spec.batch_size, profiles.of(job, observations_of(world, job.spec.learns_as))
    if job.finished or batch is None:
        return ""
    if known is not None:
        return _of_profile(known, batch) if job.spec.profile else ""
    found = TypeProfiles().prediction(world, job.spec, profiles)
    return "" if found is None else found.words


def _of_profile(profile: Profile, batch: int) -> str:
    """What a profile that the job names says of its batch size."""
    if profile.latency is None:
        return f"profile {profile.name} is the same for all batch sizes: one of hpcdl profile fit is not"
    first, last = profile.latency.stretches[0].smallest, profile.latency.stretches[-1].largest
    outside = "" if first <= batch <= last else f", beyond those that were run ({first:g} to {last:g} on a GPU)"
    return f"its rate at batch size {batch} is by GENIE's model in profile {profile.name}{outside}"


def _as_long(job: Job, steps: Learnt | None) -> bool:
    """Whether the job has about as many steps as those like it, as far as that is known: else it is not as long."""
    total = job.progress.total
    return total is None or steps is None or steps.mean / ALIKE <= total <= steps.mean * ALIKE


def _json(each: Learnt) -> Json:
    return {
        "mean": round(each.mean, 3),
        "low": round(each.low, 3),
        "high": round(each.high, 3),
        "times": each.times,
        "of": each.whose,
        "spread": round(each.spread, 3),
    }
