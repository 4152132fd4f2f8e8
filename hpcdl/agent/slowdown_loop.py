"""The feedback loop that keeps the slowdown of a foreground below its limit: how much of its time a background may run.

Pure: it is given the foreground's step times one by one, and answers with a duty from 0 (the background's step gate is
closed) to 1 (it runs as it can). colocation.py reads the step times and writes the gate; the trainer's side is in
hpcdl/trainer/step_gate.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, median, pstdev

WINDOW, LONGEST = 20, 200
"""Steps that are judged together: the fewest, and the most where their times differ so much that few say little:"""

PRECISION = 0.25
"""A window is long enough once the standard error of its mean is this share of what the limit allows."""

CLIP = 4.0
"""Medians that a longer step counts for: a checkpoint or an evaluation is no slowdown."""

SETTLE = 2
"""Steps after a change of the duty that are judged by nobody: they began before it."""

QUIET_EVERY = 40
"""Of so many steps one belongs to a quiet window, in which the foreground is alone and the baseline is learnt anew."""

GOOD = 0.6
"""Up to this share of the limit there is room for more; between it and the limit nothing is changed."""

BACKOFF_MOST = 64
"""Windows of the longest pause after a slowdown of more than twice the limit."""

STEP_UP, LEAST, FIRST = 0.05, 0.02, 0.1
"""What a duty rises by at most (a small one by a quarter), below which it is a pause, and what it begins with."""

CEILING = 0.9
"""Of a duty that was too much: it is tried again only after a quiet window."""

FORGIVE = 80
"""Windows without a pause after which the next pause is a short one again."""


def clipped_mean(values: Sequence[float]) -> tuple[float, float]:
    """The mean of steps none of which counts for more than CLIP medians, and its standard error."""
    most = CLIP * median(values)
    kept = [min(each, most) for each in values]
    return fmean(kept), pstdev(kept) / sqrt(len(kept))


@dataclass(slots=True)
class SlowdownLoop:
    """Of one foreground. `limit`: of its slowdown, 0.1 for 10 %. `duty`: what its backgrounds may take now.

    `baseline_s`: a step of the foreground alone; None before the first quiet window. `slowdown`: of the newest window
    that was judged; None before. `slows`: the slowdown of now, 0 in a pause; None: not judged at this duty yet.
    """

    limit: float = 0.1
    duty: float = 0.0
    baseline_s: float | None = None
    slowdown: float | None = None
    slows: float | None = None
    pause: int = 2  # quiet windows that are still to come: of the first two the shorter steps count
    _resume: float = FIRST  # the duty after them
    _ceiling: float = 1.0  # up to which the duty rises
    _backoff: int = 1
    _good: int = 0  # windows in a row with room for more
    _quiet_steps: int = WINDOW  # of the last quiet window
    _since_quiet: int = 0  # steps
    _since_pause: int = 0
    _ignore: int = 0
    _hurt: bool = False  # the pause is for a slowdown
    _slow: float | None = None  # mean of a window over the limit, until a quiet one says whether a background did it
    _window: list[float] = field(default_factory=list)

    @property
    def level(self) -> float:
        """The duty without the quiet windows in which only the baseline is learnt."""
        return self._resume if self.pause == 1 and self.slowdown is not None and not self._hurt else self.duty

    def observe(self, step_s: float) -> bool:
        """The foreground has made a step, in so many seconds. Whether the duty is another one now."""
        if self._ignore:
            self._ignore -= 1
            return False
        self._window.append(step_s)
        if len(self._window) % WINDOW:
            return False
        mean, error = clipped_mean(self._window)
        if len(self._window) < LONGEST and error > PRECISION * self.limit * mean and not self._clear(mean, error):
            return False
        steps, before = len(self._window), self.duty
        self._window.clear()
        if self.duty:
            self._since_quiet += steps
            self._judge(mean)
        else:
            self._since_quiet, self._quiet_steps = 0, steps
            self._learn(mean)
        if self.duty == before:
            return False
        self._ignore, self._good = SETTLE, 0
        return True

    def _clear(self, mean: float, error: float) -> bool:
        """Whether the window is over the limit already, however it goes on."""
        return self.duty > 0 and self.baseline_s is not None and mean - 2 * error > (1 + self.limit) * self.baseline_s

    def begin_window(self) -> None:
        """The steps so far, and the next few, are judged by nobody: the foreground did something else meanwhile."""
        self._window.clear()
        self._ignore = SETTLE

    def _learn(self, mean: float) -> None:
        """A quiet window has ended."""
        old, slow, self._slow = self.baseline_s, self._slow, None
        self.pause = max(0, self.pause - 1)
        if old is None or mean < old or (slow is not None and mean > (1 + self.limit) * old):
            self.baseline_s = mean  # slower by itself, too, where two windows in a row say so
        else:  # a single one may have been disturbed, and must not raise the baseline at once
            self.baseline_s = (old + mean) / 2
        if slow is not None and slow / mean - 1 > self.limit:
            self._punish(slow / mean - 1)
        if not self.pause:
            self.duty = self._resume
            if slow is not None or self._hurt:
                self.slows = None

    def _punish(self, slowdown: float) -> None:
        """The duty up to now, `_resume`, was too much: it falls by as much, at most to the half, and there is a pause
        where that is not enough."""
        self.slowdown, duty = slowdown, self._resume
        less = duty * max(0.5, GOOD * self.limit / slowdown)
        self._ceiling, self._resume = max(LEAST, CEILING * duty), max(LEAST, less)
        if slowdown > 2 * self.limit or less < LEAST:
            self.pause, self._hurt, self.slows = self._backoff - 1, True, 0.0
            self._backoff, self._since_pause = min(2 * self._backoff, BACKOFF_MOST), 0

    def _judge(self, mean: float) -> None:
        assert self.baseline_s is not None
        slowdown = self.slowdown = self.slows = mean / self.baseline_s - 1
        self._since_pause += 1
        if self._since_pause >= FORGIVE:
            self._backoff = 1
        if slowdown > self.limit:
            self._slow = mean
            self._stop()
        elif self._since_quiet >= QUIET_EVERY * self._quiet_steps or slowdown < -GOOD * self.limit:
            self._ceiling = min(1.0, self._ceiling + STEP_UP)
            self._stop()  # it is time, or it is faster than alone: it has changed
        elif slowdown >= GOOD * self.limit:
            self._good = 0
        else:
            self._good += 1
            if self._good >= 2:
                self._good = 0
                self.duty = max(self.duty, min(self._ceiling, self.duty + min(STEP_UP, self.duty / 4)))

    def _stop(self) -> None:
        """The next window is a quiet one."""
        self._resume, self.duty, self.pause, self._hurt = self.duty, 0.0, 1, False
