"""What a stop has to wait for: what lives on nodes that can still answer."""

from hpcdl.core.model import World


def longest_grace_s(world: World) -> float:
    """Seconds that the slowest of the jobs that hold GPUs may take to save."""
    return max((world.jobs[n].spec.grace_s for n in world.active if world.jobs[n].running is not None), default=0.0)


def lives(world: World, ours: str | None) -> bool:
    """Whether any incarnation is left on a node that can still answer, or on `ours`, which will again."""
    return any(
        not part.gone and (world.nodes[part.node].connected or part.node == ours)
        for number in world.active
        for incarnation in world.jobs[number].live
        for part in incarnation.parts
        if part.node in world.nodes
    )
