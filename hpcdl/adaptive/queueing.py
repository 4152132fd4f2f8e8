"""When a job that waits would start and be done, by one plain rule: who has GPUs keeps them to its end.

Whenever some are free, those who wait start in one order, each on the fewest GPUs that it takes; whom nothing fits is
passed over. By counts, from one end to the next, in a few milliseconds for thousands of jobs: what policies really do
is more, and differs; eta.py has the doubts.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hpcdl.adaptive.options import Candidate, Found, Menu

LOOK = 50
"""When so many who wait did not fit, later ones are not looked at until the next end."""

Order = Callable[[Candidate], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Course:
    """Seconds from now until a job first has GPUs, and until it is done."""

    waits_s: float
    ends_s: float


def shortest_first(each: Candidate) -> tuple[float, ...]:
    """As policies do that want short completion times; of a higher priority first."""
    left_s = each.left_s
    return (-each.job.priority, float("inf") if left_s is None else left_s, each.job.id)


def in_turn(each: Candidate) -> tuple[float, ...]:
    """As they were submitted; of a higher priority first."""
    return (-each.job.priority, each.job.id)


def stays_s(each: Candidate, now: float, usual_s: float) -> float:
    """Seconds to its end on what it has, or is to have (`kept`). `usual_s`: what is left of one of unknown length."""
    left_s = usual_s if each.left_s is None else each.left_s
    stall_s, speed = float(each.menu.stall_s[each.place]), float(each.menu.speed[each.place])
    return max(0.0, each.starts_at - now) + stall_s + left_s / speed


def run(found: Found, number: int, now: float, order: Order, usual_s: float) -> Course | None:
    """The course of a job of the candidates that has nothing; None where it never fits."""
    starts = courses(found, now, order, usual_s, number)
    return next((course for each, course, _ in starts if each.job.id == number), None)


def courses(
    found: Found, now: float, order: Order, usual_s: float, number: int = 0
) -> Iterator[tuple[Candidate, Course, bool]]:
    """Every waiting candidate, in the order in which they start, its course, and whether its start is a guess.

    It is one where a job of unknown length has ended before. `number`: a job that is taken to wait, whatever it holds.
    """
    room = list(found.capacity)
    ends: list[tuple[float, int, int, bool]] = []
    queue = []
    for each in found.candidates:
        if each.kept is not None and each.job.id != number and each.options:
            room[each.kept.pool] -= each.kept.units
            ends.append((stays_s(each, now, usual_s), each.kept.pool, each.kept.units, each.left_s is None))
        elif each.options:
            queue.append(each)
    heapq.heapify(ends)
    queue.sort(key=order)
    smallest: dict[int, list[tuple[int, int, float, float]]] = {}
    at, guess = 0.0, False
    while queue:
        place, free = 0, sum(each for each in room if each > 0)
        while place < min(len(queue), LOOK) and free > 0:
            each = queue[place]
            ways = smallest.get(id(each.menu))
            if ways is None:
                ways = smallest[id(each.menu)] = _smallest(each.menu)
            way = next((way for way in ways if way[0] <= room[way[1]]), None)
            if way is None:
                place += 1
                continue
            units, pool, speed, stall_s = way
            left_s = usual_s if each.left_s is None else each.left_s
            done = at + stall_s + left_s / speed
            yield each, Course(at, done), guess
            heapq.heappush(ends, (done, pool, units, each.left_s is None))
            room[pool] -= units
            free -= units
            del queue[place]
        if not ends:
            return
        at = ends[0][0]
        while ends and ends[0][0] <= at:
            _, pool, units, unknown = heapq.heappop(ends)
            room[pool] += units
            guess = guess or unknown


def _smallest(menu: Menu) -> list[tuple[int, int, float, float]]:
    """Of each pool the option with the fewest GPUs, the fastest of these first: GPUs, pool, speed, stall."""
    found: dict[int, tuple[int, int, float, float]] = {}
    for units, pool, speed, stall_s in zip(
        menu.units, menu.pools, menu.speed.tolist(), menu.stall_s.tolist(), strict=True
    ):
        if pool not in found or units < found[pool][0]:
            found[pool] = (units, pool, speed, stall_s)
    return sorted(found.values(), key=lambda way: (way[0], -way[2], way[3]))
