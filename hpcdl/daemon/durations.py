"""How long something took, each time: counts by bucket, for a histogram of the metrics."""

from bisect import bisect_left
from collections.abc import Iterator

BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Durations:
    """One thread adds, any may read."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        """Once more, and so long."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds

    @property
    def number(self) -> int:
        """How many times."""
        return sum(self._counts)

    def buckets(self) -> Iterator[tuple[float, int]]:
        """Upper bounds in seconds, and how many took at most so long."""
        so_far = 0
        for bound, number in zip(BOUNDS_S, self._counts, strict=False):
            so_far += number
            yield bound, so_far
