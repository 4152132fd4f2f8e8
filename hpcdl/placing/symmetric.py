"""Placements with the same number of GPUs on each of their nodes, packed best-fit."""

from hpcdl.core.model import Placement, Role
from hpcdl.placing.pool import Pool


def packed(pool: Pool, nodes: int, gpus: int, kind: str | None = None) -> Placement | None:
    """`gpus` free GPUs of one type on each of `nodes` nodes, or None where they are not free.

    Of the nodes with enough, those with the fewest left over, then by name, so that large holes stay whole. `kind`:
    the type; None: whichever leaves the fewest over.
    """
    fitting: dict[str, list[tuple[int, str]]] = {}
    for name, free in pool.free.items():
        its = pool.nodes[name].kind
        if len(free) >= gpus and kind in (None, its):
            fitting.setdefault(its, []).append((len(free) - gpus, name))
    choices = [sorted(found)[:nodes] for found in fitting.values() if len(found) >= nodes]
    if not choices:
        return None
    chosen = min(choices, key=lambda found: (sum(left for left, _ in found), found))
    return pool.lowest([name for _, name in chosen], gpus, Role.PRIMARY)
