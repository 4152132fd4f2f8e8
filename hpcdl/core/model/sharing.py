"""When two jobs may be on one GPU: a foreground and a background, both agreed, and the memory of both fits.

One rule for the fold, for plans, for what grants GPUs and for the agent; it never guesses: memory that nobody measured
or stated does not fit. Which jobs share is decided by policies (`sharing.py` of the Controller).
"""

from hpcdl.core.model.incarnation import Incarnation
from hpcdl.core.model.job import Sharing
from hpcdl.core.model.units import GpuRef, memory_text
from hpcdl.core.model.world import Job, World

ROOM = 0.95
"""The part of a GPU's memory that two jobs may take together: allocators and drivers need some beside what is seen."""


def agreement_refusal(foreground: Sharing | None, background: Sharing | None) -> str:
    """Why these two may not be on one GPU, by what they agreed to; "" where they may."""
    if foreground is None or not foreground.as_foreground:
        return "no agreement to a background beside it (--share foreground)"
    if background is None or not background.as_background:
        return "no agreement to be a background (--share background)"
    return ""


def memory_refusal(memory_mib: int, first: int | None, second: int | None) -> str:
    """Why the memory of two jobs, in MiB, does not fit on a GPU of `memory_mib` (0: not known); "" where it does."""
    if first is None or second is None or not memory_mib:
        return "the memory of one of them is not known (--gpu-memory, or it is measured while it trains alone)"
    if first + second > ROOM * memory_mib:
        return f"{memory_text(first)} and {memory_text(second)} do not fit into {memory_text(memory_mib)}"
    return ""


def known_memory_mib(job: Job) -> int | None:
    """What the job takes of each GPU: as measured, else as its user says; None: not known."""
    return job.spec.gpu_memory_mib if job.gpu_memory_mib is None else job.gpu_memory_mib


def gpu_memory_mib(world: World, gpu: GpuRef) -> int:
    """The memory of a GPU; 0: not known."""
    node = world.nodes.get(gpu.node)
    return next((each.memory_mib for each in node.gpus if each.index == gpu.number), 0) if node is not None else 0


def pair_refusal(world: World, gpu: GpuRef, foreground: Job, background: Job) -> str:
    """Why these two jobs may not be on the GPU together; "" where they may."""
    return agreement_refusal(foreground.spec.share, background.spec.share) or memory_refusal(
        gpu_memory_mib(world, gpu), known_memory_mib(foreground), known_memory_mib(background)
    )


def grant_refusal(world: World, gpu: GpuRef, job: Job, *, background: bool) -> str:
    """Why the job cannot be granted the GPU now, by who holds it; "" where it can."""
    holder = (world.backgrounds if background else world.holders).get(gpu)
    if holder is not None:
        return f"GPU {gpu} is held by job {holder[0]}.{holder[1]}"
    other = (world.holders if background else world.backgrounds).get(gpu)
    if other is None or other[0] == job.id:
        return ""
    partner = world.jobs[other[0]]
    foreground, behind = (partner, job) if background else (job, partner)
    why = pair_refusal(world, gpu, foreground, behind)
    return f"GPU {gpu} is held by job {other[0]}.{other[1]}, and cannot be shared: {why}" if why else ""


def holder_of(world: World, gpu: GpuRef) -> tuple[int, int] | None:
    """(job, incarnation) of who has the GPU: the foreground, or a background that is alone on it; None: nobody."""
    return world.holders.get(gpu) or world.backgrounds.get(gpu)


def holders_of(world: World, gpu: GpuRef) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Who has the GPU (`holder_of`), and the background beside it, None where there is none."""
    holder = world.holders.get(gpu)
    return holder_of(world, gpu), None if holder is None else world.backgrounds.get(gpu)


def partners_of(world: World, job: Job) -> list[Job]:
    """The jobs that are on GPUs of this one, by their ids."""
    running = job.running
    there = world.holders if running is not None and running.is_background else world.backgrounds
    gpus = () if running is None or running.placement is None or not there else running.placement.gpus
    return [world.jobs[number] for number in sorted({there[gpu][0] for gpu in gpus if gpu in there} - {job.id})]


def takers(world: World, job: Job, running: Incarnation) -> list[int]:
    """The jobs that the last plan gave GPUs which this one still holds, ascending."""
    held = set() if running.placement is None else set(running.placement.gpus)
    return sorted(
        number
        for number, target in world.targets.items()
        if number != job.id and target.placement is not None and not held.isdisjoint(target.placement.gpus)
    )
