"""What the SideCar paper is measured against: Kubernetes' default scheduler, and termination-based Optimus.

The policies `k8s-default` and `optimus`, as section V-B describes them. Neither may be improved: figures are compared.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from hpcdl.core.model.incarnation import Role
from hpcdl.core.model.plan import JobView, Plan, View
from hpcdl.core.model.units import count
from hpcdl.placement.pool import Pool, impossible, most_free, pool_of, waiting
from hpcdl.sidecar.policy import Addition, add, say_kept, start
from hpcdl.sidecar.predict import PoolForecast, outlook_of


class K8sDefault:
    """Kubernetes' default scheduler, as the paper runs it (section V-B): each job on a random number of GPUs.

    "The number of GPUs allocated to each job is randomly chosen from the optional numbers of GPUs".
    It never changes. Section VI-A: a job that needs many GPUs waits while later, smaller jobs start before it; each job
    goes to the node with the most idle GPUs (Kubernetes spreads), whatever their type.
    """

    name = "k8s-default"

    def __init__(self, draws: Mapping[int, int] | None = None) -> None:
        """`draws`: GPUs per node by job id; where there is none (or none that fits), a hash of the id draws."""
        self._draws = dict(draws or {})

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        pool = pool_of(view)
        for job in pool.queue():
            never = impossible(pool, job)
            if never:
                pool.refuse(job, never)
                continue
            drawn = self._drawn(pool, job)
            fitting = sorted((-len(free), name) for name, free in pool.free.items() if len(free) >= drawn)
            if len(fitting) < job.nodes:
                pool.refuse(job, f"drew {count(drawn, 'GPU')} of its optional numbers, {most_free(pool)}")
                continue
            placement = pool.lowest([name for _, name in fitting[: job.nodes]], drawn, Role.PRIMARY)
            pool.give(job, placement, f"drew {count(drawn, 'GPU')} of its optional numbers; keeps them to its end")
        return pool.plan()

    def _drawn(self, pool: Pool, job: JobView) -> int:
        sizes = sorted((len(node.gpus) for node in pool.nodes.values()), reverse=True)
        options = job.allowed(sizes[job.nodes - 1])
        drawn = self._draws.get(job.id)
        if drawn in options:
            return drawn
        digest = hashlib.blake2b(f"k8s-default {job.id} {job.name}".encode(), digest_size=8).digest()
        return options[int.from_bytes(digest, "big") % len(options)]


class Optimus:
    """Optimus as the paper runs it (section V-B): reshape up only, by terminating and restarting the job.

    An incoming job gets the smallest number of GPUs that it takes, where it then ends first, or waits in order of
    submission. Idle GPUs that nobody waits for are added "one by one" (to the next optional number, on the job's own
    node), each time to the job with the largest marginal gain: the reduction of its remaining time for each GPU added
    (Optimus, section 4.1). As there, what a restart costs does not enter into the gain; the job pays it.
    """

    name = "optimus"

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        outlook = outlook_of(view)
        say_kept(outlook)
        pool = outlook.pool
        first: JobView | None = None
        for job in pool.queue():
            never = impossible(pool, job)
            found = _smallest(outlook, job) if first is None and not never else None
            if never:
                pool.refuse(job, never)
            elif found is None:
                pool.refuse(job, waiting(job, first, most_free(pool)))
                first = first or job
            else:
                ends_s, nodes, gpus = found
                start(outlook, job, nodes, gpus, ends_s)
        while first is None and (addition := _largest_gain(outlook)) is not None:
            add(outlook, addition)
        return replace(pool.plan(), wake_at=outlook.look_again_at(first is not None))


def _largest_gain(outlook: PoolForecast) -> Addition | None:
    """The next number of GPUs for one running job, or None where that makes no job faster."""
    best: Addition | None = None
    most = 0.0
    for held in outlook.changeable():
        limit = held.gpus + len(outlook.pool.free[held.node])
        number = next((number for number in held.job.allowed(limit) if number > held.gpus), None)
        if number is None:
            continue
        left = outlook.steps_left(held.job)
        now_s, then_s = (left / outlook.rate(held.job, [held.node], gpus) for gpus in (held.gpus, number))
        gain = (now_s - then_s) / (number - held.gpus)
        if gain > most:
            ends_s = outlook.reshaped_ends_s(held, held.node, number)
            forecast = outlook.forecast({held.job.id: ends_s}, number - held.gpus)
            best, most = Addition(held, held.node, number, ends_s, forecast), gain
    return best


def _smallest(outlook: PoolForecast, job: JobView) -> tuple[float, tuple[str, ...], int] | None:
    """The end, nodes and number of GPUs of an incoming job on the idle GPUs where it ends first."""
    pool = outlook.pool
    by_kind: dict[str, list[str]] = {}
    for name in sorted(pool.free, key=lambda name: (len(pool.free[name]), name)):
        if job.allowed(len(pool.free[name])):
            by_kind.setdefault(outlook.kinds[name], []).append(name)
    if job.nodes > 1 and len(by_kind) > 1:
        by_kind["any"] = sorted(
            (name for names in by_kind.values() for name in names), key=lambda name: (len(pool.free[name]), name)
        )
    found: list[tuple[float, tuple[str, ...], int]] = []
    for names in by_kind.values():
        if len(names) >= job.nodes:
            nodes = tuple(sorted(names[: job.nodes]))
            gpus = job.allowed(min(len(pool.free[name]) for name in nodes))[0]
            found.append((outlook.start_ends_s(job, nodes, gpus), nodes, gpus))
    return min(found, default=None)
