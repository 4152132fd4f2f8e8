"""What an objective answers: an option for each candidate. And the exact solve that objectives share."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from hpcdl.adaptive.options import Found, Option
from hpcdl.counts import InfeasibleError, Item, Solution, solve

BUDGET = 2_000_000
"""Additions of the dynamic program over counts, with several pools: some milliseconds."""


@dataclass(frozen=True, slots=True)
class Choice:
    """`options`: by job id, for every candidate; None: it gets nothing. `optimal`, `bound`: of the counts problem.

    `why`: words that an objective adds to the reasons of jobs, by id. `wake_at`: when to be asked again.
    """

    options: Mapping[int, Option | None]
    optimal: bool = False
    bound: float | None = None
    why: Mapping[int, str] = field(default_factory=dict)
    wake_at: float | None = None
    value: float = 0.0


def pick(found: Found, values: Sequence[Sequence[float]], required: Sequence[int] = ()) -> Choice:
    """The options that together are worth most: `values[i][k]` is what option k of candidate i is worth.

    Jobs that cannot be suspended keep what they hold. `required`: ids of jobs that must get something, whatever it is
    worth; where not all of them can, the first ones as far as they can together.
    """
    capacity = list(found.capacity)
    open_to = []
    chosen: dict[int, Option | None] = {}
    for number, candidate in enumerate(found.candidates):
        if candidate.fixed:
            option = candidate.options[0]
            capacity[option.pool] -= min(option.units, capacity[option.pool])
            chosen[candidate.job.id] = option
        else:
            open_to.append(number)
    solution = _solve(found, values, open_to, capacity, required)
    for number, place in zip(open_to, solution.chosen, strict=True):
        candidate = found.candidates[number]
        chosen[candidate.job.id] = None if place is None else candidate.options[place]
    return Choice(chosen, solution.optimal, solution.bound, value=solution.value)


def _solve(
    found: Found,
    values: Sequence[Sequence[float]],
    open_to: Sequence[int],
    capacity: Sequence[int],
    required: Sequence[int],
) -> Solution:
    def attempt(must: Collection[int]) -> Solution:
        items = []
        for number in open_to:
            candidate = found.candidates[number]
            menu = candidate.menu
            items.append(Item(menu.pools, menu.units, values[number], candidate.job.id in must))
        return solve(items, capacity, BUDGET)

    if not required:
        return attempt(())
    low, high = 0, len(required)  # the first `low` can be met together
    best: Solution | None = None
    middle = high
    while low < high or best is None:
        try:
            best, low = attempt(frozenset(required[:middle])), middle
        except InfeasibleError:
            high = middle - 1
        if low >= high and best is not None:
            break
        middle = (low + high + 1) // 2
    return best
