"""Whether a world contradicts itself: looked at by tests at every teardown, and by `SqliteJournal.verify`."""

from hpcdl.core.model import World
from hpcdl.core.units import GpuRef


def validate(world: World) -> None:
    """Raises ValueError where the world contradicts itself: a GPU held twice, a finished job that lives."""
    expected: dict[GpuRef, tuple[int, int]] = {}
    for job in world.jobs.values():
        if job.finished == (job.id in world.active):
            raise ValueError(f"job {job.id}: finished is {job.finished}, but active is {job.id in world.active}")
        if job.finished and job.live:
            raise ValueError(f"job {job.id} is {job.outcome} and has live incarnations")
        if len(job.live) != sum(each is not None for each in (job.running, job.gated)):
            raise ValueError(f"job {job.id} has two incarnations with GPUs, or two at the gate")
        for incarnation in job.live:
            if incarnation.number > job.last_incarnation:
                raise ValueError(f"job {job.id}: incarnation {incarnation.number} > last {job.last_incarnation}")
            if incarnation.placement is None:
                continue
            for share in incarnation.placement.shares:
                part = incarnation.part(share.node)
                if part is None or part.gpus != share.gpus:
                    raise ValueError(f"job {job.id}.{incarnation.number} has {share} and no such part")
            if len({part.node for part in incarnation.parts}) != len(incarnation.parts):
                raise ValueError(f"job {job.id}.{incarnation.number} has two parts on one node: {incarnation.nodes}")
            if not set(incarnation.nodes).issuperset(incarnation.members):
                raise ValueError(f"job {job.id}.{incarnation.number}: members {incarnation.members} without a part")
            for part in incarnation.parts:
                for gpu in (GpuRef(part.node, index) for index in part.gpus if not (part.freed or part.lost)):
                    if gpu in expected:
                        raise ValueError(f"GPU {gpu} is in jobs {expected[gpu][0]} and {job.id}")
                    expected[gpu] = (job.id, incarnation.number)
    alive = {job.id for job in world.jobs.values() if job.live}
    if alive != set(world.live):
        raise ValueError(f"jobs {sorted(alive)} have incarnations, but live are {sorted(world.live)}")
    if expected != world.holders:
        raise ValueError(f"holders are {world.holders}, incarnations say {expected}")
