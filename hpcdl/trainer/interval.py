"""When the next periodic checkpoint is due: every N steps, or by what saves cost and how often training is interrupted.

Rank 0 decides by its clock and all ranks follow it, so that they save at the same step. `loop.py` asks at each step;
the ranks exchange something only at few of them.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping

from hpcdl.trainer.group.peers import RankAgreement

AUTO = re.compile(r"auto(?::([1-9][0-9]{0,11}))?")
SAVE_S = 10.0  # where no save was measured yet
INTERRUPTION_S = 6 * 3600.0  # where the daemon says nothing


def best_interval_s(cost_s: float, between_s: float) -> float:
    """Seconds of training between two checkpoints that lose the least time on average, where a checkpoint holds
    training up for `cost_s` and it is interrupted every `between_s` on average, at random.

    J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps (2006), equation 37; its
    first term is J. W. Young's sqrt(2 C M) (1974).
    """
    if cost_s <= 0:
        return 0.0
    if cost_s >= 2 * between_s:
        return between_s
    part = math.sqrt(cost_s / (2 * between_s))
    return math.sqrt(2 * cost_s * between_s) * (1 + part / 3 + part * part / 9) - cost_s


class FixedInterval:
    """Every so many steps; None: never."""

    def __init__(self, every: int | None) -> None:
        if every is not None and every <= 0:
            raise ValueError(f"every {every} must be positive")
        self._every = every

    def begin(self, step: int) -> None:
        """Training begins, with `step` steps done."""

    def due(self, step: int) -> bool:
        """Whether a checkpoint is to be written now that `step` steps are done. Collective."""
        return self._every is not None and step % self._every == 0

    def saved(self, step: int, cost_s: float | None, least_s: float = 0.0) -> None:
        """A save of `step` held training up for `cost_s`, None: it failed. The next can be written `least_s` later."""


class AutoInterval(FixedInterval):
    """By Daly's formula. `every`: `auto`, or `auto:N` for at most N steps.

    HPCDL_INTERRUPTION_S: the mean seconds between interruptions, HPCDL_SAVE_S: what the job's last save took.
    """

    def __init__(self, every: str, ranks: RankAgreement, environ: Mapping[str, str]) -> None:
        found = AUTO.fullmatch(every)
        if found is None:
            raise ValueError(f"every {every!r} must be a number of steps, 'auto', or 'auto:N' for at most N steps")
        super().__init__(None)
        self._most = int(found[1]) if found[1] else None
        self._ranks = ranks
        self._between_s = _seconds(environ, "HPCDL_INTERRUPTION_S", INTERRUPTION_S)
        self._cost_s = _seconds(environ, "HPCDL_SAVE_S", SAVE_S)
        self.begin(0)

    def begin(self, step: int) -> None:
        """See FixedInterval."""
        self.saved(step, None)

    def saved(self, step: int, cost_s: float | None, least_s: float = 0.0) -> None:
        """See FixedInterval."""
        self._last, self._last_at = step, time.monotonic()
        self._cost_s = self._cost_s if cost_s is None else cost_s
        self._interval_s = max(best_interval_s(self._cost_s, self._between_s), least_s)
        self._look = step + 1

    def due(self, step: int) -> bool:
        """See FixedInterval."""
        if step < self._look:
            return False
        done, passed_s = step - self._last, time.monotonic() - self._last_at
        left = math.ceil(min(1e12, max(0.0, self._interval_s - passed_s) / max(passed_s / done, 1e-9)))
        if self._most is not None:
            left = min(left, self._last + self._most - step)
        left = int(self._ranks.gather(str(left))[0])
        # The first steps may be slow ones, or fast: it is looked at again before ten times as many are done.
        self._look = step + min(left, 9 * done)
        return left <= 0


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(environ.get(name, ""))
    except ValueError:
        return default
    return value if 0 < value < math.inf else default
