"""CUDA_VISIBLE_DEVICES: which GPUs the agent's own leaves it, and the one that it gives to its trainers.

A trainer's names GPUs by UUID, never by index: indices change with the mask.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcdl.agent.gpu.device import MIG_INDEX_STEP, Gpu

UNLISTED_MIG_INDEX = 10_000


def visible(gpus: Sequence[Gpu], mask: str | None) -> tuple[Gpu, ...]:
    """The GPUs that `mask`, a CUDA_VISIBLE_DEVICES, leaves, in its order. None (not set) leaves all, "" none.

    Read as CUDA reads it: indices, UUIDs, or prefixes of a UUID that fit one GPU only; the first entry that names
    nothing (or a GPU again) ends the list. An index is NVML's, in PCI order; CUDA's own default order differs only on
    a node with different models of GPU. The index of a GPU that is cut into MIG devices is the first of them. A MIG
    device that the source does not list is kept by the name it has in the mask, its memory unknown (0).
    """
    if mask is None:
        return tuple(gpus)
    kept: list[Gpu] = []
    for position, entry in enumerate(mask.split(",")):
        gpu = _named(gpus, entry.strip(), position)
        if gpu is None or any(gpu.uuid == other.uuid for other in kept):
            break
        kept.append(gpu)
    return tuple(kept)


def cuda_visible_devices(gpus: Sequence[Gpu]) -> str:
    """The CUDA_VISIBLE_DEVICES that shows these GPUs, by UUID: it means the same under any mask and any order."""
    return ",".join(gpu.uuid for gpu in gpus)


def _named(gpus: Sequence[Gpu], entry: str, position: int) -> Gpu | None:
    if entry.isascii() and entry.isdigit() and len(entry) < 10:
        index = int(entry)
        parts = range(MIG_INDEX_STEP * (index + 1), MIG_INDEX_STEP * (index + 2))
        whole = [gpu for gpu in gpus if gpu.index == index]
        return next(iter(whole or sorted((gpu for gpu in gpus if gpu.index in parts), key=lambda gpu: gpu.index)), None)
    if not entry.startswith(("GPU-", "MIG-", "EMU-")):
        return None
    exact = [gpu for gpu in gpus if gpu.uuid == entry]
    fitting = exact or [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting and entry.startswith("MIG-") and len(entry) > len("MIG-"):
        return Gpu(UNLISTED_MIG_INDEX + position, entry, "MIG device", 0)
    return None
