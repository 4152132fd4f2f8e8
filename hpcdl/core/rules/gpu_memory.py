"""What a job takes of each GPU: a pure decision from what agents measured while it was alone on its GPUs.

Only jobs that agreed to share are looked at; from this it follows what fits beside them (`model/sharing`).
"""

from collections.abc import Iterable

from hpcdl.core.model.commands import MemoryMeasurement
from hpcdl.core.model.events import GpuMemoryMeasured
from hpcdl.core.model.incarnation import IncarnationState
from hpcdl.core.model.world import World

TRAINED_S = 10.0
"""Before an attempt has trained so long, its allocator may not have all that it will take."""

GROWTH_MIB = 128
"""What was known has to be exceeded by so much for it to be news."""


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
