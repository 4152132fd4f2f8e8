"""A model of what the objective `deadline` does (deadline.py), which predicts when jobs have GPUs and are done.

forecast.py makes probabilities of it. All jobs of the view are run forward: on the cheapest option that is on time, by
counts alone, from one end to the next. Options of one shape on one kind of GPU are alike, in whichever pool they are: a
job takes the one that nobody holds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcdl.adaptive.deadline import HELD, SHORT, TOLERANCE_S, URGENT
from hpcdl.adaptive.options import Floats, Menu, OptionMenu
from hpcdl.estimators.certainty import CERTAIN, Certainty

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MOST_STEPS = 400
"""Ends that the model looks ahead."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One job run forward: seconds from now until it first has GPUs, and until it is done (inf: not in sight).

    `fastest_s`, `needs_s`: how long it takes on its fastest option, and on the cheapest one that is on time (the
    fastest, where none is). `shorter`: share of all GPUs that is needed by what keeps coming and needs less than that.
    `certainty`: how far off these may be.
    """

    waits_s: float
    ends_s: float
    fastest_s: float
    needs_s: float
    shorter: float
    certainty: Certainty = CERTAIN


@dataclass(frozen=True, slots=True)
class OptionChoices:
    """Options of a menu, by their places in it.

    `alike`: for each option those of the same shape on the same kind of GPU, itself the first. `least`: of each pool
    the one with the fewest GPUs, which are `fewest` at least; the fastest of those with as many come first.
    """

    alike: tuple[tuple[int, ...], ...]
    least: tuple[int, ...]
    fewest: int

    @classmethod
    def of(cls, menu: Menu) -> "OptionChoices":
        """The choices of a menu that has options."""
        shapes: dict[tuple[str, int, int], list[int]] = {}
        least: dict[int, int] = {}
        for place, each in enumerate(menu.options):
            shapes.setdefault((each.kind, each.nodes, each.gpus), []).append(place)
            if each.pool not in least or each.units < menu.units[least[each.pool]]:
                least[each.pool] = place
        alike = [shapes[each.kind, each.nodes, each.gpus] for each in menu.options]
        return cls(
            tuple((place, *(each for each in same if each != place)) for place, same in enumerate(alike)),
            tuple(sorted(least.values(), key=lambda place: (menu.units[place], -menu.speed[place], place))),
            min(menu.units),
        )


class LookAhead:
    """All jobs run forward together: candidates as columns, one for each option; times in seconds from now."""

    def __init__(self, now: float, found: OptionMenu) -> None:
        listed = [each for each in found.candidates if each.options]
        lengths = [len(each.options) for each in listed]
        self.ids = [each.job.id for each in listed]
        self.starts = np.concatenate([[0], np.cumsum(lengths)])[:-1].astype(np.int64)
        self.owner = np.repeat(np.arange(len(listed)), lengths)
        self.units = np.array([units for each in listed for units in each.menu.units])
        self.pool = np.array([pool for each in listed for pool in each.menu.pools])
        self.speed = np.concatenate([each.menu.speed for each in listed])
        self.stall_s = np.concatenate([each.menu.stall_s for each in listed])
        self.again_s = np.array([each.job.profile.suspend_resume_s if each.job.profile else 0.0 for each in listed])
        known = [each.left_s for each in listed if each.left_s is not None]
        typical = float(np.median(known)) if known else 3600.0
        self.left_s = np.array([typical if each.left_s is None else max(1e-3, each.left_s) for each in listed])
        self.due_s = np.array([math.inf if (due := each.job.deadline) is None else due - now for each in listed])
        self.has = np.array(
            [
                -1 if each.kept is None else at + each.options.index(each.kept)
                for at, each in zip(self.starts, listed, strict=True)
            ],
            dtype=np.int64,
        )
        self.fixed = np.array([each.fixed for each in listed])
        self.trains_s = np.zeros(len(listed))  # when it makes progress on what it has
        self.room = list(found.capacity)
        self.lists = (self.units.tolist(), self.pool.tolist(), self.starts.tolist())
        ways = {key: OptionChoices.of(menu) for key, menu in {id(each.menu): each.menu for each in listed}.items()}
        self.ways = [ways[id(each.menu)] for each in listed]  # jobs that are alike share their menus

    def run(self, numbers: Sequence[int]) -> dict[int, Rollout]:
        """Runs forward until each of these jobs is done, or MOST_STEPS ends have passed; their rollouts."""
        at = {number: place for place, number in enumerate(self.ids)}
        asked = np.array([at[number] for number in numbers])
        fastest_s = np.minimum.reduceat(self.stall_s + self.left_s[self.owner] / self.speed, self.starts)
        needs_s = fastest_s
        alive = np.ones(len(self.ids), dtype=np.bool_)
        waits_s = np.full(len(self.ids), math.inf)
        ends_s = waits_s.copy()
        now = 0.0
        for step in range(MOST_STEPS):
            seconds, best = self._cheapest(now, alive)
            if step == 0:
                needs_s = np.where(best >= 0, seconds[best], fastest_s)
            given = self._give(now, alive, seconds, best)
            waits_s = np.where((given >= 0) & np.isinf(waits_s), now, waits_s)
            self._change(now, given)
            running = alive & (self.has >= 0)
            if not running.any():
                break
            rate = np.where(running, self.speed[self.has], 1.0)
            begins = np.maximum(self.trains_s, now)
            ends = np.where(running, begins + self.left_s / rate, math.inf)
            now = float(ends.min())
            self.left_s = np.where(
                running, np.maximum(0.0, self.left_s - np.maximum(0.0, now - begins) * rate), self.left_s
            )
            ended = running & (ends <= now + 1e-6)
            ends_s = np.where(ended, now, ends_s)
            if not np.isinf(ends_s[asked]).any():
                break
            alive &= ~ended
            self.has = np.where(ended, -1, self.has)
        return {
            number: Rollout(float(waits_s[me]), float(ends_s[me]), float(fastest_s[me]), float(needs_s[me]), 0.0)
            for number, me in zip(numbers, asked.tolist(), strict=True)
        }

    def _cheapest(self, now: float, alive: Mask) -> tuple[Floats, Ints]:
        """Seconds to the end on every option; and of each job the one that is on time for the fewest GPU seconds."""
        stall_s = self.stall_s.copy()
        held = self.has[self.has >= 0]
        stall_s[held] = np.maximum(0.0, self.trains_s[self.owner[held]] - now)
        seconds = stall_s + self.left_s[self.owner] / self.speed
        due_s = self.due_s[self.owner]
        on_time = np.isfinite(due_s) & (now + seconds <= due_s + TOLERANCE_S) & alive[self.owner]
        gpu_s = np.where(on_time, self.units * seconds, math.inf)
        hits = np.flatnonzero(on_time & (gpu_s == np.minimum.reduceat(gpu_s, self.starts)[self.owner]))
        best = np.full(len(self.ids), -1)
        best[self.owner[hits[::-1]]] = hits[::-1]
        return seconds, best

    def _give(self, now: float, alive: Mask, seconds: Floats, best: Ints) -> Ints:
        """Options by what a GPU is worth on them; those who cannot be on time come last, the shortest first."""
        good = best >= 0
        needs_s = np.where(good, np.maximum(1.0, seconds[best]), 1.0)
        slack_s = np.where(good, np.maximum(0.0, np.where(good, self.due_s, 0.0) - now - needs_s), 0.0)
        worth = (3600.0 / needs_s) ** SHORT * (1.0 + URGENT * np.exp(-slack_s / needs_s)) / self.units[best]
        worth = np.where(good, worth * np.where(self.has >= 0, HELD, 1.0), 0.0)
        worth = np.where(self.fixed, math.inf, worth)
        order = np.lexsort((self.left_s, -worth))
        return np.array(self._fill(order[alive[order]].tolist(), best.tolist()), dtype=np.int64)

    def _fill(self, order: Sequence[int], wanted: Sequence[int]) -> list[int]:
        """The option of each job, -1: none. In this order each takes what it wants, where there is room for it; or
        keeps what it has; or takes the least."""
        # Lists: hundreds of times thousands of jobs are looked at one by one.
        units, pools, starts = self.lists
        held = self.has.tolist()
        given = [-1] * len(self.ids)
        room, left = self.room.copy(), sum(self.room)
        several = len(room) > 1
        spare = room.copy()  # what none of those who are yet to come holds
        if several:
            for at in order:
                if held[at] >= 0:
                    spare[pools[held[at]]] -= units[held[at]]
        for at in order:
            option, has = wanted[at], held[at]
            if several:
                if has >= 0:
                    spare[pools[has]] += units[has]
                if option >= 0 and (option != has or units[has] > room[pools[has]]):
                    option = self._fitting(at, self.ways[at].alike[option - starts[at]], spare, room)
            elif option >= 0 and units[option] > room[0]:
                option = -1
            if option < 0 and has >= 0 and units[has] <= room[pools[has]]:
                option = has
            if option < 0 and self.ways[at].fewest <= left:
                option = self._fitting(at, self.ways[at].least, spare if several else room, room)
            if option >= 0:
                given[at] = option
                taken = units[option]
                room[pools[option]] -= taken
                spare[pools[option]] -= taken
                left -= taken
                if not left:
                    break
        return given

    def _fitting(self, at: int, ways: Sequence[int], spare: Sequence[int], room: Sequence[int]) -> int:
        """Of these options of a job the first for which nobody has to go, else the first with room, else -1."""
        units, pools, starts = self.lists
        start = int(starts[at])
        for free in (spare, room):
            for way in ways:
                if units[start + way] <= free[pools[start + way]]:
                    return start + way
        return -1

    def _change(self, now: float, given: Ints) -> None:
        """Whoever goes to another option stalls, and from then on has to be suspended and resumed for another one."""
        goes = (given >= 0) & (given != self.has)
        self.trains_s = np.where(goes, now + self.stall_s[given], self.trains_s)
        self.stall_s = np.where(goes[self.owner], self.again_s[self.owner], self.stall_s)
        self.has = given
