"""Algorithm 2: running jobs, with reshape up."""

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
    """Lines 4 to 9 and 12 to 16: on its own node with the GPUs that it has, on another one with idle ones only."""
    free = outlook.pool.free
    for held in outlook.changeable():
        for name in outlook.pool.nodes:
            most = len(free[name]) + (held.gpus if name == held.node else 0)
            if most <= held.gpus:
                continue
            for number in held.job.allowed(most):
                if number <= held.gpus:
                    continue
                ends_s = outlook.reshaped_ends_s(held, name, number)
                yield Addition(held, name, number, ends_s, outlook.forecast({held.job.id: ends_s}, number - held.gpus))
