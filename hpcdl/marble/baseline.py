"""The policy `fifo-exclusive`, MARBLE's baseline: a batch scheduler that gives whole nodes to one job after another.

Section VII of the paper. It must stay as wasteful as LSF was there: figures are compared with it.
"""

from hpcdl.core.model.incarnation import Placement, Role
from hpcdl.core.model.plan import JobView, Plan, View
from hpcdl.core.model.units import count, fold_nodes
from hpcdl.placement.pool import Pool, impossible, lean_pool_of, waiting


class FifoExclusive:
    """LSF's way in the paper (section VII): each job has all GPUs of its node(s), strictly in order of submission.

    A job whose maximum is below the node's size still has the node to itself. Nothing is ever suspended.
    """

    name = "fifo-exclusive"

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        pool = lean_pool_of(view)
        for job in view.between:
            kept = pool.placements.get(job.id)
            if kept is not None:
                pool.reasons[job.id] = _exclusive(kept)
        first: JobView | None = None
        empty = [name for name, node in pool.nodes.items() if len(pool.free[name]) == len(node.gpus)]
        for job in pool.queue():
            if impossible(pool, job):
                continue
            fitting = sorted(
                (name for name in empty if len(pool.free[name]) >= job.gpus_min),
                key=lambda name: (-min(job.gpus_max, len(pool.free[name])), len(pool.free[name]), name),
            )
            if len(fitting) < job.nodes:
                first = job
                break
            _place(pool, job, fitting[: job.nodes])
            empty = [name for name in empty if name not in fitting[: job.nodes]]
        free = f"{len(empty)} of {count(len(pool.nodes), 'node')} empty"

        def waits(job: JobView) -> str:
            before = None if first is None or job.id == first.id else first
            return impossible(pool, job) or f"gets {_whole(job)}; " + waiting(job, before, free)

        return pool.lean_plan(waits, _exclusive)


def _place(pool: Pool, job: JobView, names: list[str]) -> None:
    each = job.allowed(min(len(pool.free[name]) for name in names))[-1]
    placement = pool.lowest(names, each, Role.PRIMARY)
    pool.give(job, placement, _exclusive(placement))
    for name in names:
        pool.free[name] = []  # whatever it leaves of the node stays empty


def _exclusive(placement: Placement) -> str:
    return f"has {fold_nodes(placement.nodes)} to itself, on {count(len(placement.gpus), 'GPU')}"


def _whole(job: JobView) -> str:
    return "a whole node" if job.nodes == 1 else f"{job.nodes} whole nodes"
