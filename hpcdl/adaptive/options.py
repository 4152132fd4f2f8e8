"""What each job could have: a number of GPUs of which pool, how fast it would be there, and what going there costs.

A pool is a node where there are few nodes, so that counts alone can be realised; else all nodes of one size and type
of GPU, or all of one type where a job needs more nodes than there are of one size. What follows from a job's profile
and range alone is worked out once for all jobs alike.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hpcdl.adaptive.prior import PriorProfile, believed, remaining, usual
from hpcdl.core.model.incarnation import Placement
from hpcdl.core.model.plan import JobView, NodeView, View
from hpcdl.core.model.profile import MAX_GPUS, Profile
from hpcdl.core.model.world import JobState

Floats = npt.NDArray[np.float64]

_NONE: frozenset[int] = frozenset()

FEW_STATES = 20_000
"""Nodes are pools of their own while all combinations of what is used of each are at most so many."""

LONG = 5.0
"""A speed-up that is only assumed is tried where the job trains on for so many times what the change costs, ..."""

WORTH = 0.05
"""... and more GPUs that make a job no faster than by this are not offered to it, as far as its rates are learnt."""

KEPT = 8
"""Pools of so many sets of nodes are kept: a thousand nodes that come one by one are a thousand sets of up to 1,000."""


@dataclass(frozen=True, slots=True)
class GpuPool:
    """Nodes whose GPUs are alike. `size`: GPUs on each of them; `units`: GPUs that jobs can be given, in all.

    `sizes`: GPUs on each node, the most first, where they differ; `size` is then the most. `holds_mib`: the largest of
    the jobs' needs of memory that its GPUs meet (`NodeView.holds`), 0 where they meet none, or no job has any.
    """

    name: str
    kind: str
    size: int
    nodes: frozenset[str]
    units: int
    sizes: tuple[int, ...] = ()
    holds_mib: int = 0

    def offers(self, nodes: int, gpus: int) -> bool:
        """Whether so many of its nodes have so many GPUs."""
        return gpus <= self.size if not self.sizes else nodes <= len(self.sizes) and gpus <= self.sizes[nodes - 1]


@dataclass(frozen=True, slots=True)
class Option:
    """An allotment that a job could have: `gpus` GPUs on each of `nodes` nodes of a pool.

    `rate`: steps/s. `stall_s`: seconds without progress that going there costs; 0 where it keeps what it holds.
    """

    kind: str
    nodes: int
    gpus: int
    rate: float
    stall_s: float
    pool: int = 0
    moved: bool = False

    @property
    def units(self) -> int:
        """GPUs in all."""
        return self.nodes * self.gpus


@dataclass(frozen=True, slots=True)
class Menu:
    """Options as columns: for each its pool, its GPUs in all, its speed in units of `unit`, and its stall in seconds.

    `unit`: steps/s on one GPU of the best kind there is, which makes the rates of jobs comparable. `least_s`: the
    smallest stall but 0, 0 where there is none. `top`: the highest speed of all; `apiece`: by pool, the most that a GPU
    adds to the speed where the job makes best use of it.
    """

    options: tuple[Option, ...]
    unit: float
    pools: tuple[int, ...]
    units: tuple[int, ...]
    speed: Floats
    stall_s: Floats
    least_s: float
    top: float
    apiece: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job that can be decided about.

    `menu`: what it could have, none twice. `kept`: the option that it has now, or is on its way to; None: it has none.
    `remaining`: steps that it still has to do, None where that is not known. `fixed`: it cannot be suspended, so its
    only option is to keep what it holds. `ready_at`: GPUs are of no use to it before, as it is still being initialised.
    `starts_at`: it holds GPUs and starts up; it trains from then on. `place`: of `kept` among the options, -1 for None.
    """

    job: JobView
    menu: Menu
    kept: Option | None
    remaining: float | None
    fixed: bool = False
    ready_at: float = 0.0
    starts_at: float = 0.0
    place: int = -1

    @property
    def options(self) -> tuple[Option, ...]:
        """What it could have."""
        return self.menu.options

    @property
    def left_s(self) -> float | None:
        """What it still has to do, in seconds on one GPU of the best kind; None where that is not known."""
        return None if self.remaining is None else self.remaining / self.menu.unit


@dataclass(frozen=True, slots=True)
class OptionMenu:
    """All candidates and the pools that their options are of, by number.

    `first`: the ids of those that get GPUs before all others, as overdue ones do.
    """

    pools: tuple[GpuPool, ...]
    candidates: tuple[Candidate, ...]
    first: frozenset[int] = frozenset()

    @property
    def capacity(self) -> tuple[int, ...]:
        """GPUs that can be given, by pool."""
        return tuple(pool.units for pool in self.pools)


def pools_of(view: View) -> tuple[GpuPool, ...]:
    """The pools of a view; GPUs that jobs hold which cannot be decided about are no part of them."""
    lost: dict[str, set[int]] = {}
    for job in view.jobs:
        if job.blocked and job.placement is not None:
            for share in job.placement.shares:
                lost.setdefault(share.node, set()).update(share.gpus)
    alone = all(job.nodes_max == 1 for job in view.jobs)
    wide = 1 if alone else max((job.nodes for job in view.jobs if not job.blocked), default=1)
    needs = tuple(sorted({job.needs_mib for job in view.jobs if job.needs_mib is not None and not job.blocked}))
    return _pools(view.nodes, frozenset((name, frozenset(gpus)) for name, gpus in lost.items()), alone, wide, needs)


@lru_cache(maxsize=KEPT)
def _pools(
    nodes: tuple[NodeView, ...],
    lost: frozenset[tuple[str, frozenset[int]]],
    alone: bool,
    wide: int,
    needs: tuple[int, ...] = (),
) -> tuple[GpuPool, ...]:
    gone = dict(lost)
    holds = {node.name: max((each for each in needs if node.holds(each)), default=0) for node in nodes}
    free = {node.name: sum(gpu not in gone.get(node.name, ()) for gpu in node.gpus) for node in nodes}
    if alone and math.prod(each + 1 for each in free.values()) <= FEW_STATES:
        each = ((node, free[node.name], holds[node.name]) for node in nodes)
        return tuple(GpuPool(node.name, node.kind, n, frozenset([node.name]), n, (), mib) for node, n, mib in each)
    alike: dict[tuple[str, int, int], list[str]] = {}
    for node in nodes:
        alike.setdefault((node.kind, holds[node.name], len(node.gpus)), []).append(node.name)
    found = []
    for group in sorted({(kind, mib) for kind, mib, _ in alike}):
        kind, mib = group
        classes = [(key[2], names) for key, names in sorted(alike.items()) if key[:2] == group]
        most = max(len(names) for _, names in classes)
        sizes: tuple[int, ...] = ()
        if most < wide <= sum(len(names) for _, names in classes):  # else that job would wait for ever
            sizes = tuple(size for size, names in reversed(classes) for _ in names)
            classes = [(sizes[0], [name for _, names in classes for name in names])]
        for size, names in classes:
            units = sum(free[name] for name in names)
            found.append(GpuPool(f"{kind or 'GPUs'} x {size}", kind, size, frozenset(names), units, sizes, mib))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Ground:
    """What the candidates of all jobs are made of. `where`: the number of the pool of each node.

    `kinds`: the types of GPU of the pools. `usual`: for jobs of which nothing was seen; None where there are none.
    """

    pools: tuple[GpuPool, ...]
    where: Mapping[str, int]
    usable: Mapping[str, frozenset[int]]
    kinds: tuple[str, ...]
    usual: PriorProfile | None


@lru_cache(maxsize=KEPT)
def _ground(pools: tuple[GpuPool, ...], nodes: tuple[NodeView, ...], found: PriorProfile | None) -> _Ground:
    where = {name: number for number, pool in enumerate(pools) for name in pool.nodes}
    kinds = tuple(sorted({pool.kind for pool in pools})) or ("",)
    return _Ground(pools, where, {node.name: frozenset(node.gpus) for node in nodes}, kinds, found)


def candidates(view: View) -> OptionMenu:
    """The pools, and the jobs that can be decided about: not blocked, and not on nodes that are away."""
    ground = _ground(pools_of(view), view.nodes, usual(view))
    found = []
    for job in view.jobs:
        if job.blocked:
            continue
        known: _FixedCandidate | None = job.memo.get("candidate")
        if known is None or known.ground is not ground or not known.settled:
            known = job.memo["candidate"] = _known(view.now, job, ground)
        candidate = known.candidate
        if candidate is not None:
            if known.kind is not None:
                left = remaining(job, view.now, known.kind)
                candidate = Candidate(job, candidate.menu, candidate.kept, left, candidate.fixed, place=candidate.place)
            found.append(candidate)
    return OptionMenu(ground.pools, tuple(found))


@dataclass(frozen=True, slots=True)
class _FixedCandidate:
    """A candidate as far as it does not change with time.

    `kind`: where it trains, so that what remains does change; None: it does not. `settled`: nothing else changes.
    """

    ground: _Ground
    candidate: Candidate | None
    kind: str | None
    settled: bool


def _known(now: float, job: JobView, ground: _Ground) -> _FixedCandidate:
    held = job.placement
    fixed = held is not None and not job.leaving and not job.can_suspend
    if held is not None and not job.leaving and any(share.node not in ground.where for share in held.shares):
        return _FixedCandidate(ground, None, None, True)  # its node is away: it keeps what it has there
    profile = believed(job, ground.kinds, ground.usual)
    phase = _phase(now, job, profile, ground.where)
    aim = job.target if held is None or job.leaving else held
    there = held if held is not None else aim
    kind = "" if there is None else _kind(ground, there)
    left = remaining(job, now, kind)
    long = True
    if fixed and held is not None:
        number = ground.where[held.shares[0].node]
        kind, gpus, nodes = ground.pools[number].kind, held.per_node, len(held.shares)
        option = Option(kind, nodes, gpus, rate_of(profile, kind, gpus, nodes), 0.0, number)
        menu = _alone(option, _unit(profile, ground.pools), len(ground.pools))
        kept: Option | None = menu.options[0]
    else:
        long = profile.measured is None or not phase.holds or _is_long(job, profile, phase, left, kind, now)
        needs = 0 if job.needs_mib is None else job.needs_mib
        menu = _menu(profile, job.allowed(MAX_GPUS), job.nodes, job.nodes_max, ground.pools, phase, long, needs)
        kept = _kept(menu, aim, ground)
    steps = job.step_at is not None and job.profile is not None
    trains = left is not None and (steps or (job.profile is None and job.total is None and held is not None))
    gates = not phase.begun and phase.ahead_s < profile.gate_s
    ready_at = job.submitted_at + job.profile.gate_s if gates and job.profile is not None else 0.0
    place = -1 if kept is None else menu.options.index(kept)
    candidate = Candidate(job, menu, kept, left, fixed, ready_at, _starts_at(job, phase), place)
    return _FixedCandidate(ground, candidate, kind if trains else None, long and not gates)


def _kept(menu: Menu, aim: Placement | None, ground: _Ground) -> Option | None:
    """The option that the job has or is on its way to, if that can be had on."""
    if aim is None or any(not ground.usable.get(share.node, _NONE).issuperset(share.gpus) for share in aim.shares):
        return None
    pool, gpus, nodes = ground.where.get(aim.shares[0].node, -1), aim.per_node, len(aim.shares)
    return next((each for each in menu.options if (each.pool, each.gpus, each.nodes) == (pool, gpus, nodes)), None)


def _kind(ground: _Ground, placement: Placement) -> str:
    pool = ground.where.get(placement.shares[0].node)
    return "" if pool is None else ground.pools[pool].kind


@dataclass(frozen=True, slots=True)
class _Phase:
    """Where a job stands, as far as it decides what a change costs.

    `pool`, `gpus`, `nodes`: what it holds or held last, -1 and 0 where it has nothing. `trains`: it must be suspended
    first. `begun`: it has trained before. `ahead_s`: what of a first start was done without GPUs.
    """

    pool: int = -1
    gpus: int = 0
    nodes: int = 0
    holds: bool = False
    trains: bool = False
    begun: bool = False
    ahead_s: float = 0.0


def _phase(now: float, job: JobView, profile: Profile, where: Mapping[str, int]) -> _Phase:
    begun = job.step > 0 or job.step_at is not None or job.state is JobState.SUSPENDED
    ahead = 0.0
    if not begun and profile.gate_s:
        ahead = min(profile.gate_s, max(0.0, now - job.submitted_at))
    holds = job.placement is not None and not job.leaving
    at = job.placement or (job.last if begun else None)
    if at is None:
        return _Phase(begun=begun, ahead_s=ahead)
    pool = where.get(at.shares[0].node, -1)
    return _Phase(pool, at.per_node, len(at.shares), holds, holds and begun, begun, ahead)


def _is_long(job: JobView, profile: Profile, phase: _Phase, left: float | None, kind: str, now: float) -> bool:
    """Whether a job that holds GPUs trains on for LONG times what a change of their number costs it.

    Of one of unknown length: as long as it has held them.
    """
    gpus = phase.gpus * phase.nodes
    if left is None or (job.profile is None and (job.usual is None or job.usual.length_s is None)):
        left_s = job.attained_gpu_s(now) / gpus
    else:
        left_s = left / rate_of(profile, kind, phase.gpus, phase.nodes)
    return left_s >= LONG * _stall_s(profile, phase, gpus + 1, moved=False)


def _starts_at(job: JobView, phase: _Phase) -> float:
    """When a job that holds GPUs and starts up will train; 0 where it does, or holds none."""
    held, profile = job.placement, job.profile
    if held is None or profile is None or job.leaving or job.step_at is not None or job.held_since is None:
        return 0.0
    if phase.begun:
        before = held if job.last is None else job.last
        moved = before.nodes != held.nodes
        return job.held_since + profile.resume_for(len(before.gpus), len(held.gpus), moved)
    ahead_s = min(profile.gate_s, max(0.0, job.held_since - job.submitted_at))
    return job.held_since + profile.startup_s - ahead_s


@lru_cache(maxsize=4096)
def _menu(
    profile: Profile,
    allowed: tuple[int, ...],
    nodes: int,
    nodes_max: int,
    pools: tuple[GpuPool, ...],
    phase: _Phase,
    long: bool = True,
    needs_mib: int = 0,
) -> Menu:
    found = []
    for number, pool in enumerate(pools):
        if pool.holds_mib < needs_mib:
            continue
        for many in range(nodes, min(nodes_max, len(pool.nodes)) + 1):
            for gpus in _sizes(allowed, pool, many, phase.gpus if phase.pool == number else 0):
                if gpus * many > pool.units or not pool.offers(many, gpus):
                    break
                moved = phase.pool not in (-1, number)
                stall = 0.0
                if not (phase.holds and (phase.pool, phase.gpus, phase.nodes) == (number, gpus, many)):
                    stall = _stall_s(profile, phase, gpus * many, moved)
                found.append(
                    Option(pool.kind, many, gpus, rate_of(profile, pool.kind, gpus, many), stall, number, moved)
                )
    if profile.measured is not None:
        found = _worthwhile(found, profile.measured, phase, long)
    return _columns(tuple(found), _unit(profile, pools), len(pools))


def _worthwhile(
    found: list[Option], measured: tuple[tuple[str, int, int], ...], phase: _Phase, long: bool
) -> list[Option]:
    """The options of a job whose rates are learnt, without those that would waste GPUs.

    These are more GPUs that make it no faster than fewer do; and, of a job that is not `long`, more than it holds where
    nobody has measured how fast it is. One that is not long keeps what it holds, and so does one that was not measured
    there yet.
    """
    slow, fastest, before = set(), dict[str, float](), dict[str, float]()
    units = 0
    for each in sorted(found, key=lambda option: option.units):
        if each.units > units:
            units, before = each.units, dict(fastest)
        if each.rate < (1 + WORTH) * before.get(each.kind, 0.0):
            slow.add(each)
        fastest[each.kind] = max(each.rate, fastest.get(each.kind, 0.0))
    held = (phase.pool, phase.gpus, phase.nodes) if phase.holds else None

    def offered(each: Option) -> bool:
        tried = (each.kind, each.nodes, each.gpus) in measured
        if (each.pool, each.gpus, each.nodes) == held:
            return each not in slow or not long or not tried
        return each not in slow and (long or tried or each.units <= phase.gpus * phase.nodes)

    return [each for each in found if offered(each)]


def _sizes(allowed: tuple[int, ...], pool: GpuPool, nodes: int, held: int) -> tuple[int, ...]:
    """The numbers of GPUs per node that are offered to a job on so many nodes.

    Where it has only some of a pool's nodes, only such as pack without loss: powers of two, whole nodes, the job's
    minimum, and what it has.
    """
    fitting = tuple(gpus for gpus in allowed if gpus <= pool.size)
    if len(pool.nodes) == nodes:
        return fitting
    return tuple(gpus for gpus in fitting if gpus & (gpus - 1) == 0 or gpus in (fitting[0], pool.size, held))


@lru_cache(maxsize=4096)
def _alone(option: Option, unit: float, pools: int) -> Menu:
    """The menu of a job that keeps what it holds; many do while they are exempt from preemption."""
    return _columns((option,), unit, pools)


def _columns(options: tuple[Option, ...], unit: float, pools: int) -> Menu:
    speed = np.array([option.rate for option in options]) / unit
    apiece = [0.0] * pools
    for option, each in zip(options, speed.tolist(), strict=True):
        apiece[option.pool] = max(apiece[option.pool], each / option.units)
    return Menu(
        options=options,
        unit=unit,
        pools=tuple(option.pool for option in options),
        units=tuple(option.units for option in options),
        speed=speed,
        stall_s=np.array([option.stall_s for option in options]),
        least_s=min((option.stall_s for option in options if option.stall_s), default=0.0),
        top=max(speed.tolist(), default=1.0),
        apiece=tuple(apiece),
    )


def only(each: Candidate, options: tuple[Option, ...]) -> Candidate:
    """The candidate with these of its options alone."""
    menu = _columns(options, each.menu.unit, len(each.menu.apiece))
    kept = each.kept if each.kept in options else None
    return replace(each, menu=menu, kept=kept, place=-1 if kept is None else options.index(kept))


def rate_of(profile: Profile, kind: str, gpus: int, nodes: int) -> float:
    """Steps/s by the profile on so many GPUs of that type on each of so many nodes."""
    return profile.on(kind).rate(gpus, nodes)


def _stall_s(profile: Profile, phase: _Phase, gpus: int, moved: bool) -> float:
    if not phase.begun:
        return profile.startup_s - phase.ahead_s
    before = phase.gpus * phase.nodes or gpus
    return profile.restart_s(before, gpus, moved, phase.trains)


@lru_cache(maxsize=4096)
def _unit(profile: Profile, pools: tuple[GpuPool, ...]) -> float:
    """Steps/s on one GPU of the best kind."""
    return max((profile.on(kind).rate(1) for kind in {pool.kind for pool in pools}), default=profile.rate(1))
