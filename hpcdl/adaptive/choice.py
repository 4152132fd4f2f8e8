"""What an objective answers, an option for each candidate; and the exact solve that the objectives share.

An objective says what each option is worth; `pick` hands that to hpcdl/solver and never decides anything itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpcdl.adaptive.options import Option, OptionMenu
from hpcdl.solver import InfeasibleError, Item, Solution, solve

BUDGET = 2_000_000
"""Additions of the dynamic program over counts, with several pools: some milliseconds."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What an objective decides: an option for each candidate.

    `options`: by job id; None: it gets nothing. `optimal`, `bound`: of the counts problem.

    `why`: words that an objective adds to the reasons of jobs, by id. `wake_at`: when to decide again. `value`: the
    sum. `first`: ids of jobs that get GPUs before all others, in this order, whoever must go for that.
    """

    options: Mapping[int, Option | None]
    optimal: bool = False
    bound: float | None = None
    why: Mapping[int, str] = field(default_factory=dict)
    wake_at: float | None = None
    first: tuple[int, ...] = ()
    value: float = 0.0


def pick(found: OptionMenu, values: Sequence[Sequence[float]], required: Sequence[int] = ()) -> Choice:
    """The options that together are worth most: `values[i][k]` is what option k of candidate i is worth.

    Jobs that cannot be suspended keep what they hold. `required`: ids of jobs that must get something, whatever it is
    worth; where not all of them can, the first ones as far as they can together, and nobody else starts on the node
    that the next one waits for.
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
    required = [number for number in required if number not in chosen]  # what keeps what it holds has something
    solution, met = _solve(found, values, open_to, capacity, required)
    if met < len(required):
        spared = _spared(found, values, capacity, required[met])
        if spared is not None:
            solution, _ = _solve(found, spared, open_to, capacity, required[:met])
    for number, place in zip(open_to, solution.chosen, strict=True):
        candidate = found.candidates[number]
        chosen[candidate.job.id] = None if place is None else candidate.options[place]
    return Choice(chosen, solution.optimal, solution.bound, first=tuple(required[:met]), value=solution.value)


def _solve(
    found: OptionMenu,
    values: Sequence[Sequence[float]],
    open_to: Sequence[int],
    capacity: Sequence[int],
    required: Sequence[int],
) -> tuple[Solution, int]:
    """The best choice with as many of the first required jobs as can be met together, and how many those are."""

    def attempt(many: int) -> Solution:
        must = frozenset(required[:many])
        items = []
        for number in open_to:
            candidate = found.candidates[number]
            menu, held = candidate.menu, None if candidate.kept is None else candidate.place
            items.append(Item(menu.pools, menu.units, values[number], candidate.job.id in must, held))
        return solve(items, capacity, BUDGET)

    try:
        return attempt(len(required)), len(required)
    except InfeasibleError:
        pass
    low, high, best = 0, len(required), attempt(0)  # the first `low` can be met together, the first `high` cannot
    while high - low > 1:
        middle = (low + high) // 2
        try:
            best, low = attempt(middle), middle
        except InfeasibleError:
            high = middle
    return best, low


def _spared(
    found: OptionMenu, values: Sequence[Sequence[float]], capacity: Sequence[int], job: int
) -> Sequence[Sequence[float]] | None:
    """The values without starts on the node that is to become free for a job; None where no single node is."""
    waits = next(each for each in found.candidates if each.job.id == job)
    alone = {option.pool for option in waits.options if len(found.pools[option.pool].nodes) == 1}
    if not alone:
        return None
    pool = max(alone, key=lambda number: (capacity[number], -number))
    return [
        values[at]
        if each.kept is not None or each.fixed
        else [0.0 if option.pool == pool else worth for option, worth in zip(each.options, values[at], strict=True)]
        for at, each in enumerate(found.candidates)
    ]
