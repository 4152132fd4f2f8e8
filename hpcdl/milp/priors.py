"""What is believed of a trainer of which nothing was seen yet: that it scales as most do, and how dear changes are."""

from functools import lru_cache

from hpcdl.core.plan import JobView
from hpcdl.core.profile import Point, Profile
from hpcdl.learning import fit_curve

LENGTH_S = 600.0
"""It is taken to be so long on one GPU of the best kind there is, which says what a step takes."""

COST_S = 30.0
"""What each start, save and rescale of it is taken to cost."""

LOOK_S = 60.0
"""Trainers of which nothing was seen are looked at again so soon: a report teaches, and is no event for a policy."""


def profile_of(job: JobView, kinds: tuple[str, ...]) -> Profile:
    """The job's profile, or else what is assumed. `kinds`: of the GPUs that there are, sorted, at least one."""
    if job.profile is not None:
        return job.profile
    return _assumed(job.total, max(job.nodes_max, 1), job.gpus_max, kinds)


def unseen(job: JobView) -> bool:
    """Whether its first report is still to come."""
    return job.profile is None and job.step == 0


@lru_cache(maxsize=4096)
def _assumed(total: int | None, nodes: int, gpus: int, kinds: tuple[str, ...]) -> Profile:
    scale = (total or LENGTH_S) / LENGTH_S
    shapes = {kind: _shape(kind, nodes, gpus) for kind in kinds}
    best = max(points[0][2] for points in shapes.values())
    curves = {kind: tuple((n, g, rate * scale / best) for n, g, rate in points) for kind, points in shapes.items()}
    return Profile(
        "not seen yet",
        curves[kinds[0]],
        startup_s=COST_S,
        save_s=COST_S,
        resume_s=COST_S,
        source="assumed: nothing was seen of it yet",
        kinds=tuple((kind, points) for kind, points in curves.items() if kind),
        spread=1.0,
    )


@lru_cache(maxsize=64)
def _shape(kind: str, nodes: int, gpus: int) -> tuple[Point, ...]:
    curve = fit_curve((), gpus, nodes, kind)
    return tuple((n, g, curve.rate(g, n)) for n in _doublings(nodes) for g in _doublings(gpus))


def _doublings(most: int) -> list[int]:
    return sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most})
