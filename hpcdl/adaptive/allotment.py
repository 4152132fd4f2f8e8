"""How wide each waiting job is for all of them to end within a time: the canonical allotment of malleable jobs.

For a time T, each job has the option of least GPU time with which it ends within T (Turek, Wolf, Yu: Approximate
algorithms for scheduling parallelizable tasks, SPAA 1992), or, where none is fast enough, its fastest.
"""

from collections.abc import Sequence

import numpy as np

from hpcdl.adaptive.options import Option
from hpcdl.adaptive.rollout import Entrant

_ROUNDING = 1 + 1e-9


class AllotmentTable:
    """The waiting jobs as tables: a row for each, a column for each of its options, infinite where it has fewer.

    seconds: from now to its end. cost: GPU seconds, weighed by what a GPU of that type is worth. area: GPU seconds.
    """

    def __init__(self, entrants: tuple[Entrant, ...]) -> None:
        self.entrants = entrants
        shape = (len(entrants), max((len(entrant.options) for entrant in entrants), default=0))
        self.seconds, self.cost, self.area = (np.full(shape, np.inf) for _ in range(3))
        left = np.array([entrant.left for entrant in entrants])
        price = prices(entrants)
        for options, places in _alike(entrants):
            rows, many = np.array(places), len(options)
            rate = np.array([option.rate for option in options])
            units = np.array([option.units for option in options], dtype=np.float64)
            worth = np.array([price[option.kind] for option in options])
            self.seconds[rows, :many] = np.array([option.stall_s for option in options]) + left[rows, None] / rate
            self.area[rows, :many] = self.seconds[rows, :many] * units
            self.cost[rows, :many] = self.area[rows, :many] * worth

    def limits(self) -> list[float]:
        """Every time limit T (s) at which the option of a job changes, ascending."""
        found: list[float] = np.unique(self.seconds[np.isfinite(self.seconds)]).tolist()
        return found

    def columns(self, limit_s: float) -> list[int]:
        """The canonical allotment for that T (s): of each job, the column of its option."""
        if not self.entrants:
            return []
        late = self.seconds > limit_s * _ROUNDING
        best = np.where(late, np.inf, self.cost)
        places = np.where(late.all(axis=1), self.seconds.argmin(axis=1), best.argmin(axis=1))
        found: list[int] = places.tolist()
        return found

    def wants(self, limit_s: float) -> tuple[Option, ...]:
        """The canonical allotment for that T (s): of each job, its option."""
        return tuple(
            entrant.options[column] for entrant, column in zip(self.entrants, self.columns(limit_s), strict=True)
        )

    def balance_s(self, limits: Sequence[float], held_gpu_s: float, gpus: int) -> float:
        """The smallest T of `limits` (s) within which all GPU time fits, or the last; running jobs need `held_gpu_s` of
        it.

        `limits`: ascending, not empty.
        """
        rows = np.arange(len(self.entrants))
        low, high = 0, len(limits) - 1
        while low < high:
            middle = (low + high) // 2
            if held_gpu_s + self.area[rows, self.columns(limits[middle])].sum() <= gpus * limits[middle]:
                high = middle
            else:
                low = middle + 1
        return limits[low]


def prices(entrants: Sequence[Entrant]) -> dict[str, float]:
    """What a GPU second of each type is worth: the mean, over the jobs, of their speed there over their best speed."""
    sums: dict[str, list[float]] = {}
    for options, places in _alike(entrants):
        speed: dict[str, float] = {}
        for option in options:
            speed[option.kind] = max(speed.get(option.kind, 0.0), option.rate / option.units)
        best = max(speed.values())
        for kind, rate in speed.items():
            sums.setdefault(kind, []).extend([rate / best] * len(places))
    return {kind: sum(shares) / len(shares) for kind, shares in sums.items()}


def _alike(entrants: Sequence[Entrant]) -> list[tuple[tuple[Option, ...], list[int]]]:
    """The places of the jobs that share the same options: of many jobs, most do."""
    found: dict[int, tuple[tuple[Option, ...], list[int]]] = {}
    for place, entrant in enumerate(entrants):
        found.setdefault(id(entrant.options), (entrant.options, []))[1].append(place)
    return list(found.values())
