"""GPU memory utilisation: how much of the GPUs' memory jobs have in use, of each job and of a whole run.

For runs of which it is known, or assumed, what a job takes on how many GPUs; what was measured, `use` adds up.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import fsum

from hpcdl.report.history import History, Phase


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """What training a model takes of each GPU, in MiB, where a batch is divided among its GPUs.

    state_mib: on every GPU: weights, gradients, the optimizer's state, and what the driver takes. batch_mib: the
    activations of a whole batch, of which each GPU has its part.
    """

    state_mib: float
    batch_mib: float

    def on(self, gpus: int) -> float:
        """On each of `gpus` GPUs."""
        return self.state_mib + self.batch_mib / gpus


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Shares from 0 to 1. jobs: by id, of the GPUs that each held, while it held them; None: not known.

    run: of all GPUs from the first submit to the end; None where it is not known of a job that trained.
    """

    jobs: Mapping[int, float | None]
    run: float | None


def memory_use(
    history: History, memory_of: Callable[[int, int], float | None], size_of: Callable[[str], float], there_s: float
) -> MemoryUse:
    """The utilisation of a history. It counts from a job's first step on a GPU until it is off it.

    memory_of: MiB that a job (its id) takes on each GPU of so many; None: not known. size_of: MiB of a GPU of a node,
    0 where that is not known. there_s: GPU-seconds of all GPUs.
    """
    used: dict[int, list[float]] = {}
    held: dict[int, list[float]] = {}
    unknown = set[int]()
    for span in history.spans:
        held.setdefault(span.job, []).append(span.end_at - span.start_at)
        size = size_of(span.node)
        for piece in span.pieces:
            if piece.phase is Phase.STARTING:
                continue
            mib = memory_of(span.job, piece.gpus)
            if mib is None or not size:
                unknown.add(span.job)
            else:
                used.setdefault(span.job, []).append((piece.end - piece.begin) * mib / size)
    jobs = {
        job: None if job in unknown or fsum(held[job]) <= 0 else fsum(used.get(job, ())) / fsum(held[job])
        for job in held
    }
    whole = None if unknown or not used or there_s <= 0 else fsum(map(fsum, used.values())) / there_s
    return MemoryUse(jobs, whole)
