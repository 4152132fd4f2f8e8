"""The watch over deadlines: jobs that have one are looked at now and then, beside the controller's thread.

One look ahead answers for all of them. What looks cost is bounded: the longer one took, the longer there is none. What
is news of the answers, the core decides (`rules.deadlines`).
"""

import time
from collections.abc import Callable, Sequence

from hpcdl.core.controller.light_runs import without_light_runs
from hpcdl.core.controller.view_builder import Views
from hpcdl.core.model.commands import DeadlineForecast, Outlooks
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.world import Job, World
from hpcdl.core.rules.deadlines import MISSES, deadline_events
from hpcdl.daemon.loop import ControllerLoop
from hpcdl.daemon.time_left import measured_rate

AT_ONCE = 200
"""Jobs of one look; the others have their turn in the next ones."""

PAUSE = 25.0
"""After a look that took a second there is none for so many: looks take 4 % of one core at most."""

SURE_S = 60.0
"""For so long one look after the other must have found that a deadline is missed: jobs move, and agents come back."""


class DeadlineWatch:
    """Looks at jobs with deadlines, some at a time. For the thread of its tick."""

    def __init__(
        self, loop: ControllerLoop, profiles: Profiles, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._loop = loop
        self._profiles = profiles
        self._monotonic = monotonic
        self._views = Views()
        self._next_at = 0.0
        self._last = 0
        self._late: dict[int, float] = {}
        """By job, since when each look has found that it misses its deadline."""

    def look(self) -> None:
        """Looks at some jobs, if it is time to; what is news is sent to be recorded."""
        began = self._monotonic()
        world = self._loop.world
        if began < self._next_at or world.stopping:
            return
        now = self._loop.now()
        due = [number for number in world.active if _open(world.jobs[number], now)]
        if not due:
            self._late.clear()
            return
        found = self._forecasts(world, self._turn(due), now)
        over = [
            DeadlineForecast(number, 0.0) for number in due if number not in found and _passed(world.jobs[number], now)
        ]
        sure = self._sure(world, [*found.values(), *over], began, now)
        self._late = {number: since for number, since in self._late.items() if number in world.active}
        self._next_at = began + PAUSE * (self._monotonic() - began)
        if deadline_events(world, sure, now):
            self._loop.send(Outlooks(tuple(sure)))

    def _turn(self, due: Sequence[int]) -> list[int]:
        """Those whose turn it is."""
        later = [number for number in due if number > self._last]
        chosen = [*later, *(number for number in due if number <= self._last)][:AT_ONCE]
        self._last = chosen[-1]
        return chosen

    def _forecasts(self, world: World, numbers: Sequence[int], now: float) -> dict[int, DeadlineForecast]:
        from hpcdl.adaptive.forecast import outlooks  # numpy takes its time, and few jobs have a deadline

        view = without_light_runs(self._views.build(world, self._profiles, now))
        rates = {number: rate for number in numbers if (rate := measured_rate(world.jobs[number], now)) is not None}
        return {number: DeadlineForecast(number, *found) for number, found in outlooks(view, numbers, rates).items()}

    def _sure(self, world: World, found: Sequence[DeadlineForecast], at: float, now: float) -> list[DeadlineForecast]:
        """Without those that were not found to be late for long."""
        sure = []
        for outlook in found:
            if outlook.probability >= MISSES:
                self._late.pop(outlook.job, None)
            elif at - self._late.setdefault(outlook.job, at) < SURE_S and not _passed(world.jobs[outlook.job], now):
                continue
            sure.append(outlook)
        return sure


def _passed(job: Job, now: float) -> bool:
    return job.spec.deadline is not None and job.spec.deadline < now


def _open(job: Job, now: float) -> bool:
    """Whether something may be news of its deadline: one that is over is missed for good."""
    if job.spec.deadline is None or job.cancelling:
        return False
    return not _passed(job, now) or (job.expectation is not None and job.expectation.meets)
