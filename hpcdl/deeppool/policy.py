"""The policy `deeppool`: foregrounds in order, each by its best plan within the amplification limit; the rest is for
backgrounds (Park et al., MLSys 2022).

Here foregrounds are placed, on GPUs as if no background were there. Who is a background where is decided after that,
for every policy alike, in hpcdl/core/controller/sharing.py; plans are made by planner.py when a job is submitted.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge

from hpcdl.core.controller.sharing import agrees
from hpcdl.core.model.incarnation import Placement, Role, Share
from hpcdl.core.model.plan import ALWAYS, JobView, Plan, View
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.units import count, fold_nodes
from hpcdl.core.model.world import JobState
from hpcdl.placement.connections import closest
from hpcdl.placement.pool import Pool, impossible, lean_pool_of, most_free, waiting
from hpcdl.placement.shapes import packed

AMPLIFICATION = 2.0
"""The limit of a job without plans of its own: it takes at most so many times its GPU-time on one GPU."""

LEAST_GAIN = 1.1
"""A running job gets more GPUs where it is at least so many times as fast there."""

_Sizes = tuple[tuple[str, tuple[tuple[int, int], ...]], ...]
"""By type of GPU: (GPUs of a node, how many nodes have so many), the largest first."""


@dataclass(frozen=True, slots=True)
class GpuOption:
    """`gpus` GPUs of a type on each of `nodes` nodes; `rate`: the job's steps/s there, 0.0 where it is not known."""

    kind: str
    nodes: int
    gpus: int
    rate: float

    def text(self, job: JobView) -> str:
        """What it is, in words and numbers."""
        if job.burst:
            return "the fastest of its burst-parallel plans here"
        if not self.rate or job.profile is None:
            return "the fewest that it takes; how it scales is not known yet"
        times = _amplification(job.profile.on(self.kind), self.nodes, self.gpus)
        return f"{times:.2f} x its GPU-time on one GPU (limit {AMPLIFICATION:g})"


class DeepPool:
    """The policy `deeppool`.

    Foregrounds are served in order, higher priorities first. A burst-parallel job gets the number of GPUs on which its
    plans are fastest: they keep its own limit. Any other gets the fastest number within AMPLIFICATION; where even its
    fewest break that, or nobody knows how it scales, the fewest. Where these are not free it starts on the best that
    is, and grows when that pays. The first that cannot start keeps those after it waiting, and nobody is suspended for
    another foreground. A job that agreed to be a background is only that.

    The paper's coordinator places each job by the one plan that its user made; which of several waits it leaves open.
    """

    name = "deeppool"
    sharing = ALWAYS
    spare_gpus = True

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        pool = lean_pool_of(view)
        sizes = _sizes(view)
        first = None
        for job in merge(view.steady, pool.queue(), key=lambda job: job.order):
            if job.placement is not None:
                _grow(pool, job, sizes)
            elif not agrees(job) and not impossible(pool, job) and not _start(pool, job, sizes):
                first = job
                break

        def waits(job: JobView) -> str:
            if agrees(job):
                return impossible(pool, job) or "no GPU is free, and none can be shared, for it as a background"
            return impossible(pool, job) or waiting(job, first, most_free(pool))

        return pool.lean_plan(waits, kept=_kept)


def _kept(placement: Placement) -> str:
    return f"keeps its {count(len(placement.gpus), 'GPU')} of {fold_nodes(placement.nodes)}"


def _sizes(view: View) -> _Sizes:
    kinds: dict[str, Counter[int]] = {}
    for node in view.nodes:
        kinds.setdefault(node.kind, Counter())[len(node.gpus)] += 1
    return tuple((kind, tuple(sorted(kinds[kind].items(), reverse=True))) for kind in sorted(kinds))


def _start(pool: Pool, job: JobView, sizes: _Sizes) -> bool:
    """Gives the job the best of what is free; False where that is too little."""
    for each in gpu_options(job, sizes):
        placement = packed(pool, each.nodes, each.gpus, each.kind)
        if placement is not None:
            pool.give(job, placement, f"{_where(placement)}: {each.text(job)}")
            return True
    return False


def _grow(pool: Pool, job: JobView, sizes: _Sizes) -> None:
    """Gives a running job more GPUs beside those that it has, where it is faster by more than the change costs."""
    held, profile = job.placement, job.profile
    if held is None or profile is None or agrees(job) or job.state is not JobState.RUNNING:
        return
    if not (job.can_suspend or job.in_place) or any(name not in pool.nodes for name in held.nodes):
        return
    kind = pool.nodes[held.nodes[0]].kind
    rate = profile.on(kind).rate(held.per_node, len(held.shares))
    left = job.remaining(pool.view.now, kind)
    for each in gpu_options(job, sizes):
        if each.rate < LEAST_GAIN * rate:
            return
        if each.kind != kind or (left is not None and _loses(job, each, left, rate)):
            continue
        placement = _larger(pool, job, held, each)
        if placement is not None:
            pool.give(job, placement, f"grows to {_where(placement)}: {each.text(job)}")
            return


def _loses(job: JobView, more: GpuOption, left: float, rate: float) -> bool:
    """Whether the job, with so many steps left, would end later there than at its rate here."""
    return left / more.rate + job.rescale_s(more.nodes, more.gpus) >= left / rate


def _larger(pool: Pool, job: JobView, held: Placement, wanted: GpuOption) -> Placement | None:
    """The GPUs that the job has, and free ones of the same and of other nodes; None where they are too few."""
    in_place = job.rescale != "restart"
    shares = []
    for share in held.shares:
        free, lack = pool.free[share.node], wanted.gpus - len(share.gpus)
        usable = set(share.gpus) <= set(pool.nodes[share.node].gpus)
        if not usable or not 0 <= lack <= len(free) or (in_place and (lack or not job.in_place)):
            return None
        shares.append(Share(share.node, closest(free, lack, pool.distances(share.node), share.gpus)))
    names = sorted(
        (len(free), name)
        for name, free in pool.free.items()
        if len(free) >= wanted.gpus and name not in held.nodes and pool.nodes[name].kind == wanted.kind
    )
    more = wanted.nodes - len(shares)
    if not 0 <= more <= len(names):
        return None
    shares += pool.lowest([name for _, name in names[:more]], wanted.gpus, Role.PRIMARY).shares if more else ()
    return Placement(tuple(sorted(shares, key=lambda share: share.node)))


def _where(placement: Placement) -> str:
    return f"{count(len(placement.gpus), 'GPU')} of {fold_nodes(placement.nodes)}"


def gpu_options(job: JobView, sizes: _Sizes) -> tuple[GpuOption, ...]:
    """What the job may have in a cluster of nodes of these sizes, the fastest first, of equal ones the smallest."""
    known: tuple[_Sizes, tuple[GpuOption, ...]] | None = job.memo.get("gpu_options")
    if known is None or known[0] != sizes:
        known = job.memo["gpu_options"] = (sizes, tuple(sorted(_gpu_options(job, sizes), key=_order)))
    return known[1]


def _order(each: GpuOption) -> tuple[float, int, int, str]:
    return -each.rate, each.nodes * each.gpus, each.nodes, each.kind


def _gpu_options(job: JobView, sizes: _Sizes) -> Iterator[GpuOption]:
    for kind, nodes_of_size in sizes:
        profile = None if job.profile is None else job.profile.on(kind)
        # Past its last point a profile is flat: nothing is faster there.
        most = job.nodes if profile is None else max(job.nodes, min(job.nodes_max, max(profile.points)[0]))
        there, least = 0, None
        for size, many in nodes_of_size:
            for nodes in range(max(job.nodes, there + 1), min(most, there + many) + 1):
                for gpus in job.allowed(size):
                    rate = 0.0 if profile is None else profile.rate(gpus, nodes)
                    each = GpuOption(kind, nodes, gpus, rate)
                    if least is None or nodes * gpus < least.nodes * least.gpus:
                        least = each
                    if profile is not None and (job.burst or _amplification(profile, nodes, gpus) <= AMPLIFICATION):
                        yield each
            there += many
        if least is not None:
            yield least


def _amplification(profile: Profile, nodes: int, gpus: int) -> float:
    """GPU-time of a step over that on one GPU."""
    return nodes * gpus * profile.rate(1) / profile.rate(gpus, nodes)
