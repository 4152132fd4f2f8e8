"""What a job takes of each GPU: whether any GPU has so much, and what agents measured of it. Pure decisions.

Measured are jobs that agreed to share, while alone on their GPUs; from this it follows what fits beside them
(`model/sharing`). What a user says with `--gpu-memory` counts for every job: no GPU known to be smaller will do.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from hpcdl.core.model.commands import MemoryMeasurement
from hpcdl.core.model.events import GpuMemoryMeasured
from hpcdl.core.model.incarnation import IncarnationState
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.units import fold_nodes, memory_text
from hpcdl.core.model.world import Job, Node, World

TRAINED_S = 10.0
"""Before an attempt has trained so long, its allocator may not have all that it will take."""

GROWTH_MIB = 128
"""What was known has to be exceeded by so much for it to be news."""


def needed_mib(job: Job) -> int | None:
    """The memory that a GPU must have for the job, in MiB: as its user says, less where less was measured; None: any
    will do."""
    stated = job.spec.gpu_memory_mib
    return stated if stated is None or job.gpu_memory_mib is None else min(stated, job.gpu_memory_mib)


@dataclass(frozen=True, slots=True)
class LargestGpu:
    """The most memory that a GPU has, in MiB, and the nodes with such GPUs."""

    mib: int
    nodes: tuple[str, ...]

    def lack(self, needed_mib: int | None) -> str:
        """Why a job that needs so much of each GPU can have none; "" where it can."""
        if needed_mib is None or needed_mib <= self.mib:
            return ""
        return f"{memory_text(needed_mib)} of each GPU, and the largest has {memory_text(self.mib)} ({self.where})"

    @property
    def where(self) -> str:
        """Its nodes."""
        return fold_nodes(self.nodes)


NONE_KNOWN = LargestGpu(sys.maxsize, ())
"""Where there is no GPU, or one whose memory nobody knows: it may be as large as any."""


def largest_gpu(nodes: Iterable[Node]) -> LargestGpu:
    """The largest GPU of these nodes."""
    sizes = {node.name: [gpu.memory_mib for gpu in node.gpus] for node in nodes if node.gpus}
    if not sizes or not all(map(all, sizes.values())):
        return NONE_KNOWN
    most = max(map(max, sizes.values()))
    return LargestGpu(most, tuple(name for name, memory in sizes.items() if max(memory) == most))


def largest_gpu_here(world: World) -> LargestGpu:
    """The largest GPU of nodes whose agents are there, while there is none (between two allocations) of all known."""
    nodes = [node for node in world.nodes.values() if node.gpus]
    return largest_gpu([node for node in nodes if node.connected and not node.lost] or nodes)


def never_large_enough(world: World, spec: JobSpec, batch_system: str) -> str:
    """Why a job could never have the memory that it asks of a GPU; "" where it may.

    A larger GPU may come with a pilot, with an allocation of the `batch_system` ("": there is none), and after an
    allocation in which the daemon runs now. Nodes that are lost may come back.
    """
    if spec.gpu_memory_mib is None or batch_system or any(not pilot.over for pilot in world.pilots.values()):
        return ""
    if any(node.allocation for node in world.nodes.values()):
        return ""
    return largest_gpu(world.nodes.values()).lack(spec.gpu_memory_mib)


def gpu_memory_events(world: World, measured: Iterable[MemoryMeasurement], now: float) -> list[GpuMemoryMeasured]:
    """What is news of these."""
    found = []
    for each in measured:
        job = world.jobs.get(each.job)
        incarnation = None if job is None else job.incarnation(each.incarnation)
        if job is None or job.spec.share is None or incarnation is None or incarnation.training_start is None:
            continue
        if incarnation.state is not IncarnationState.RUNNING or now - incarnation.training_start.at < TRAINED_S:
            continue
        if job.gpu_memory_mib is None or each.mib >= job.gpu_memory_mib + GROWTH_MIB:
            found.append(GpuMemoryMeasured(each.job, each.incarnation, each.mib))
    return found
