"""Which processors of the node come with which GPUs: an equal part each, of those that are near it.

A pure choice from what the node is: the same GPUs always bring the same processors, so jobs that share a node never
share one, unless one of them asked for more than its part. The supervisor binds the trainer to them.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

LEAST = 2
"""Where there are fewer processors than so many for each GPU, nothing is bound that did not ask for it: a training
loop and its data loader need one each."""

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def choose(
    gpus: Collection[str],
    near: Mapping[str, Collection[int]],
    allowed: Sequence[int],
    idle: Collection[str],
    wanted: int | None,
) -> tuple[int, ...]:
    """The processors of a job with these GPUs, ascending; () where it is not bound.

    `near`: by UUID of each GPU of the node the processors of its NUMA node, none where that is not known. `allowed`:
    the processors that this user may use, those of one core beside each other. `idle`: GPUs that nobody holds.
    `wanted`: how many, None: the part of its GPUs. Who wants more than that gets processors of idle GPUs first.
    """
    if wanted is None and len(allowed) < LEAST * len(near):
        return ()
    parts = _parts(near, allowed)
    own = [cpu for gpu in sorted(gpus) for cpu in parts.get(gpu, ())]
    if wanted is None:
        return tuple(sorted(own))
    spare = [cpu for gpu in sorted(near, key=lambda gpu: (gpu not in idle, gpu)) for cpu in parts[gpu]]
    found = list(dict.fromkeys([*own, *spare, *allowed]))[:wanted]
    return tuple(sorted(found)) if len(found) < len(allowed) else ()


def _parts(near: Mapping[str, Collection[int]], allowed: Sequence[int]) -> dict[str, list[int]]:
    """By GPU: those that are near the same processors share these out equally."""
    beside: dict[tuple[int, ...], list[str]] = {}
    for gpu in sorted(near):
        cpus = tuple(cpu for cpu in allowed if cpu in near[gpu]) or tuple(allowed)
        beside.setdefault(cpus, []).append(gpu)
    found = {}
    for cpus, gpus in beside.items():
        for place, gpu in enumerate(gpus):
            first, after = place * len(cpus) // len(gpus), (place + 1) * len(cpus) // len(gpus)
            found[gpu] = list(cpus[first : max(after, first + 1)])
    return found


def usable() -> tuple[int, ...]:
    """The processors that this process may use; those of one core come one after the other."""
    cpus = os.sched_getaffinity(0)
    return tuple(sorted(cpus, key=lambda cpu: (_first_sibling(cpu), cpu)))


def _first_sibling(cpu: int) -> int:
    try:
        text = Path(_TOPOLOGY.format(cpu)).read_text()
        return int(text.replace("-", ",").split(",")[0])
    except (OSError, ValueError):
        return cpu
