"""Backfill holes: idle nodes until their next planned use, for a batch system that shows node states and its plans.

Pure: an adapter (`hpcdl.slurm.adapter`) reads nodes, plans and queues and calls `find_holes`. LSF shows windows instead
(`hpcdl.lsf.holes`); which holes are taken is decided in `pilots.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpcdl.core.model.pilot import Hole
from hpcdl.core.model.units import fold_nodes, natural


@dataclass(frozen=True, slots=True)
class IdleNode:
    """A node that runs nothing and would take a batch job now.

    `queues`: those whose batch jobs may run on it. `gpus`: how many, and of which `kind`, in lower case, as in `Hole`.
    `planned`: the batch system says that it keeps the node for a batch job that waits.
    """

    name: str
    queues: tuple[str, ...]
    gpus: int | None = None
    kind: str = ""
    planned: bool = False


@dataclass(frozen=True, slots=True)
class PlannedUse:
    """Nodes that are to be used from `start` on (None: nobody knows when). `why`: in words, without time and nodes.

    `own`: it is a pilot of ours, which ends no hole. `nodes`: () where the batch system has not chosen them.
    """

    start: float | None
    nodes: tuple[str, ...]
    why: str
    own: bool = False

    def words(self) -> str:
        """`batch job 7 is expected on n[1-4]`."""
        return f"{self.why} on {fold_nodes(self.nodes)}" if self.nodes else self.why


@dataclass(frozen=True, slots=True)
class OpenQueue:
    """A queue that takes batch jobs now. `walltime_s`: the longest, None without a limit.

    `nodes_min`, `nodes_max`: of one batch job; None: no limit.
    """

    name: str
    walltime_s: float | None = None
    nodes_min: int = 1
    nodes_max: int | None = None


def find_holes(
    now: float,
    nodes: Sequence[IdleNode],
    uses: Sequence[PlannedUse],
    queues: Sequence[OpenQueue],
    limits: Sequence[PlannedUse] = (),
) -> tuple[Hole, ...]:
    """The holes of each queue; a node in several queues is in a hole of each.

    A hole ends when the first use of its nodes is planned to begin. A node that is kept for a job which names no nodes
    is taken to be wanted by whichever job is expected first; where none is expected at any known time, such a node
    is in no hole. Nodes whose use should have begun by now are in none either. Equal (queue, end, GPUs, kind) make one
    hole. A hole smaller than its queue's smallest batch job is left out. In the order of the queues, the first to end
    first; nodes by name, `n2` before `n10`. `limits`: they end every hole, for a pilot would lack something from then
    on: a licence for instance.
    """
    planned = _Planned(uses, limits)
    opened = {queue.name: (rank, queue) for rank, queue in enumerate(queues)}
    groups: dict[tuple[int, float, int, str], list[IdleNode]] = {}
    causes: dict[float, PlannedUse] = {}
    for node in nodes:
        until, use = planned.next(node)
        if until <= now:
            continue
        if use is not None:
            causes.setdefault(until, use)
        for name in node.queues:
            if name in opened:
                key = (opened[name][0], until, -1 if node.gpus is None else node.gpus, node.kind)
                groups.setdefault(key, []).append(node)
    words = {until: use.words() for until, use in causes.items()}
    found = []
    for (rank, until, _, kind), group in sorted(groups.items(), key=lambda each: each[0]):
        queue = queues[rank]
        if len(group) < queue.nodes_min:
            continue
        found.append(
            Hole(
                queue=queue.name,
                count=len(group),
                nodes=tuple(sorted((node.name for node in group), key=natural)),
                gpus=group[0].gpus,
                kind=kind,
                until=None if until == math.inf else until,
                why=words.get(until, ""),
                walltime_s=queue.walltime_s,
                nodes_max=queue.nodes_max,
            )
        )
    return tuple(found)


def planned_job(batch_id: str, start: float | None, nodes: tuple[str, ...], own: bool = False) -> PlannedUse:
    """The use that a waiting batch job will make of nodes."""
    return PlannedUse(start, nodes, f"batch job {batch_id} is expected", own)


class _Planned:
    """The first use of each node."""

    def __init__(self, uses: Sequence[PlannedUse], limits: Sequence[PlannedUse]) -> None:
        timed = sorted((use for use in uses if use.start is not None), key=lambda use: (_start(use), use.why))
        others = [use for use in timed if not use.own]
        self._named = {name for use in timed for name in use.nodes}
        self._uses = {name: use for use in reversed(others) for name in use.nodes}
        self._first = others[0] if others else None
        self._limit = min(limits, key=_start, default=None)

    def next(self, node: IdleNode) -> tuple[float, PlannedUse | None]:
        """When it is used next, and by what; -inf where it is kept and nobody knows until when."""
        uses = [self._uses.get(node.name), self._limit]
        if node.planned and node.name not in self._named:
            if self._first is None:
                return -math.inf, None
            uses.append(self._first)
        use = min((use for use in uses if use is not None), key=_start, default=None)
        return (math.inf if use is None else _start(use)), use


def _start(use: PlannedUse) -> float:
    return math.inf if use.start is None else use.start
