"""What is replayed: trainers, costs and what the policy is to aim for. Values only."""

import math
from dataclasses import dataclass

from hpcdl.core.model import LARGEST
from hpcdl.core.profile import MAX_NODES
from hpcdl.sim.replay.models import Model
from hpcdl.sim.workload import WorkloadError

ACCOUNTINGS = ("paper", "stall")
MOST_SECONDS = 1e6
MOST_PARALLEL = 1_000


@dataclass(frozen=True, slots=True)
class Case:
    """An endless queue of trainers under a policy. WorkloadError where a value makes no sense.

    models: what the trainers of the queue train, in turn; `parallel` of them are active, none has any node at first.
    scale_up_s, scale_down_s: R_up and R_dw of eq. 13, seconds; a start is a scale-up. t_fwd_s: the horizon of eq. 16,
    None: adaptive. samples: of each trainer; it runs on `fewest` to `most` nodes.
    accounting: "paper": a rescale takes no time, R x f(C) samples are subtracted for it (eq. 16); "stall": a trainer
    makes no progress for R seconds.
    """

    models: tuple[Model, ...]
    policy: str = "bftrainer"
    parallel: int = 10
    scale_up_s: float = 20.0
    scale_down_s: float = 5.0
    t_fwd_s: float | None = 120.0
    accounting: str = "paper"
    objective: str = "throughput"
    samples: int = 130_000_000
    fewest: int = 1
    most: int = 64

    def __post_init__(self) -> None:
        if not self.models:
            raise WorkloadError("a replay needs a model at least")
        if not 1 <= self.parallel <= MOST_PARALLEL:
            raise WorkloadError(f"parallel must be from 1 to {MOST_PARALLEL}, got {self.parallel}")
        for key in ("scale_up_s", "scale_down_s"):
            seconds: float = getattr(self, key)
            if not 0 <= seconds <= MOST_SECONDS:
                raise WorkloadError(f"{key} must be from 0 to {MOST_SECONDS:g} seconds, got {seconds:g}")
        if self.t_fwd_s is not None and not (math.isfinite(self.t_fwd_s) and 0 < self.t_fwd_s <= MOST_SECONDS):
            raise WorkloadError(f"t_fwd_s must be above 0 and up to {MOST_SECONDS:g} seconds, got {self.t_fwd_s:g}")
        if self.accounting not in ACCOUNTINGS:
            raise WorkloadError(f"no accounting {self.accounting!r}: there are {', '.join(ACCOUNTINGS)}")
        if not 1 <= self.samples <= LARGEST:
            raise WorkloadError(f"samples must be from 1 to {LARGEST}, got {self.samples}")
        if not 1 <= self.fewest <= self.most <= MAX_NODES:
            raise WorkloadError(f"nodes {self.fewest}:{self.most}: needs 1 <= MIN <= MAX <= {MAX_NODES}")

    @property
    def in_paper(self) -> bool:
        """Whether rescales take no time, and their cost is subtracted."""
        return self.accounting == "paper"

    def model_of(self, place: int) -> Model:
        """Of the trainer at a place of the queue, from 0 on."""
        return self.models[place % len(self.models)]
