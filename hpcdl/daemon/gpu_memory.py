"""What jobs take of each GPU, by the newest samples of the agents: only of attempts that are alone on all their GPUs.

The samples are of whole GPUs, so nothing is known of a job beside another, nor by the first sample after the other has
left, which may be older than that. What follows, the core decides (`rules.gpu_memory`).
"""

from collections.abc import Mapping

from hpcdl.core.model.commands import MemoryMeasurement
from hpcdl.core.model.sharing import partners_of
from hpcdl.core.model.world import World
from hpcdl.wire.messages import HeartbeatMessage


class GpuMemory:
    """The memory of attempts, over the samples."""

    def __init__(self) -> None:
        # Of each attempt that is alone, by node: the heartbeat from which its samples count.
        self._alone: dict[tuple[int, int], dict[str, HeartbeatMessage]] = {}

    def measure(self, world: World, beats: Mapping[str, HeartbeatMessage]) -> tuple[MemoryMeasurement, ...]:
        """Of each job that agreed to share, the most that one of its GPUs has in use; nothing where one does not say,
        or where its node has sent no heartbeat since the job was first seen alone."""
        used = {(name, line.index): line.memory_mib for name, beat in beats.items() for line in beat.gpus}
        before, self._alone = self._alone, {}
        found = []
        for number in world.live:
            job = world.jobs[number]
            running = job.running
            if job.spec.share is None or running is None or running.placement is None or partners_of(world, job):
                continue
            newest = {node: beats[node] for node in running.placement.nodes if node in beats}
            first = newest | before.get((number, running.number), {})
            self._alone[number, running.number] = first
            if any(first[node] is beat for node, beat in newest.items()):
                continue
            known = [used.get((gpu.node, gpu.number)) for gpu in running.placement.gpus]
            if None not in known and (mib := max(each or 0 for each in known)) > 0:
                found.append(MemoryMeasurement(number, running.number, mib))
        return tuple(found)
