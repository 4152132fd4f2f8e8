"""What jobs take of each GPU, by the newest samples of the agents: only of attempts that are alone on all their GPUs.

The samples are of whole GPUs, so nothing is known of a job beside another. What follows, the core decides
(`rules.gpu_memory`).
"""

from collections.abc import Mapping

from hpcdl.core.model.commands import MemoryMeasurement
from hpcdl.core.model.sharing import partners_of
from hpcdl.core.model.world import World
from hpcdl.wire.messages import HeartbeatMessage


def gpu_memory(world: World, beats: Mapping[str, HeartbeatMessage]) -> tuple[MemoryMeasurement, ...]:
    """Of each job that agreed to share, the most that one of its GPUs has in use; nothing where one does not say."""
    used = {(name, line.index): line.memory_mib for name, beat in beats.items() for line in beat.gpus}
    found = []
    for number in world.live:
        job = world.jobs[number]
        running = job.running
        if job.spec.share is None or running is None or running.placement is None or partners_of(world, job):
            continue
        known = [used.get((gpu.node, gpu.number)) for gpu in running.placement.gpus]
        if None not in known and (mib := max(each or 0 for each in known)) > 0:
            found.append(MemoryMeasurement(number, running.number, mib))
    return tuple(found)
