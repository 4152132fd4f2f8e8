"""What was decided, as numbers of nodes."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decided:
    """How many nodes of which group each candidate of a case gets (group None: none), for `horizon_s`.

    `optimal`, `bound`, `gap`: as the solver says; `wake_at`: when to be asked again.
    """

    counts: Sequence[int]
    groups: Sequence[int | None]
    horizon_s: float
    optimal: bool = False
    bound: float | None = None
    gap: float | None = None
    wake_at: float | None = None
