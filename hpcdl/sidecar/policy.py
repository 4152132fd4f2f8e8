"""The SideCar paper's adaptive GPU scheduler: Algorithm 1 for incoming jobs, then Algorithm 2 for running ones."""

from dataclasses import replace

from hpcdl.core.model import Placement, Role, Share
from hpcdl.core.plan import JobView, Plan, View
from hpcdl.core.units import count, fold_nodes, seconds_text
from hpcdl.elastic import predict
from hpcdl.elastic.incoming import Scheme, schedule_incoming
from hpcdl.elastic.outlook import Outlook, outlook_of
from hpcdl.elastic.running import Addition, schedule_running
from hpcdl.placing.pool import impossible, most_free, waiting


class Elastic:
    """Algorithms 1 and 2 at every decision.

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

    def __init__(self, at_any_cost: bool = False) -> None:
        """`at_any_cost`: line 11 of Algorithm 2 to the letter, see `schedule_running`."""
        self._at_any_cost = at_any_cost

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        outlook = outlook_of(view)
        say_kept(outlook)
        wake: list[float | None] = []
        warm: list[int] = []
        first: JobView | None = None
        pool = outlook.pool
        for job in pool.queue():
            never = impossible(pool, job)
            scheme = schedule_incoming(outlook, job) if first is None and not never else None
            if never:
                pool.refuse(job, never)
            elif scheme is None:
                pool.refuse(job, waiting(job, first, most_free(pool)))
                first = first or job
            else:
                _apply(outlook, job, scheme, wake, warm)
        if first is None:
            _add_to_running(outlook, self._at_any_cost)
        wake.append(outlook.look_again_at(first is not None))
        return replace(pool.plan(tuple(warm)), wake_at=min((at for at in wake if at is not None), default=None))


def _apply(outlook: Outlook, job: JobView, scheme: Scheme, wake: list[float | None], warm: list[int]) -> None:
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
            Placement((Share(node, tuple(freed[: scheme.gpus])),), Role.PRIMARY),
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


def start(outlook: Outlook, job: JobView, nodes: tuple[str, ...], gpus: int, ends_s: float) -> None:
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


def say_kept(outlook: Outlook) -> None:
    """The reasons of jobs that keep what they have, with their predicted ends."""
    for number, held in outlook.held.items():
        if set(held.placement.nodes) <= outlook.pool.nodes.keys():
            each = "" if len(held.placement.shares) == 1 else " each"
            outlook.pool.reasons[number] = (
                f"{count(held.gpus, 'GPU')}{each} of {fold_nodes(held.placement.nodes)}: ends in "
                f"{seconds_text(held.ends_s)}, the last of all jobs in {seconds_text(outlook.forecast().makespan_s)}"
            )


def _add_to_running(outlook: Outlook, at_any_cost: bool) -> None:
    """Algorithm 2 until it finds nothing; a job is reshaped once in a decision."""
    while any(outlook.pool.free.values()):
        found = schedule_running(outlook, at_any_cost)
        if found is None:
            return
        add(outlook, found)


def add(outlook: Outlook, found: Addition) -> None:
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
