"""From how many GPUs of which nodes each job gets to the GPUs themselves, so that as few jobs as possible move.

`realise` lays out all jobs at once, for `adaptive`; `packed` places one job, for policies that go by an order.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hpcdl.core.model.incarnation import Placement, Role, Share
from hpcdl.core.model.plan import JobView, View
from hpcdl.placement.connections import Distances, closest
from hpcdl.placement.pool import Pool


@dataclass(frozen=True, slots=True)
class Shape:
    """`gpus` GPUs on each of `nodes` nodes out of `among`."""

    among: frozenset[str]
    nodes: int
    gpus: int


@dataclass(slots=True)
class Layout:
    """Who gets which GPUs.

    `free`: by node, what nobody gets, ascending; `held`: what jobs hold now that will leave it. `barred`: nodes where
    no job may start. `distances`: of the GPUs of nodes where they are known.
    """

    placements: dict[int, Placement] = field(default_factory=dict)
    free: dict[str, list[int]] = field(default_factory=dict)
    held: dict[str, set[int]] = field(default_factory=dict)
    barred: set[str] = field(default_factory=set)
    distances: Mapping[str, Distances] = field(default_factory=dict)

    def take(self, job: JobView, names: Iterable[str], gpus: int) -> Placement:
        """Gives the job so many of the free GPUs of each of these nodes, those that nobody holds first."""
        own = {share.node: set(share.gpus) for share in job.placement.shares} if job.placement is not None else {}
        shares = []
        for name in sorted(names):
            held, mine = self.held.get(name, set()), own.get(name, set())
            best: tuple[int, ...] = ()
            for some in _classes(self.free[name], mine, held):
                best = closest(some, min(len(some), gpus - len(best)), self.distances.get(name, ()), best)
            shares.append(Share(name, best))
        return self.give(job, Placement(tuple(shares), Role.PRIMARY))

    def give(self, job: JobView, placement: Placement) -> Placement:
        """Gives the job these GPUs, which must be free."""
        for share in placement.shares:
            gone = share.gpus
            self.free[share.node] = [gpu for gpu in self.free[share.node] if gpu not in gone]
        self.placements[job.id] = placement
        return placement

    def release(self, job: JobView) -> None:
        """Takes back what the job was given."""
        placement = self.placements.pop(job.id)
        for share in placement.shares:
            self.free[share.node] = sorted([*self.free[share.node], *share.gpus])

    def has(self, placement: Placement) -> bool:
        """Whether all these GPUs are free."""
        return all(set(share.gpus).issubset(self.free.get(share.node, ())) for share in placement.shares)

    def fit(self, job: JobView, shape: Shape) -> bool:
        """Gives the job GPUs of that shape: of its last nodes if they have them, else where fewest are left over."""
        before = job.placement or job.last
        known = set(before.nodes) if before is not None else set()
        found = []
        for name in shape.among:
            free = self.free.get(name, ())
            if len(free) >= shape.gpus and name not in self.barred:
                held = self.held.get(name)
                now = len(free) if not held else sum(gpu not in held for gpu in free)
                found.append((name not in known, now < shape.gpus, len(free) - shape.gpus, name))
        if len(found) < shape.nodes:
            return False
        chosen = [min(found)] if shape.nodes == 1 else sorted(found)[: shape.nodes]
        self.take(job, [each[-1] for each in chosen], shape.gpus)
        return True


def _classes(free: Sequence[int], mine: Collection[int], held: Collection[int]) -> Iterable[list[int]]:
    """Those that the job has, those that nobody holds, those that others are to leave."""
    yield [gpu for gpu in free if gpu in mine]
    yield [gpu for gpu in free if gpu not in mine and gpu not in held]
    yield [gpu for gpu in free if gpu not in mine and gpu in held]


def realise(
    view: View,
    wanted: Mapping[int, Shape],
    kept: Mapping[int, Placement],
    others: Callable[[int], Sequence[Shape]] = lambda job: (),
    movable: Callable[[int], bool] = lambda job: False,
    first: Sequence[int] = (),
) -> Layout:
    """GPUs for every job in `wanted` (by id) for whom some are found; the rest get nothing.

    Who has what it wants keeps it; who wants fewer keeps some; who wants more of the same nodes keeps all and gets
    more. Then the others, the largest first. Where a shape does not fit, `others` says what else to try, in order; a
    job that has GPUs and cannot have more keeps what it has, unless it is `movable` to other nodes.

    `first`: ids of jobs in `wanted` that come before all others, in this order, whoever must move or go for that.
    `kept`: jobs that keep these GPUs whatever comes. Jobs that are in neither are taken to leave what they hold,
    except blocked ones. Same arguments, same layout.
    """
    layout = _empty(view, kept)
    _before(layout, view, wanted, first)
    jobs = [job for job in view.jobs if job.id in wanted and job.id not in layout.placements]
    grow = [job for job in view.jobs if job.id in layout.placements and job.id in first and _grows(layout, wanted, job)]
    place: list[JobView] = []
    for job in jobs:
        shape, now = wanted[job.id], placement_of(job)
        if now is None or not _of(shape, now) or not layout.has(now):
            place.append(job)
        elif all(len(share.gpus) == shape.gpus for share in now.shares):
            layout.give(job, now)
        elif all(len(share.gpus) > shape.gpus for share in now.shares):
            fewer = tuple(
                Share(share.node, closest(share.gpus, shape.gpus, layout.distances.get(share.node, ())))
                for share in now.shares
            )
            layout.give(job, Placement(fewer, Role.PRIMARY))
        else:
            layout.give(job, now)
            grow.append(job)
    for job in sorted(grow, key=lambda job: (-wanted[job.id].gpus, job.id)):
        _grow(layout, job, wanted[job.id], others, movable)
    stuck = []
    for job in sorted(place, key=lambda job: (-wanted[job.id].gpus, -wanted[job.id].nodes, job.id)):
        if not layout.fit(job, wanted[job.id]):
            stuck.append(job)
    for job in stuck:
        now = placement_of(job)
        if not any(layout.fit(job, shape) for shape in others(job.id)) and now is not None and layout.has(now):
            layout.give(job, now)
    return layout


def _before(layout: Layout, view: View, wanted: Mapping[int, Shape], first: Sequence[int]) -> None:
    """Gives GPUs to the jobs that come first: those that have some keep them, then the others choose.

    A job for which no node has enough, because of jobs that cannot go, is kept a place: where most is free, no other
    job may start.
    """
    by_id = {job.id: job for job in view.jobs} if first else {}
    waiting = []
    for number in first:
        job, shape = by_id[number], wanted.get(number)
        now = placement_of(job)
        if shape is None:
            continue
        if now is not None and _of(shape, now) and layout.has(now):
            if now.per_node > shape.gpus:
                now = Placement(tuple(Share(share.node, share.gpus[: shape.gpus]) for share in now.shares))
            layout.give(job, now)
        else:
            waiting.append((job, shape))
    for job, shape in waiting:
        if not layout.fit(job, shape):
            room = [(-len(layout.free[name]), name) for name in shape.among if name not in layout.barred]
            layout.barred.update(name for _, name in sorted(room)[: shape.nodes])


def _grows(layout: Layout, wanted: Mapping[int, Shape], job: JobView) -> bool:
    return layout.placements[job.id].per_node < wanted[job.id].gpus


def _of(shape: Shape, placement: Placement) -> bool:
    """Whether a placement is on such nodes, and as many."""
    shares = placement.shares
    return len(shares) == shape.nodes and all(share.node in shape.among for share in shares)


def placement_of(job: JobView) -> Placement | None:
    """The GPUs that the job has, or is on its way to."""
    return job.placement if job.placement is not None and not job.leaving else job.target


def _empty(view: View, kept: Mapping[int, Placement]) -> Layout:
    """The layout in which only those have something that nothing can be decided about."""
    held: dict[str, set[int]] = {}
    gone: dict[str, set[int]] = {}
    for job in view.jobs:
        placement = kept.get(job.id, job.placement)
        if placement is not None:
            into = gone if job.blocked or job.id in kept else held
            for share in placement.shares:
                into.setdefault(share.node, set()).update(share.gpus)
    none: set[int] = set()
    free = {node.name: [gpu for gpu in node.gpus if gpu not in gone.get(node.name, none)] for node in view.nodes}
    distances = {node.name: node.distances for node in view.nodes if node.distances}
    return Layout(dict(kept), free, held, distances=distances)


def _grow(
    layout: Layout,
    job: JobView,
    shape: Shape,
    others: Callable[[int], Sequence[Shape]],
    movable: Callable[[int], bool],
) -> None:
    now = layout.placements[job.id]
    layout.release(job)
    for each in (shape, *(other for other in others(job.id) if other.gpus > now.per_node)):
        if each.nodes == len(now.shares) and all(len(layout.free[name]) >= each.gpus for name in now.nodes):
            layout.take(job, now.nodes, each.gpus)
            return
    if not (movable(job.id) and layout.fit(job, shape)):
        layout.give(job, now)


def packed(pool: Pool, nodes: int, gpus: int, kind: str | None = None) -> Placement | None:
    """Best fit: `gpus` free GPUs of one type on each of `nodes` nodes, or None where they are not free.

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
