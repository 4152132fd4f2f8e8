"""The nodes and trainers of one decision: who is a candidate, what each may have, who only keeps what it has.

Only that: what nodes are worth is values.py, which ones a trainer gets layout.py.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from operator import attrgetter

from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.core.model.plan import JobView, NodeView, Standing, View
from hpcdl.milp.pricing import Kinds, TrainerPrices, priced


@dataclass(frozen=True, slots=True)
class TrainerCandidate:
    """A trainer of one decision: a job that can be decided about, and its numbers.

    `current`: the whole nodes that it holds, or is about to get, in the order of its ranks; `group`: theirs, -1 without
    any. `trains`: on so many of them it trains now, so that another number would cost it something. Where a change is
    under way that is not `current`: to go on with it costs nothing more. `aim`: the placement of which `current` is
    what is still there. `must`: it cannot be suspended, only rescaled.
    """

    job: JobView
    its: TrainerPrices
    aim: Placement | None = None
    current: tuple[str, ...] = ()
    group: int = -1
    trains: int = 0
    must: bool = False

    @property
    def holds(self) -> bool:
        """Whether it trains, or starts to."""
        return self.trains > 0

    @property
    def rate(self) -> float:
        """Steps/s now, which it loses while it is rescaled (the paper's f(C))."""
        curve = self.its.curves[self.group] if self.trains else None
        return 0.0 if curve is None else curve.rate(self.trains)


@dataclass(slots=True)
class AllocationCase:
    """The nodes and trainers of one decision.

    `kinds`, `names`: of each group, its kind of GPU with how many of them a node has (at least, where a job needs more
    nodes than there are of one size), and the nodes that can be given.
    `where`: the group of each of these nodes. `kept`: jobs that keep what they hold, whatever is decided. `limit`: so
    many trainers are allowed, None: any number. `chosen`: the ids of the jobs that it is about, None: all.
    `some_end`: it is known of some node when it leaves.
    """

    view: View
    nodes: dict[str, NodeView]
    kinds: Kinds
    names: list[list[str]]
    where: dict[str, int]
    candidates: list[TrainerCandidate] = field(default_factory=list)
    kept: dict[int, JobView] = field(default_factory=dict)
    limit: int | None = None
    chosen: frozenset[int] | None = None
    some_end: bool = False

    def about(self, job: JobView) -> bool:
        """Whether it is to be decided about that job."""
        return self.chosen is None or job.id in self.chosen

    @property
    def capacities(self) -> list[int]:
        """Nodes that can be given, by group."""
        return [len(names) for names in self.names]


def case_of(
    view: View,
    parallel: int | None,
    chosen: frozenset[int] | None = None,
    barred: frozenset[str] = frozenset(),
) -> AllocationCase:
    """The nodes and the trainers of a view: the first `parallel` jobs that can run, in the order of submission (FCFS).

    A job that is blocked, or needs more nodes than there are, takes no place. Without `parallel`, jobs are trainers for
    as long as there are nodes for the fewest that each of them needs. A job that cannot be changed (it can neither be
    suspended nor rescaled, or an agent of its nodes is away) keeps what it holds and is one of the trainers. Nodes on
    which such a job, or a blocked one, holds GPUs cannot be given. `chosen`: the ids of those that it is about (None:
    all); what others hold does not matter, but for nodes that are `barred`.
    """
    nodes = {node.name: node for node in view.nodes}
    steady, between, waiting = _sorted(view, chosen)
    alike = _alike(view.nodes)
    merged = _merged(view, alike, chosen)
    kept = {job.id: job for job in steady if _stays(job, view, nodes, merged)}
    closed = set(barred)
    for job in (*kept.values(), *(each for each in view.between if each.blocked)):
        if job.placement is not None:
            closed.update(job.placement.nodes)
    kinds, names, where = _groups(alike, closed, merged)
    case = AllocationCase(view, nodes, kinds, names, where, [], kept, parallel, chosen, alike.some_end)
    held = [job for job in (*steady, *between) if job.id not in kept]
    _ask(case, merge(sorted(held, key=_number), waiting, key=_number))
    return case


_number = attrgetter("order")


def _sorted(
    view: View, chosen: frozenset[int] | None
) -> tuple[Sequence[JobView], Sequence[JobView], Iterable[JobView]]:
    """The jobs that it is about: steady, between (and not blocked), waiting."""
    steady, between = view.steady, tuple(job for job in view.between if not job.blocked)
    if chosen is None:
        return steady, between, view.waiting
    return (
        tuple(job for job in steady if job.id in chosen),
        tuple(job for job in between if job.id in chosen),
        (job for job in view.waiting if job.id in chosen),
    )


def _stays(job: JobView, view: View, nodes: dict[str, NodeView], merged: tuple[str, int] | None) -> bool:
    """Whether the job keeps what it holds."""
    if job.placement is None:
        return False
    names = job.placement.nodes
    if not job.can_suspend:
        # It can only be rescaled, and only from whole nodes of one group.
        if not job.in_place or len(names) < job.nodes or not all(map(nodes.__contains__, names)):
            return True
        groups = {_key(nodes[name], merged) for name in names}
        taken = max(job.allowed(min(size for _, size in groups)), default=0)
        alone = all(_whole(share, view, taken) for share in job.placement.shares)
        return len(groups) > 1 or not alone
    if all(map(nodes.__contains__, names)):
        return False
    # A node whose agent is there, but that grants nothing, is one that has left.
    return any(name not in nodes and name not in view.bare for name in names)


def _whole(share: Share, view: View, taken: int) -> bool:
    """Whether the job has a node for itself, and all that it takes of it."""
    mine = len(share.gpus) == taken and view.gpus[share.node].issuperset(share.gpus)
    return mine and len(view.by_node[share.node]) == 1


def _key(node: NodeView, merged: tuple[str, int] | None) -> tuple[str, int]:
    """The kind and size of the group of a node."""
    size = len(node.gpus)
    return node.kind, min(size, merged[1]) if merged is not None and node.kind == merged[0] else size


@dataclass(frozen=True, slots=True)
class _NodeClass:
    """The nodes of a view by kind of GPU and size. `some_end`: it is known of one when it leaves."""

    names: dict[tuple[str, int], list[str]]
    some_end: bool


def _alike(nodes: Sequence[NodeView]) -> _NodeClass:
    found: dict[tuple[str, int], list[str]] = {}
    some_end = False
    for node in nodes:
        key = (node.kind, len(node.gpus))
        names = found.get(key)
        if names is None:
            found[key] = [node.name]
        else:
            names.append(node.name)
        if node.until is not None:
            some_end = True
    return _NodeClass(found, some_end)


def _merged(view: View, alike: _NodeClass, chosen: frozenset[int] | None) -> tuple[str, int] | None:
    """A kind of which nodes of that many GPUs and more are one group, since a job needs more nodes than are alike.

    None: there is no such job, and each group is of one size. Of several such jobs the first one has its way.
    """
    if len({kind for kind, _ in alike.names}) == len(alike.names):
        return None
    seen = set()
    for job in view.jobs:
        needs = (job.nodes, job.gpus_min, job.gpus_max, job.counts)
        if job.nodes == 1 or job.blocked or needs in seen or not (chosen is None or job.id in chosen):
            continue
        seen.add(needs)
        if any(len(names) >= job.nodes and job.allowed(size) for (_, size), names in alike.names.items()):
            continue
        for kind in sorted({kind for kind, _ in alike.names}):
            sizes = sorted(
                (size for (of, size), names in alike.names.items() if of == kind for _ in names), reverse=True
            )
            if len(sizes) >= job.nodes and job.allowed(sizes[job.nodes - 1]):
                return kind, sizes[job.nodes - 1]
    return None


def _groups(
    alike: _NodeClass, closed: set[str], merged: tuple[str, int] | None
) -> tuple[Kinds, list[list[str]], dict[str, int]]:
    found: dict[tuple[str, int], list[str]] = {}
    for (kind, size), names in alike.names.items():
        key = (kind, min(size, merged[1]) if merged is not None and kind == merged[0] else size)
        left = [name for name in names if name not in closed] if closed else names
        if left:
            found[key] = sorted([*found[key], *left]) if key in found else left
    kinds = tuple(sorted(found))
    groups = [found[kind] for kind in kinds]
    where: dict[str, int] = {}
    for number, each in enumerate(groups):
        where.update(dict.fromkeys(each, number))
    return kinds, groups, where


def _ask(case: AllocationCase, order: Iterator[JobView]) -> None:
    """Makes candidates of the first jobs, as many as may be."""
    room = len(case.where)
    must = sum(not job.can_suspend and job.id not in case.kept for job in case.view.steady if case.about(job))
    places = None if case.limit is None else case.limit - len(case.kept) - must
    capacities = case.capacities
    asked: list[tuple[JobView, TrainerPrices]] = []
    for job in order:
        full = places <= 0 if places is not None else room <= 0
        if full and not must:
            break
        its = priced(job, case.kinds, holds=False)
        if must and not job.can_suspend and job.standing is Standing.STEADY:
            must -= 1
            asked.append((job, its))
            continue
        if full:
            continue
        if not any(gpus and many >= job.nodes for gpus, many in zip(its.takes, capacities, strict=True)):
            continue
        if places is None:
            room -= job.nodes
            if room < 0 and asked:
                continue
        else:
            places -= 1
        asked.append((job, its))
    taken: set[str] = set()
    found = {job.id: _steady(case, job, its, taken) for job, its in asked if job.standing is Standing.STEADY}
    case.candidates += [found.get(job.id) or _other(case, job, its, taken) for job, its in asked]


def _steady(case: AllocationCase, job: JobView, its: TrainerPrices, taken: set[str]) -> TrainerCandidate:
    """A job that holds nodes, and perhaps is on its way to others."""
    held, aim = job.placement, job.target
    if held is None:
        return TrainerCandidate(job, its)
    group, trains = -1, 0
    current: tuple[str, ...] = ()
    if aim is not None and aim is not held and _under_way(job, aim):
        group, current = _current(case, job, aim, its, taken)
        trains = len(set(job.members).intersection(held.nodes))
    if not current or not trains:
        aim = held
        group, current = _current(case, job, held, its, taken)
        trains = len(current)
        if len(current) < len(held.nodes) and len(current) < sum(name in case.where for name in held.nodes):
            return TrainerCandidate(job, its)  # another one has the same nodes
    if not current:
        return TrainerCandidate(job, its)
    taken.update(current)
    if job.members and job.members != current:
        current = _ranked(job, current)
    return TrainerCandidate(job, priced(job, case.kinds, holds=True), aim, current, group, trains, not job.can_suspend)


def _ranked(job: JobView, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names in the order of the job's ranks, those without ranks at the end."""
    known: tuple[tuple[str, ...], tuple[str, ...]] | None = job.memo.get("ranked")
    if known is not None and known[0] == names:
        return known[1]
    ranks = {name: rank for rank, name in enumerate(job.members)}
    found = tuple(sorted(names, key=lambda name: ranks.get(name, len(ranks))))
    job.memo["ranked"] = (names, found)
    return found


def _under_way(job: JobView, aim: Placement) -> bool:
    """Whether the job trains on other nodes than the last plan gave it, and goes there in place."""
    return job.in_place and bool(job.members) and set(job.members) != set(aim.nodes)


def _other(case: AllocationCase, job: JobView, its: TrainerPrices, taken: set[str]) -> TrainerCandidate:
    """A job that waits, or is about to start on what the last plan gave it."""
    if job.target is None:
        return TrainerCandidate(job, its)
    group, current = _current(case, job, job.target, its, taken)
    taken.update(current)
    return TrainerCandidate(job, its, job.target, current, group) if current else TrainerCandidate(job, its)


def _current(
    case: AllocationCase, job: JobView, aim: Placement, its: TrainerPrices, taken: set[str]
) -> tuple[int, tuple[str, ...]]:
    """The nodes of a placement that are still there and nobody else's, and their group.

    None where the job does not take them whole.
    """
    names = aim.nodes
    where = case.where
    groups = set(map(where.get, names))
    if None in groups or not taken.isdisjoint(names):
        groups.discard(None)
        names = tuple(name for name in names if name in where and name not in taken)
    if len(groups) != 1 or not names:
        return -1, ()
    group = where[names[0]]
    gpus = its.takes[group]
    if not gpus or _each(job, aim) != gpus:
        return -1, ()
    there = case.view.gpus  # as many as before need not be the same: one may be lost or avoided, and another back
    if not all(there[share.node].issuperset(share.gpus) for share in aim.shares if share.node in where):
        return -1, ()
    return group, names


def _each(job: JobView, aim: Placement) -> int:
    """GPUs on each node of a placement of the job; 0 where they differ."""
    known: tuple[Placement, int] | None = job.memo.get("gpus each")
    if known is not None and known[0] is aim:
        return known[1]
    numbers = {len(share.gpus) for share in aim.shares}
    found = numbers.pop() if len(numbers) == 1 else 0
    job.memo["gpus each"] = (aim, found)
    return found
