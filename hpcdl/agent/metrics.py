"""Metrics of the node's trainers between two heartbeats: samples of each attempt, bounded, and joined where many come.

They are telemetry, as samples of GPUs are: what an agent has not sent when it is killed is lost.
"""

from collections.abc import Callable, Mapping
from typing import Any

from hpcdl.agent.report_log import Key, boottime
from hpcdl.core.model.series import MOST_NAMES, NAME, Series, joined, sample
from hpcdl.wire.messages import MetricLine

MOST_WAITING = 64
"""Points of one metric that wait while no daemon is there."""

POINTS_A_BEAT = 10
"""Points of one metric in a heartbeat, mostly."""

MOST_SENT = 2_000
"""Points in one heartbeat: a frame has its limit."""


class MetricBuffer:
    """Samples that wait for a heartbeat. For the event loop's thread. Times are those of CLOCK_BOOTTIME."""

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._waiting: dict[tuple[Key, str], Series] = {}
        self._since: dict[tuple[Key, str], float] = {}  # when the last point that waits began
        self._steps: dict[Key, dict[str, int]] = {}  # of each name the step of the sample that came last

    def take(self, key: Key, newest: object, interval_s: float) -> None:
        """Takes in the newest value of each metric of an attempt, `{name: [step, value]}`, as its supervisor repeats
        them. What is malformed is left out. `interval_s`: seconds between heartbeats."""
        known = self._steps.setdefault(key, {})
        for name, step, value in _samples(newest):
            if known.get(name) == step or (name not in known and len(known) >= MOST_NAMES):
                continue
            known[name] = step
            self._add((key, name), step, value, interval_s / POINTS_A_BEAT)

    def _add(self, place: tuple[Key, str], step: int, value: float | None, apart_s: float) -> None:
        now, point = self._clock(), sample(self._clock(), step, value)
        series = self._waiting.get(place)
        if series is None:
            # The first of all stays alone, so that a curve begins where training did.
            self._since[place] = now if place in self._since else now - apart_s
            self._waiting[place] = Series([point], MOST_WAITING)
        elif now - self._since[place] < apart_s and (series.points[-1].step or 0) <= step:
            series.points[-1] = joined(series.points[-1], point)
        else:
            self._since[place] = now
            series.add(point)

    def hand_over(self) -> tuple[MetricLine, ...]:
        """What waits, for a heartbeat that is sent now; what is too much for one waits on."""
        now, found, number = self._clock(), list[MetricLine](), 0
        for place in list(self._waiting):
            points = self._waiting[place].points
            if number and number + len(points) > MOST_SENT:
                break
            number += len(points)
            (job, incarnation), name = place
            rows = tuple(
                (
                    max(0.0, now - each.at),
                    each.step or 0,
                    *(each.last, each.mean, each.low, each.high),
                    *(each.samples, each.not_finite),
                )
                for each in points
            )
            found.append(MetricLine(job, incarnation, name, rows))
            del self._waiting[place]
        return tuple(found)

    def forget(self, key: Key) -> None:
        """The attempt is over; what waits of it is still sent."""
        for name in self._steps.pop(key, ()):
            self._since.pop((key, name), None)


def _samples(newest: object) -> list[tuple[str, int, float | None]]:
    """Those of a supervisor's packet that are some."""
    found = []
    for name, pair in newest.items() if isinstance(newest, Mapping) else ():
        if not isinstance(name, str) or not NAME.fullmatch(name) or not isinstance(pair, list) or len(pair) != 2:
            continue
        step, value = _step(pair[0]), pair[1]
        if step is not None and (value is None or type(value) in (int, float)):
            found.append((name, step, None if value is None else float(value)))
    return found


def _step(step: Any) -> int | None:
    return step if type(step) is int and 0 <= step < 1 << 53 else None
