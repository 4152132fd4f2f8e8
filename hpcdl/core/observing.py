"""What progress reports teach: how fast jobs like this one train, on which GPUs, and how their metric rises.

Only `effects` calls it. The observations are part of the world, so a replay learns the same; `Profiles` makes profiles
of them.
"""

from hpcdl.core.model import Incarnation, Job, Placement, World
from hpcdl.core.profile import Observation
from hpcdl.core.units import gpu_kind

MEMORY_S = 24 * 3600.0
"""Seconds of training after which older observations count less: machines and scripts change."""

POINTS = 64
"""Points of a metric that are kept."""


def observe(world: World, job: Job, incarnation: Incarnation, step: int, at: float) -> None:
    """Adds the steps since the last report to what is known of jobs like this one."""
    since, placement = incarnation.progressed_at, incarnation.placement
    if since is None or placement is None or at <= since or step <= incarnation.progressed_step:
        return
    if incarnation.asked_at is not None or len({len(share.gpus) for share in placement.shares}) != 1:
        return  # it may be saving, or the placement is not one that a curve has a place for
    spot = (_kind_on(world, placement), len(placement.shares), placement.per_node)
    key = job.spec.learns_as
    steps, seconds = float(step - incarnation.progressed_step), at - since
    others = []
    for known in world.observed.get(key, ()):
        if (known.kind, known.nodes, known.gpus) == spot:
            weight = min(1.0, MEMORY_S / known.seconds)
            steps, seconds = steps + weight * known.steps, seconds + weight * known.seconds
        else:
            others.append(known)
    world.observed[key] = (*others, Observation(*spot, steps, seconds))


def thinned(points: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    """The points, without every second one of the older half once there are too many: few show a curve."""
    half = POINTS // 2
    return points if len(points) <= POINTS else points[:-half:2] + points[-half:]


def _kind_on(world: World, placement: Placement) -> str:
    """The type of the GPUs of a placement, "" where they are of several."""
    kinds = {
        gpu_kind(gpu.name)
        for share in placement.shares
        if (node := world.nodes.get(share.node)) is not None
        for gpu in node.gpus
        if gpu.index in share.gpus
    }
    return kinds.pop() if len(kinds) == 1 else ""
