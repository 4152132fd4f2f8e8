"""Jobs that share a GPU on this node: the backgrounds' step gates, by the slowdown of the foregrounds beside them.

Reads the ends of the steps of each foreground in the page that its trainer shares with this agent, else the progress
that it reports; has slowdown_loop.py judge them; and writes duty and heartbeat into the page of each background
(hpcdl/trainer/step_gate.py has both pages). Grants are none of its business: who may share what is the daemon's plan.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from hpcdl.agent.context import AgentContext, Stage
from hpcdl.agent.gpus import Side
from hpcdl.agent.part import AgentPart
from hpcdl.agent.report_log import Key
from hpcdl.agent.slowdown_loop import FIRST, PRECISION, SlowdownLoop
from hpcdl.core.model.job import SLOWDOWN
from hpcdl.trainer.step_gate import SharePage

log = logging.getLogger("hpcdl.agent")

TICK_S, IDLE_S = 0.1, 1.0
"""Between two heartbeats (a trainer takes 0.7 s without one for our death); the other where there is no background."""

REPORT_S = 30.0
"""What a step gate does is reported so often at most, and then only a change of so much of its duty, or one of the
foreground's slowdown that is more than how exactly that is measured:"""

REPORTED = 0.1

BLIND_S, BLIND_STEPS = 10.0, 5
"""A foreground without a step for so long, or for so many of its steps, starts, evaluates or shows none: nothing can
be judged, and a background runs a little."""

SAMPLE_S = 1.0
"""Of a foreground that writes no ends of steps: between two looks at the progress that it reports."""


@dataclass(slots=True)
class Foreground:
    """What is known of the steps of a foreground that has a background beside it."""

    page: SharePage
    loop: SlowdownLoop
    count: int | None = None  # steps in its page so far; None: not looked yet
    ended_ns: int = 0  # the last of them
    step: int | None = None  # the last one that it reported
    reported_at: float = 0.0
    stepped_at: float = field(default_factory=time.monotonic)
    changed_at: float = field(default_factory=time.monotonic)  # when the duty became what it is
    held: bool = False  # at the last look

    def look(self, step: int | None, now: float, held: bool) -> None:
        """Judges the steps since the last look. `step`: the newest that was reported. `held`: the backgrounds beside it
        wait at their gates; a quiet window begins with that, for one may be in a long step when its gate closes."""
        counts = (held and self.held) or self.loop.duty > 0 or now - self.changed_at > BLIND_S
        self.held = held
        for step_s in self.steps(step, now):
            if self.blind(now):
                self.loop.begin_window()
            self.stepped_at = now
            if counts and self.loop.observe(step_s):
                self.changed_at, counts = now, False  # the gates hear of it now: the steps so far ended before

    def blind(self, now: float) -> bool:
        """Whether it has made no step for long."""
        return now - self.stepped_at > max(BLIND_S, BLIND_STEPS * (self.loop.baseline_s or 0.0))

    def duty(self, now: float) -> float:
        """What backgrounds may take now."""
        return max(FIRST, self.loop.duty) if self.blind(now) else self.loop.duty

    def steps(self, step: int | None, now: float) -> Iterator[float]:
        """Seconds of each step that has ended since the last call. `step`: the newest that was reported."""
        before, (self.count, ends) = self.count, self.page.ends(self.count or 0)
        for end in ends[-1:] if before is None else ends:
            if self.ended_ns:
                yield (end - self.ended_ns) / 1e9
            self.ended_ns = end
        if self.count or step is None or now - self.reported_at < SAMPLE_S:
            return
        if self.step is not None and step > self.step:
            yield (now - self.reported_at) / (step - self.step)
        if step != self.step:
            self.step, self.reported_at = step, now


@dataclass(slots=True)
class Background:
    """A background's page, and what was reported of its gate last: beside which job, its duty, that job's slowdown."""

    page: SharePage
    foreground: int = 0
    duty: float = 1.0
    measured: bool = False
    slows: float | None = None
    at: float = -REPORT_S


class Colocation:
    """Of one node. It belongs to the event loop's thread."""

    def __init__(self, site: AgentContext, parts: Mapping[Key, AgentPart]) -> None:
        self._site = site
        self._parts = parts
        self._foregrounds: dict[Key, Foreground] = {}
        self._backgrounds: dict[Key, Background] = {}
        self._failing: set[Key] = set()

    async def run(self) -> None:
        """Writes heartbeats for as long as there are backgrounds; an error of ours closes their gates."""
        while True:
            try:
                self.tick(time.monotonic())
            except Exception:
                log.exception("the step gates were not written")
            await asyncio.sleep(TICK_S if self._backgrounds else IDLE_S)

    def tick(self, now: float) -> None:
        """Judges the steps that foregrounds have made since the last call, and writes all gates."""
        parts = [part for part in self._parts.values() if part.stage is Stage.FOLLOWED and part.share is not None]
        foregrounds = {part.key: part for part in parts if part.side is Side.FOREGROUND}
        backgrounds = {part.key: part for part in parts if part.share is not None and part.share.as_background}
        beside: dict[Key, set[Key]] = {key: set() for key in backgrounds}
        for _, foreground, background in self._site.gpus.pairs:
            if foreground in foregrounds and background in backgrounds:
                beside[background].add(foreground)
        wanted = sorted({key for keys in beside.values() for key in keys})
        self._foregrounds = {key: self._foregrounds[key] for key in wanted if key in self._foregrounds}
        self._backgrounds = {key: self._backgrounds[key] for key in backgrounds if key in self._backgrounds}
        for key, part in backgrounds.items():
            if key not in self._backgrounds:
                with self._by_itself(part):
                    self._backgrounds[key] = Background(SharePage(part.folder))
        for key in wanted:
            with self._by_itself(foregrounds[key]):
                if key not in self._foregrounds:
                    self._foregrounds[key] = self._begin(foregrounds[key])
                held = all(known.page.waiting for each, known in self._backgrounds.items() if key in beside[each])
                self._foregrounds[key].look(foregrounds[key].step, now, held)
        for key in self._backgrounds:
            part = backgrounds[key]
            with self._by_itself(part):
                if beside[key] <= self._foregrounds.keys():
                    self._steer(part, beside[key], now)
                else:  # without a heartbeat its gate closes
                    part.held()

    @contextmanager
    def _by_itself(self, part: AgentPart) -> Iterator[None]:
        """What fails for one part, whose run folder is gone or full, say, closes no other part's gate."""
        try:
            yield
            self._failing.discard(part.key)
        except OSError as error:
            part.held()
            if part.key not in self._failing:
                self._failing.add(part.key)
                log.warning("job %d.%d: its step gate is not written: %s", *part.key, error)

    def _begin(self, part: AgentPart) -> Foreground:
        limit = None if part.share is None else part.share.slowdown
        return Foreground(SharePage(part.folder), SlowdownLoop(SLOWDOWN if limit is None else limit))

    def _steer(self, part: AgentPart, foregrounds: set[Key], now: float) -> None:
        """Writes one background's gate: the least duty that those bear whose GPUs it shares."""
        known = self._backgrounds[part.key]
        if not foregrounds:
            known.page.control(1.0, None)
            self._report(part, 0, None, now)
            return
        key = min(sorted(foregrounds), key=lambda each: self._foregrounds[each].duty(now))
        duty = self._foregrounds[key].duty(now)
        known.page.control(duty, key)
        if not duty:
            part.held()
        self._report(part, key[0], self._foregrounds[key], now)

    def _report(self, part: AgentPart, foreground: int, beside: Foreground | None, now: float) -> None:
        known = self._backgrounds[part.key]
        duty, limit, slows, measured = 1.0, 0.0, None, False
        if beside is not None:
            loop = beside.loop
            limit, measured = loop.limit, loop.slowdown is not None
            duty, slows = (beside.duty(now), None) if beside.blind(now) else (loop.level, loop.slows)
        same = foreground == known.foreground and measured == known.measured
        alike = abs(duty - known.duty) < REPORTED and _alike(slows, known.slows, PRECISION * limit)
        if same and (alike or now - known.at < REPORT_S):
            return
        known.foreground, known.duty, known.measured, known.slows, known.at = foreground, duty, measured, slows, now
        part.report_throttle(foreground, duty, limit, slows)


def _alike(one: float | None, other: float | None, within: float) -> bool:
    return one is other or (one is not None and other is not None and abs(one - other) <= within)
