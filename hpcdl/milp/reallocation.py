"""What a user may set of the policies that spread elastic trainers over nodes."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reallocation:
    """`t_fwd_s`: the forward-looking time (BFTrainer, eq. 16); None: from the changes of the set of nodes seen so far.

    `parallel`: trainers that run at a time, at most (the paper's Pjmax); None: as many as there are nodes for.
    `packing`: the policy that packs jobs on single nodes under `harvest`. ValueError where a number makes no sense.
    """

    t_fwd_s: float | None = 120.0
    parallel: int | None = None
    packing: str = "adaptive"

    def __post_init__(self) -> None:
        if self.t_fwd_s is not None and not (math.isfinite(self.t_fwd_s) and self.t_fwd_s > 0):
            raise ValueError(f"t_fwd_s must be a number of seconds above 0, got {self.t_fwd_s}")
        if self.parallel is not None and self.parallel < 1:
            raise ValueError(f"parallel must be 1 or more, got {self.parallel}")
        if self.packing not in PACKING:
            raise ValueError(f"packing must be one of {', '.join(PACKING)}, got {self.packing!r}")


PACKING = ("adaptive", "marble")
"""Policies that can pack jobs on single nodes under `harvest`."""
