"""What `hpcdl drill` found out about a job. A value only."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Drill:
    """The verdict of one drill: the job was suspended and killed on purpose, and came back each time, or did not.

    `grace_needed_s`: what a grace must be for the job to be saved in time. `save_s`, `free_s`, `resume_s`,
    `first_step_s`: medians, in seconds: asked until its checkpoint was durable; then until its GPUs were seen free;
    given GPUs until its training loop began, and until its first step was done. `lost_steps`: the most that a kill
    cost; `interval_steps`: the most that it may cost, a checkpoint's interval. None: it was not seen. `detail`: why it
    did not pass.
    """

    passed: bool
    grace_needed_s: float | None = None
    save_s: float | None = None
    free_s: float | None = None
    resume_s: float | None = None
    first_step_s: float | None = None
    lost_steps: int | None = None
    interval_steps: int | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        for name in ("grace_needed_s", "save_s", "free_s", "resume_s", "first_step_s"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"a drill's {name} must be seconds from 0 on, got {value}")
        for name in ("lost_steps", "interval_steps"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"a drill's {name} must be 0 or more, got {value}")
