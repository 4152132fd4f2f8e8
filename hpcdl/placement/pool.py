"""The pool of GPUs of a plan in the making: which are free once every job keeps what it has, and who gets which.

Most policies are an order of jobs and `Pool.give`; the reasons for what they share stand here too. Lean pools cost
nothing for jobs that go on or only wait, which matters with thousands of them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from hpcdl.core.model.incarnation import Placement, Role, Share
from hpcdl.core.model.plan import JobView, NodeView, Plan, Standing, Targets, View
from hpcdl.core.model.units import count, fold_nodes
from hpcdl.core.model.world import Target
from hpcdl.placement.connections import Distances, closest


@dataclass(slots=True)
class Pool:
    """A plan in the making. `free`: by node, the GPUs that nobody holds and nobody has been given, ascending.

    `lean`: jobs that keep what they hold are in `placements` and `reasons` only if something was said about them.
    """

    view: View
    nodes: dict[str, NodeView]
    free: dict[str, list[int]]
    placements: dict[int, Placement | None] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    lean: bool = False
    never: dict[tuple[int, int], str] = field(default_factory=dict)

    def give(self, job: JobView, placement: Placement, reason: str) -> None:
        """Gives the job these GPUs as its target; they are not free any more."""
        for share in placement.shares:
            if self.free.get(share.node):
                self.free[share.node] = [gpu for gpu in self.free[share.node] if gpu not in share.gpus]
        self.placements[job.id], self.reasons[job.id] = placement, reason

    def refuse(self, job: JobView, reason: str) -> None:
        """Gives the job no GPUs, and says why."""
        self.placements[job.id], self.reasons[job.id] = None, reason

    def lowest(self, names: Iterable[str], number: int, role: Role) -> Placement:
        """So many of the free GPUs of each of these nodes: the best connected, else those with the lowest indices."""
        shares = (Share(name, closest(self.free[name], number, self.distances(name))) for name in sorted(names))
        return Placement(tuple(shares), role)

    def distances(self, name: str) -> Distances:
        """How far the GPUs of that node are from each other; () where that is not known."""
        node = self.nodes.get(name)
        return () if node is None else node.distances

    def queue(self) -> Sequence[JobView]:
        """Jobs that nothing was said about yet, and that do not just keep what they hold, in FIFO order."""
        if not self.lean:
            return [job for job in self.view.jobs if job.id not in self.reasons]
        others = [job for job in self.view.between if job.id not in self.reasons]
        waiting = self.view.waiting
        return sorted([*others, *waiting], key=lambda job: job.order) if others else waiting

    def lean_plan(self, waits: Callable[[JobView], str], kept: Callable[[Placement], str] | None = None) -> Plan:
        """The plan, in which jobs that nothing was said about keep what they hold, or wait for the reason `waits`.

        `kept`: why a job keeps it; None: in the words of `role_reason`. Nothing may be given any more after that.
        """

        def why(job: JobView) -> str:
            if job.standing is not Standing.STEADY or job.placement is None:
                return waits(job)
            return _kept(self, job, job.placement) if kept is None else kept(job.placement)

        by_id = self.view.by_id
        named = {
            number: target_of(by_id[number], self.placements[number], self.reasons[number]) for number in self.reasons
        }
        return Plan(Targets(self.view, named, why))

    def plan(self, warm: tuple[int, ...] = ()) -> Plan:
        """The plan; every job of the view must have been given or refused GPUs."""
        jobs = self.view.jobs
        return Plan(tuple([target_of(job, self.placements[job.id], self.reasons[job.id]) for job in jobs]), warm)


def target_of(job: JobView, placement: Placement | None, reason: str) -> Target:
    """The job's target; the same object as in the last plan where it says the same."""
    known: Target | None = job.memo.get("target")
    if known is not None and known.placement is placement and known.reason == reason:
        return known
    target = job.memo["target"] = Target(job.id, placement, reason)
    return target


def lean_pool_of(view: View) -> Pool:
    """As `pool_of`, for `Pool.lean_plan`: it costs nothing for jobs that go on, or that only wait."""
    nodes = {node.name: node for node in view.nodes}
    pool = Pool(view, nodes, {name: list(free) for name, free in view.free.items()}, lean=True)
    taken: dict[str, set[int]] = {}  # for as long as this plan can see: what is leaving frees its GPUs soon
    for name in {name for job in view.between if job.target is not None for name in job.target.nodes}:
        taken[name] = {
            gpu
            for other in view.by_node.get(name, ())
            if other.placement is not None and not other.leaving
            for share in other.placement.shares
            if share.node == name
            for gpu in share.gpus
        }
    for job in view.between:
        _settle(pool, job, taken)
    return pool


def pool_of(view: View) -> Pool:
    """The pool in which all jobs that hold or are about to hold GPUs keep them, and blocked jobs have been refused.

    A job that runs keeps its placement, also on a node that is away. One whose suspend for a move is under way, or
    that waits for the GPUs that the last plan gave it, keeps that target, also where others are still leaving them;
    unless its GPUs cannot be granted any more or are another job's.
    """
    pool = lean_pool_of(view)
    pool.lean = False
    for job in view.steady:
        if job.placement is not None:
            pool.placements[job.id], pool.reasons[job.id] = job.placement, _kept(pool, job, job.placement)
    return pool


def _settle(pool: Pool, job: JobView, taken: dict[str, set[int]]) -> None:
    """What becomes of a job that is blocked, leaving, or waits for what the last plan gave it.

    `taken`: by node, GPUs that are others' as long as this plan can see; those that it gets are added.
    """
    if job.blocked:
        pool.refuse(job, job.blocked)
    elif job.target is not None and _grantable(pool, job, job.target, taken):
        for share in job.target.shares:
            taken.setdefault(share.node, set()).update(share.gpus)
        before = job.placement
        moves = before is not None and not job.target.same_gpus(before)
        pool.give(job, job.target, move_reason(job, job.target) if moves else _kept(pool, job, job.target))
    elif job.placement is not None:
        pool.refuse(job, f"its last processes on {fold_nodes(job.placement.nodes)} are ending; then it is its turn")


def _grantable(pool: Pool, job: JobView, target: Placement, taken: dict[str, set[int]]) -> bool:
    """Whether the job can still be given its last target: in its range, and of GPUs that nobody else goes on using."""
    if not job.nodes <= len(target.shares) <= job.nodes_max:
        return False
    for share in target.shares:
        node = pool.nodes.get(share.node)
        if node is None or not job.gpus_min <= len(share.gpus) <= job.gpus_max:
            return False
        if not taken.get(share.node, set()).isdisjoint(share.gpus) or not set(share.gpus) <= set(node.gpus):
            return False
    return True


def best_on(pool: Pool, job: JobView, names: Iterable[str]) -> int:
    """The number of GPUs per node on which the job is fastest, as the smallest of these nodes allows."""
    return job.best_gpus(min(len(pool.nodes[name].gpus) for name in names))


def _kept(pool: Pool, job: JobView, placement: Placement) -> str:
    """Why the job keeps these GPUs."""
    there = [pool.nodes.get(share.node) for share in placement.shares]
    known = job.memo.get("kept")
    if known is not None and known[0] is placement and known[1] == there and known[2] == pool.view.bare:
        text: str = known[3]
        return text
    text = _kept_why(pool, job, placement)
    job.memo["kept"] = (placement, there, pool.view.bare, text)
    return text


def _kept_why(pool: Pool, job: JobView, placement: Placement) -> str:
    missing = {name for name in placement.nodes if name not in pool.nodes}
    if missing:
        why = "whose GPUs are lost, dirty, excluded or drained" if missing <= pool.view.bare else "whose agent is away"
        return f"keeps its {count(len(placement.gpus), 'GPU')} of {fold_nodes(placement.nodes)}, {why}"
    return role_reason(job, placement, pool, best_on(pool, job, placement.nodes))


def role_reason(job: JobView, placement: Placement, pool: Pool, best: int) -> str:
    """Why these GPUs and this role, in words and numbers."""
    size = min(len(pool.nodes[name].gpus) for name in placement.nodes)
    each = "" if len(placement.shares) == 1 else " each"
    where = f"{placement.per_node} of {count(size, 'GPU')}{each} of {fold_nodes(placement.nodes)}"
    if placement.role is Role.PRIMARY:
        if job.profile is None:
            why = "as many as it takes; it has no profile"
        elif placement.per_node == best:
            why = "its fastest number"
        else:  # another policy gave it these
            why = f"what it has; fastest on {best}"
        return f"primary on {where}: {why}"
    return f"secondary on {where}: what is left; fastest on {best}"


def move_reason(job: JobView, target: Placement) -> str:
    """Why a running job is to be suspended and resumed elsewhere."""
    before = job.placement.per_node if job.placement is not None else 0
    each = "" if len(target.shares) == 1 else " each"
    return (
        f"runs on {count(before, 'GPU')}{each} of {fold_nodes(target.nodes)} as secondary; "
        f"will move to {count(target.per_node, 'GPU')}{each}: its fastest number, and they are free"
    )


def impossible(pool: Pool, job: JobView) -> str:
    """Why the job could not start even if every node of the pool were empty, or ""."""
    known = pool.never.get((job.nodes, job.gpus_min))
    if known is None:
        known = pool.never[job.nodes, job.gpus_min] = _impossible(pool, job)
    return known


def _impossible(pool: Pool, job: JobView) -> str:
    fitting = [node for node in pool.nodes.values() if len(node.gpus) >= job.gpus_min]
    if not pool.nodes:
        return no_nodes(pool.view, job)
    if not fitting:
        return f"needs {gpus_needed(job)}; the largest node has {pool.view.largest_node}"
    if len(fitting) < job.nodes:
        return unmet(pool.view, job, f"{len(fitting)} of {count(len(pool.nodes), 'connected node')} could hold it")
    return ""


def no_nodes(view: View, job: JobView) -> str:
    """Why a job waits where the view has no node."""
    return unmet(view, job, "" if view.bare else "no node is connected")


def unmet(view: View, job: JobView, why: str) -> str:
    """What a job needs, why the nodes of the view do not give it, and which connected nodes are none of them."""
    bare = f"all GPUs of {fold_nodes(sorted(view.bare))} are lost, dirty, excluded or drained" if view.bare else ""
    return "; ".join(filter(None, (f"needs {gpus_needed(job)}", why, bare)))


def waiting(job: JobView, first: JobView | None, free: str) -> str:
    """Why a job waits: what it needs, and what is `free`. `first`: the job that waits before all others, or None."""
    before = 0 if first is None or first.id == job.id else first.id
    known = job.memo.get("waits")
    if known is not None and known[0] == before and known[1] == free:
        text: str = known[2]
        return text
    text = f"needs {gpus_needed(job)}, {free}" + (f"; job {before} is before it" if before else "")
    job.memo["waits"] = (before, free, text)
    return text


def most_free(pool: Pool) -> str:
    """`3 free on n1`, the node with most free GPUs, or `0 of 6 GPUs free`."""
    free = max(map(len, pool.free.values()))
    if not free:
        return f"0 of {count(sum(len(node.gpus) for node in pool.nodes.values()), 'GPU')} free"
    return f"{free} free on {min(name for name, gpus in pool.free.items() if len(gpus) == free)}"


def gpus_needed(job: JobView) -> str:
    """`2 GPUs`, `2 GPUs on each of 3 nodes`: the least that a job takes."""
    gpus = count(job.gpus_min, "GPU")
    return gpus if job.nodes == 1 else f"{gpus} on each of {job.nodes} nodes"
