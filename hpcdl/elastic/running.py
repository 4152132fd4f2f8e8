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


def schedule_running(outlook: Outlook) -> Addition | None:
    """Lines 10 to 20: the addition with the smallest predicted makespan, or None where none makes it smaller.

    The paper begins at MS_min = infinity, so that any addition is better than none. Here it begins at what is
    predicted without one: a job that would lose more time to the reshape than it gains is left alone.
    """
    best: Addition | None = None
    least = outlook.forecast()
    for found in _additions(outlook):
        if (found.forecast.makespan_s, found.forecast.sum_s) < (least.makespan_s, least.sum_s) and (
            best is None or found.forecast < best.forecast
        ):
            best = found
    return best


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
