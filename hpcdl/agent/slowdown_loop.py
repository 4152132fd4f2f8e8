"""The feedback loop that keeps the slowdown of a foreground below its limit: how much of its time a background may run.

Pure: it is given the foreground's step times one by one, and answers with a duty from 0 (the background's step gate is
closed) to 1 (it runs as it can). colocation.py reads the step times and writes the gate; the trainer's side is in
hpcdl/trainer/step_gate.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

WINDOW = 20
"""Steps that are judged together."""

SETTLE = 2
"""Steps after a change of the duty that are judged by nobody: they began before it."""

QUIET_EVERY = 40
"""Windows from one quiet one, in which the foreground is alone and the baseline is learnt anew, to the next."""

GOOD = 0.6
"""Up to this share of the limit there is room for more; between it and the limit nothing is changed."""

BACKOFF_MOST = 64
"""Windows of the longest pause after a slowdown of more than twice the limit."""

STEP_UP, LEAST, FIRST = 0.05, 0.02, 0.1
"""What a duty rises by at most (a small one by a quarter), below which it is a pause, and what it begins with."""

CEILING = 0.9
"""Of a duty that was too much: it is tried again only after a quiet window."""

FORGIVE = 2 * QUIET_EVERY
"""Windows without a pause after which the next pause is a short one again."""


def trimmed_mean(values: Sequence[float]) -> float:
    """The mean without the smallest and the largest twentieth."""
    cut = len(values) // 20
    kept = sorted(values)[cut : len(values) - cut]
    return sum(kept) / len(kept)


@dataclass(slots=True)
class SlowdownLoop:
    """Of one foreground. `limit`: of its slowdown, 0.1 for 10 %. `duty`: what its backgrounds may take now.

    `baseline_s`: a step of the foreground alone; None before the first quiet window. `slowdown`: of the newest window
    that was judged; None before.
    """

    limit: float = 0.1
    duty: float = 0.0
    baseline_s: float | None = None
    slowdown: float | None = None
    pause: int = 0  # quiet windows that are still to come
    _resume: float = FIRST  # the duty after them
    _ceiling: float = 1.0  # up to which the duty rises
    _backoff: int = 1
    _good: int = 0  # windows in a row with room for more
    _since_quiet: int = 0
    _since_pause: int = 0
    _ignore: int = 0
    _hurt: bool = False  # the pause is for a slowdown
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
        if len(self._window) < WINDOW:
            return False
        mean, before = trimmed_mean(self._window), self.duty
        self._window.clear()
        if self.duty:
            self._judge(mean)
        else:
            self._learn(mean)
        if self.duty == before:
            return False
        self._ignore, self._good = SETTLE, 0
        return True

    def begin_window(self) -> None:
        """The steps so far, and the next few, are judged by nobody: the foreground did something else meanwhile."""
        self._window.clear()
        self._ignore = SETTLE

    def _learn(self, mean: float) -> None:
        """A quiet window has ended. One that was disturbed must not raise the baseline at once."""
        old = self.baseline_s
        self.baseline_s = mean if old is None or mean < old else (old + mean) / 2
        self._since_quiet = 0
        self.pause -= 1
        if self.pause <= 0:
            self.pause, self.duty = 0, self._resume

    def _judge(self, mean: float) -> None:
        assert self.baseline_s is not None
        slowdown = self.slowdown = mean / self.baseline_s - 1
        self._since_quiet += 1
        self._since_pause += 1
        if self._since_pause >= FORGIVE:
            self._backoff = 1
        if slowdown > self.limit:
            self._ceiling = max(LEAST, CEILING * self.duty)
            if slowdown > 2 * self.limit or self.duty / 2 < LEAST:
                self._stop(self._backoff, max(LEAST, self.duty / 2), hurt=True)
                self._backoff, self._since_pause = min(2 * self._backoff, BACKOFF_MOST), 0
            else:
                self.duty /= 2
        elif self._since_quiet >= QUIET_EVERY or slowdown < -GOOD * self.limit:  # faster than alone: it has changed
            self._ceiling = min(1.0, self._ceiling + STEP_UP)
            self._stop(1, self.duty)
        elif slowdown >= GOOD * self.limit:
            self._good = 0
        else:
            self._good += 1
            if self._good >= 2:
                self._good = 0
                self.duty = max(self.duty, min(self._ceiling, self.duty + min(STEP_UP, self.duty / 4)))

    def _stop(self, windows: int, resume: float, hurt: bool = False) -> None:
        self.duty, self.pause, self._resume, self._hurt = 0.0, windows, resume, hurt
