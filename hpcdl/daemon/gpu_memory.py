"""What jobs take of each GPU, by the newest samples of the agents.

Of an attempt that is alone on all its GPUs it is what they have in use, but not by the first sample after another has
left, which may be older than that. Of one beside another it is what its processes have, where the driver says that.
What follows, the core decides (`rules.gpu_memory`).
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
        shares = {
            (name, line.index, *owner): mib
            for name, beat in beats.items()
            for line in beat.gpus
            for *owner, mib in line.shares
        }
        used = {(name, line.index): line.memory_mib for name, beat in beats.items() for line in beat.gpus}
        before, self._alone = self._alone, {}
        found: list[MemoryMeasurement] = []
        for number in world.live:
            job = world.jobs[number]
            running = job.running
            if job.spec.share is None or running is None or running.placement is None:
                continue
            if partners_of(world, job):
                own = [shares.get((gpu.node, gpu.number, number, running.number)) for gpu in running.placement.gpus]
                found += _most(number, running.number, own)
                continue
            newest = {node: beats[node] for node in running.placement.nodes if node in beats}
            first = newest | before.get((number, running.number), {})
            self._alone[number, running.number] = first
            if any(first[node] is beat for node, beat in newest.items()):
                continue
            known = [used.get((gpu.node, gpu.number)) for gpu in running.placement.gpus]
            found += _most(number, running.number, known)
        return tuple(found)


def _most(job: int, attempt: int, mib: list[int | None]) -> list[MemoryMeasurement]:
    """The most of what it has on each of its GPUs; nothing where one is not known."""
    known = [each for each in mib if each is not None]
    return [MemoryMeasurement(job, attempt, max(known))] if len(known) == len(mib) and any(known) else []
