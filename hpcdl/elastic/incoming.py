"""Algorithm 1: an incoming job, with reshape down."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from hpcdl.core.plan import JobView
from hpcdl.elastic import predict
from hpcdl.elastic.outlook import Forecast, Held, Outlook


@dataclass(frozen=True, slots=True)
class Scheme:
    """The triple T of line 13: GPUs per node for the incoming job, the running job that gives some, how many it gives.

    nodes: where, as the cluster of the paper has one kind of GPU a server and a job stays within its nodes.
    ends_s: when the incoming job ends, seconds from now. giver_ends_s: when the giver does.
    """

    nodes: tuple[str, ...]
    gpus: int
    ends_s: float
    forecast: Forecast
    giver: Held | None = None
    removed: int = 0
    giver_ends_s: float = 0.0


def schedule_incoming(outlook: Outlook, job: JobView) -> Scheme | None:
    """Lines 12 to 31: the scheme with the smallest predicted makespan, or None where no optional number fits.

    Lines 13, 18, 28: MS_min begins at infinity, so a job that can start does, whatever that costs the others.
    """
    return min(_schemes(outlook, job), key=lambda scheme: scheme.forecast, default=None)


def _schemes(outlook: Outlook, job: JobView) -> Iterator[Scheme]:
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


def _removable(outlook: Outlook) -> dict[tuple[str, int], list[Held]]:
    """Lines 5 to 11, the hash table: by node and N_remove the running jobs that could give so many."""
    table: dict[tuple[str, int], list[Held]] = defaultdict(list)
    for held in outlook.changeable():
        for remaining in held.job.allowed(held.gpus - 1):
            table[held.node, held.gpus - remaining].append(held)
    return table


def _with_removal(outlook: Outlook, job: JobView, number: int, giver: Held) -> Scheme:
    """Lines 25 to 27: the giver trains on until the incoming job is initialised, then both start."""
    removed = number - len(outlook.pool.free[giver.node])
    wait_s = predict.initialisation_left_s(job, outlook.now)
    giver_ends_s = outlook.reshaped_ends_s(giver, giver.node, giver.gpus - removed, wait_s)
    save_s = 0.0 if giver.job.profile is None else giver.job.profile.save_s
    ends_s = outlook.start_ends_s(job, (giver.node,), number, save_s)
    forecast = outlook.forecast({job.id: ends_s, giver.job.id: giver_ends_s}, number - removed)
    return Scheme((giver.node,), number, ends_s, forecast, giver, removed, giver_ends_s)
