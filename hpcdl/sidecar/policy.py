"""The policy `elastic`: the SideCar paper's Algorithm 1 for incoming jobs, then Algorithm 2 for running ones.

Both try every change that the paper allows and take the one with the smallest predicted makespan; predict.py predicts.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hpcdl.core.model.incarnation import Placement, Role, Share
from hpcdl.core.model.plan import JobView, Plan, View
from hpcdl.core.model.units import count, fold_nodes, seconds_text
from hpcdl.placement.connections import closest
from hpcdl.placement.pool import impossible, most_free, waiting
from hpcdl.sidecar import predict
from hpcdl.sidecar.predict import MakespanForecast, PoolForecast, RunningJob, outlook_of


@dataclass(frozen=True, slots=True)
class Scheme:
    """The triple T of Algorithm 1, line 13: what an incoming job would get, and what a running job would give for it.

    gpus: per node, for the incoming job. giver, removed: the running job, and how many GPUs it gives. nodes: where, as
    the cluster of the paper has one kind of GPU a server and a job stays within its nodes. ends_s: when the incoming
    job ends, seconds from now. giver_ends_s: when the giver does.
    """

    nodes: tuple[str, ...]
    gpus: int
    ends_s: float
    forecast: MakespanForecast
    giver: RunningJob | None = None
    removed: int = 0
    giver_ends_s: float = 0.0


def schedule_incoming(outlook: PoolForecast, job: JobView) -> Scheme | None:
    """Algorithm 1, reshape down for an incoming job: the scheme with the smallest predicted makespan.

    Lines 12 to 31; None where no optional number fits. Lines 13, 18, 28: MS_min begins at infinity, so a job that can
    start does, whatever that costs the others.
    """
    return min(schemes(outlook, job), key=lambda scheme: scheme.forecast, default=None)


def schemes(outlook: PoolForecast, job: JobView) -> Iterator[Scheme]:
    """Lines 14 to 30: every scheme that fits, those with the fewest GPUs first, then as the givers were submitted."""
    free = outlook.pool.free
    removable = _removable(outlook) if job.nodes == 1 else {}
    options: dict[str, tuple[int, ...]] = {
        name: job.allowed(len(node.gpus)) for name, node in outlook.pool.nodes.items()
    }
    for number in sorted({number for numbers in options.values() for number in numbers}):  # line 14: N_opt
        idle: dict[str, list[str]] = defaultdict(list)
        for name, numbers in options.items():
            if number not in numbers:
                continue
            if len(free[name]) >= number:  # line 15
                idle[outlook.kinds[name]].append(name)
            else:  # lines 21 to 30
                for giver in removable.get((name, number - len(free[name])), ()):
                    yield _with_removal(outlook, job, number, giver)
        if job.nodes > 1 and len(idle) > 1:
            idle["any"] = [name for names in idle.values() for name in names]
        for names in idle.values():
            if len(names) >= job.nodes:  # lines 16 to 20; the nodes with the fewest idle GPUs that are enough
                names.sort(key=lambda name: (len(free[name]), name))
                nodes = tuple(sorted(names[: job.nodes]))
                ends_s = outlook.start_ends_s(job, nodes, number)
                yield Scheme(nodes, number, ends_s, outlook.forecast({job.id: ends_s}, number * job.nodes))


def _removable(outlook: PoolForecast) -> dict[tuple[str, int], list[RunningJob]]:
    """Lines 5 to 11, the hash table: by node and N_remove the running jobs that could give so many."""
    table: dict[tuple[str, int], list[RunningJob]] = defaultdict(list)
    for held in outlook.changeable():
        for remaining in held.job.allowed(held.gpus - 1):
            table[held.node, held.gpus - remaining].append(held)
    return table


def _with_removal(outlook: PoolForecast, job: JobView, number: int, giver: RunningJob) -> Scheme:
    """Lines 25 to 27: the giver trains on until the incoming job is initialised, then both start."""
    removed = number - len(outlook.pool.free[giver.node])
    wait_s = predict.initialisation_left_s(job, outlook.now)
    giver_ends_s = outlook.reshaped_ends_s(giver, giver.node, giver.gpus - removed, wait_s)
    save_s = 0.0 if giver.job.profile is None else giver.job.profile.save_s
    ends_s = outlook.start_ends_s(job, (giver.node,), number, save_s)
    forecast = outlook.forecast({job.id: ends_s, giver.job.id: giver_ends_s}, number - removed)
    return Scheme((giver.node,), number, ends_s, forecast, giver, removed, giver_ends_s)


@dataclass(frozen=True, slots=True)
class Addition:
    """The tuple T of Algorithm 2, line 11: a running job, and how many GPUs it would have where.

    ends_s: when it then ends, seconds from now.
    """

    held: RunningJob
    node: str
    gpus: int
    ends_s: float
    forecast: MakespanForecast


def schedule_running(outlook: PoolForecast) -> Addition | None:
    """Algorithm 2, reshape up of a running job: the addition with the smallest predicted makespan, or None.

    Lines 10 to 20. Line 11 begins at MS_min = infinity, so that any addition is better than none (`letter.py` does).
    Here it begins at what is predicted without an addition: a job that would lose more by the reshape than it gains is
    left alone.
    """
    least = outlook.forecast()
    found = (
        each
        for each in additions(outlook)
        if (each.forecast.makespan_s, each.forecast.sum_s) < (least.makespan_s, least.sum_s)
    )
    return min(found, key=lambda each: each.forecast, default=None)


def additions(outlook: PoolForecast) -> Iterator[Addition]:
    """Lines 4 to 9 and 12 to 16: on its own node with the GPUs that it has, on another one with idle ones only.

    Of other nodes with enough idle GPUs of a type, the one with the fewest: the paper's cluster has one a type.
    """
    free = outlook.pool.free
    fitting: dict[int, list[list[str]]] = {}

    def others(number: int) -> list[list[str]]:
        """By type, two nodes with so many idle GPUs, those with the fewest: one of them is another than a job's own."""
        if number not in fitting:
            kinds: dict[str, list[str]] = {}
            for name in nodes[bisect_left(sizes, number) :]:
                of_kind = kinds.setdefault(outlook.kinds[name], [])
                if len(of_kind) < 2:
                    of_kind.append(name)
            fitting[number] = list(kinds.values())
        return fitting[number]

    nodes = sorted(free, key=lambda name: (len(free[name]), name))
    sizes = [len(free[name]) for name in nodes]
    for held in outlook.changeable():
        own = held.gpus + len(free[held.node])
        for number in held.job.allowed(max(own, sizes[-1])):
            if number <= held.gpus:
                continue
            places = [held.node] if number <= own else []
            for names in others(number):
                places += [name for name in names if name != held.node][:1]
            for place in places:
                ends_s = outlook.reshaped_ends_s(held, place, number)
                forecast = outlook.forecast({held.job.id: ends_s}, number - held.gpus)
                yield Addition(held, place, number, ends_s, forecast)


class SideCar:
    """The policy `elastic`: Algorithms 1 and 2 at every decision.

    Jobs without GPUs come first, in the order of submission: each gets what Algorithm 1 finds, idle GPUs or those that
    a running job gives. Early initialisation (section III-A): a job that takes GPUs from another one is started ahead
    (`Plan.warm`) and waits for them at the gate while that one trains on. They change hands when it is initialised: it
    is at the gate, or `gate_s` of its profile are over. Idle GPUs that it will have are kept for it (`reserved` in
    table II). Until then the scheme is found anew at each decision, from the same state and more recent progress.

    "When there are idle GPUs but no incoming jobs", Algorithm 2 adds them, one job at a time until nothing makes the
    makespan smaller.

    Where the paper is silent: a job for which no optional number fits makes later ones wait; a job with nodes=N > 1
    starts on idle GPUs only, and neither gives nor gets any later.
    """

    name = "elastic"
    end_terms = False
    incoming = staticmethod(schedule_incoming)
    running = staticmethod(schedule_running)

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        outlook = outlook_of(view, self.end_terms)
        say_kept(outlook)
        wake: list[float | None] = []
        warm: list[int] = []
        first: JobView | None = None
        pool = outlook.pool
        for job in pool.queue():
            never = impossible(pool, job)
            scheme = self.incoming(outlook, job) if first is None and not never else None
            if never:
                pool.refuse(job, never)
            elif scheme is None:
                pool.refuse(job, waiting(job, first, most_free(pool)))
                first = first or job
            else:
                _apply(outlook, job, scheme, wake, warm)
        if first is None:
            self._add_to_running(outlook)
        wake.append(outlook.look_again_at(first is not None))
        return replace(pool.plan(tuple(warm)), wake_at=min((at for at in wake if at is not None), default=None))

    def _add_to_running(self, outlook: PoolForecast) -> None:
        """Algorithm 2 until it finds nothing; a job is reshaped once in a decision."""
        while any(outlook.pool.free.values()) and (found := self.running(outlook)) is not None:
            add(outlook, found)


def _apply(outlook: PoolForecast, job: JobView, scheme: Scheme, wake: list[float | None], warm: list[int]) -> None:
    pool = outlook.pool
    giver = scheme.giver
    if giver is None:
        start(outlook, job, scheme.nodes, scheme.gpus, scheme.ends_s)
        return
    left_s = predict.initialisation_left_s(job, outlook.now)
    node, own = giver.node, giver.placement.shares[0].gpus
    smaller = outlook.fewer(giver, giver.gpus - scheme.removed)
    freed = sorted({*pool.free[node], *own} - set(smaller.shares[0].gpus))
    what = f"{count(scheme.removed, 'GPU')} of {node} for job {job.id}"
    warm.append(job.id)
    if left_s > 0:
        wake.append(outlook.now + left_s)
        pool.reasons[giver.job.id] = (
            f"trains on {count(giver.gpus, 'GPU')} of {node}; gives {what} in {seconds_text(left_s)}, when that is "
            "initialised"
        )
        pool.give(
            job,
            Placement((Share(node, closest(freed, scheme.gpus, pool.distances(node))),), Role.PRIMARY),
            f"is initialised ahead, {seconds_text(left_s)} to go; then gets {count(scheme.gpus, 'GPU')} of {node}, "
            f"{scheme.removed} of them from job {giver.job.id}",
        )
        outlook.promised[job.id] = scheme.ends_s
        outlook.put(giver.job, giver.placement, scheme.giver_ends_s)
        return
    pool.give(
        giver.job,
        smaller,
        f"gives {what} and keeps {giver.gpus - scheme.removed}: ends in {seconds_text(scheme.giver_ends_s)} instead of "
        f"{seconds_text(giver.ends_s)}, the last of all jobs in {seconds_text(scheme.forecast.makespan_s)}",
    )
    pool.free[node] = freed
    outlook.put(giver.job, smaller, scheme.giver_ends_s)
    start(outlook, job, scheme.nodes, scheme.gpus, scheme.ends_s)


def start(outlook: PoolForecast, job: JobView, nodes: tuple[str, ...], gpus: int, ends_s: float) -> None:
    """Gives an incoming job the lowest free GPUs of these nodes."""
    placement = outlook.pool.lowest(nodes, gpus, Role.PRIMARY)
    outlook.put(job, placement, ends_s)
    each = "" if len(nodes) == 1 else " each"
    outlook.pool.give(
        job,
        placement,
        f"starts on {count(gpus, 'GPU')}{each} of {fold_nodes(nodes)}: ends in {seconds_text(ends_s)}, "
        f"the last of all jobs in {seconds_text(outlook.forecast().makespan_s)}",
    )


def say_kept(outlook: PoolForecast) -> None:
    """The reasons of jobs that keep what they have, with their predicted ends."""
    for number, held in outlook.held.items():
        if set(held.placement.nodes) <= outlook.pool.nodes.keys():
            each = "" if len(held.placement.shares) == 1 else " each"
            outlook.pool.reasons[number] = (
                f"{count(held.gpus, 'GPU')}{each} of {fold_nodes(held.placement.nodes)}: ends in "
                f"{seconds_text(held.ends_s)}, the last of all jobs in {seconds_text(outlook.forecast().makespan_s)}"
            )


def add(outlook: PoolForecast, found: Addition) -> None:
    """Gives a running job more GPUs."""
    pool, held = outlook.pool, found.held
    before = outlook.forecast()
    placement = outlook.other(held, found.node, found.gpus)
    moved = found.node != held.node
    pool.give(
        held.job,
        placement,
        f"{'moves from' if moved else 'goes from'} {count(held.gpus, 'GPU')} of {held.node} to {found.gpus}"
        f"{' of ' + found.node if moved else ''}: ends in {seconds_text(found.ends_s)} instead of "
        f"{seconds_text(held.ends_s)}, the last of all jobs in {seconds_text(found.forecast.makespan_s)}"
        f"{'' if found.forecast.makespan_s < before.makespan_s else ' as before'}",
    )
    outlook.put(held.job, placement, found.ends_s)
