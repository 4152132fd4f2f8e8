"""Algorithm 2: running jobs, with reshape up."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from hpcdl.elastic.outlook import Forecast, Held, Outlook


@dataclass(frozen=True, slots=True)
class Addition:
    """The tuple T of line 11: the running job, and how many GPUs it is to have where. `ends_s`: when it then ends."""

    held: Held
    node: str
    gpus: int
    ends_s: float
    forecast: Forecast


def schedule_running(outlook: Outlook, at_any_cost: bool = False) -> Addition | None:
    """Lines 10 to 20: the addition with the smallest predicted makespan, or None.

    Line 11 begins at MS_min = infinity, so that any addition is better than none: that is `at_any_cost`. Else it begins
    at what is predicted without an addition: a job that would lose more by the reshape than it gains is left alone.
    """
    least = outlook.forecast()
    found = (
        each
        for each in _additions(outlook)
        if at_any_cost or (each.forecast.makespan_s, each.forecast.sum_s) < (least.makespan_s, least.sum_s)
    )
    return min(found, key=lambda each: each.forecast, default=None)


def _additions(outlook: Outlook) -> Iterator[Addition]:
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
