"""Starting jobs one after another on what is free, and saying what is free to those that wait."""

from hpcdl.core.model import Placement
from hpcdl.core.plan import JobView
from hpcdl.core.units import count
from hpcdl.genie.model import expected_at
from hpcdl.genie.words import outcome_words, where
from hpcdl.placing.pool import Pool, most_free
from hpcdl.placing.symmetric import packed


class Launch:
    """A decision's starts. Free GPUs only become fewer, so what did not fit once is not tried again."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._full: set[tuple[int, int, str | None]] = set()
        self._most = ""
        self._enough: dict[int, int] = {}

    def start(self, job: JobView, nodes: int, gpus: int, kind: str | None = None) -> bool:
        """Gives the job `gpus` GPUs on each of `nodes` nodes, if they are free; `kind`: of that type."""
        shape = (nodes, gpus, kind)
        if shape in self._full:
            return False
        placement = packed(self._pool, nodes, gpus, kind)
        if placement is None:
            self._full.add(shape)
            return False
        self._pool.give(job, placement, started(self._pool, job, placement))
        self._most = ""
        self._enough.clear()
        return True

    def free(self, nodes: int, gpus: int) -> str:
        """What is free, as it matters to a job that needs `gpus` GPUs on each of `nodes` nodes."""
        if nodes == 1:
            self._most = self._most or most_free(self._pool)
            return self._most
        if gpus not in self._enough:
            self._enough[gpus] = sum(len(free) >= gpus for free in self._pool.free.values())
        return f"{count(self._enough[gpus], 'node')} with them free"


def keep(pool: Pool) -> None:
    """Says of the jobs that keep their GPUs when they will be done."""
    for job in pool.view.jobs:
        kept = pool.placements.get(job.id)
        if kept is None or job.placement is None or not kept.same_gpus(job.placement):
            continue
        if all(name in pool.nodes for name in kept.nodes):
            pool.reasons[job.id] = started(pool, job, kept)


def started(pool: Pool, job: JobView, placement: Placement) -> str:
    """The reason of a job that has its GPUs."""
    kind = pool.nodes[placement.nodes[0]].kind
    return f"on {where(placement)}{outcome_words(job, placement, pool.view.now, kind, expected_at(job))}"
