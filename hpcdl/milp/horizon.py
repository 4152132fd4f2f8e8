"""For how long what is decided now is taken to last (BFTrainer, section 3.4.3: the forward-looking time T_fwd)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpcdl.milp.reallocation import Reallocation

USUAL_S = 120.0
"""T_fwd where nothing was seen yet; the paper's best value on Summit (figure 9)."""

ENOUGH = 8
"""Gaps from which on they are believed."""

GAPS = 1.5
"""The adaptive T_fwd is so many mean gaps: not every change concerns everybody. Summit's mean of 84 s gives 126 s."""

LEAST_S = 30.0
MOST_S = 3600.0

GRAIN = 1.25
"""The adaptive T_fwd is rounded to powers of it, so that it does not change at every event."""


def t_fwd(settings: Reallocation, gaps: Sequence[float], dearest_s: float) -> float:
    """Seconds for which what is decided now is taken to last. `dearest_s`: of any rescale upwards.

    Fixed, or from the gaps between the last changes of the set of nodes: GAPS times their mean, within LEAST_S and
    MOST_S, rounded, and never below `dearest_s`, since no growth could pay within less.
    """
    if settings.t_fwd_s is not None:
        return settings.t_fwd_s
    if len(gaps) < ENOUGH:
        return max(USUAL_S, dearest_s)
    mean = sum(gaps) / len(gaps)
    seconds = min(MOST_S, max(LEAST_S, GAPS * mean))
    return max(float(GRAIN ** round(math.log(seconds, GRAIN))), dearest_s)


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time from now on: it ends in `end_s`, and is `seconds` long; `nodes` of those asked about are there."""

    end_s: float
    seconds: float
    nodes: int


def spans(lives: Sequence[float], horizon_s: float) -> list[Span]:
    """How many of some nodes are there, until the horizon. `lives`: seconds that each stays (infinite: not known)."""
    found: list[Span] = []
    before = 0.0
    for end in sorted({min(max(life, 0.0), horizon_s) for life in lives} | {horizon_s}):
        if end > before:
            found.append(Span(end, end - before, sum(life >= end for life in lives)))
            before = end
    return found
