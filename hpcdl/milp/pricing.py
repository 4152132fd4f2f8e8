"""A trainer in numbers: its throughput by nodes, and what rescales cost it. Kept while the job stays as it is.

A trainer of which nothing was seen yet is taken to scale as most do, to be LENGTH_S long on one GPU of the best kind
there is, which says what a step takes, and to need COST_S for each start, save and resume.
"""

from dataclasses import dataclass
from functools import lru_cache

from hpcdl.core.model.plan import JobView
from hpcdl.core.model.profile import Profile
from hpcdl.estimators.scaling import assumed_profile, doublings
from hpcdl.solver import ThroughputCurve

Kinds = tuple[tuple[str, int], ...]
"""Kind of GPU and GPUs on a node, by group."""


@dataclass(frozen=True, slots=True)
class TrainerPrices:
    """What a job can do on the nodes of each group.

    `takes`: GPUs that it takes of a node, 0 where it cannot run. `curves`: steps/s by nodes, None likewise. `unit`:
    steps/s on one node of the group where that is fastest; in units of it, trainers are comparable. Seconds without
    progress: `up_s`, `down_s` of a rescale to more and to fewer nodes than it holds, `move_s` of going elsewhere; for a
    job that holds none whole, `up_s` and `move_s` of its start. `lose_s`: when one of its nodes leaves.
    """

    takes: tuple[int, ...]
    curves: tuple[ThroughputCurve | None, ...]
    unit: float
    up_s: float
    down_s: float
    move_s: float
    lose_s: float


def priced(job: JobView, kinds: Kinds, holds: bool) -> TrainerPrices:
    """The numbers of a job; `holds`: it has whole nodes, and rescales from there."""
    name = "priced as held" if holds else "priced"
    known: tuple[Kinds, TrainerPrices] | None = job.memo.get(name)
    if known is None or known[0] != kinds:
        known = job.memo[name] = (kinds, _priced(job, kinds, holds))
    return known[1]


def _priced(job: JobView, kinds: Kinds, holds: bool) -> TrainerPrices:
    takes = takes_of(job, kinds)
    profile = profile_of(job, tuple(sorted({kind for kind, _ in kinds})) or ("",))
    units = tuple((kind, gpus) for (kind, _), gpus in zip(kinds, takes, strict=True))
    return TrainerPrices(takes, *_curves(profile, units), *_costs(job, takes, holds))


def takes_of(job: JobView, kinds: Kinds) -> tuple[int, ...]:
    """GPUs that the job takes of a node of each group: as many as it can, 0 where it cannot run there."""
    if job.counts:
        return tuple(max((each for each in job.counts if each <= size), default=0) for _, size in kinds)
    low, high = job.gpus_min, job.gpus_max
    return tuple(min(high, size) if size >= low else 0 for _, size in kinds)


def _costs(job: JobView, takes: tuple[int, ...], holds: bool) -> tuple[float, float, float, float]:
    held, profile = job.placement, job.profile
    if profile is None:
        return COST_S, COST_S if holds else 0.0, 2 * COST_S if holds else COST_S, COST_S
    lose_s = profile.suspend_resume_s if job.rescale == "restart" else profile.rescale_for(2, 1)
    if not holds or held is None:
        start_s = job.rescale_s(job.nodes, max(takes, default=1))
        return start_s, 0.0, start_s, lose_s
    many, gpus = len(held.shares), held.per_node
    up_s = job.rescale_s(many + 1, gpus)
    down_s = job.rescale_s(many - 1, gpus) if many > 1 else profile.save_s
    return up_s, down_s, profile.suspend_resume_s, lose_s


@lru_cache(maxsize=4096)
def _curves(profile: Profile, units: Kinds) -> tuple[tuple[ThroughputCurve | None, ...], float]:
    """Steps/s by nodes for each group, and the best of one node."""
    curves = tuple(None if gpus == 0 else _curve(profile.on(kind), gpus) for kind, gpus in units)
    return curves, max((curve.rate(1) for curve in curves if curve is not None), default=1.0)


@lru_cache(maxsize=4096)
def _curve(profile: Profile, gpus: int) -> ThroughputCurve:
    """Steps/s by nodes with so many GPUs each: profiles are linear between the numbers of nodes of their points."""
    nodes = sorted({nodes for nodes, _, _ in profile.points})
    return ThroughputCurve(tuple((many, profile.rate(gpus, many)) for many in nodes))


LENGTH_S = 600.0
COST_S = 30.0
_COSTS = (("startup_s", COST_S), ("save_s", COST_S), ("resume_s", COST_S))

LOOK_S = 60.0
"""Trainers of which nothing was seen are looked at again so soon: a report teaches, and is no event for a policy."""


def profile_of(job: JobView, kinds: tuple[str, ...]) -> Profile:
    """The job's profile, or else what is assumed. `kinds`: of the GPUs that there are, sorted, at least one."""
    if job.profile is not None:
        return job.profile
    return assumed_profile(job.total, max(job.nodes_max, 1), doublings(job.gpus_max), kinds, LENGTH_S, _COSTS)


def unseen(job: JobView) -> bool:
    """Whether its first report is still to come."""
    return job.profile is None and job.step == 0
