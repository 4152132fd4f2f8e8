"""What `hpcdl drill` found out about a job. A value only."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Drill:
    """The verdict of one drill: the job was suspended and killed on purpose, and came back each time, or did not.

    `grace_needed_s`: what a grace must be for the job to be saved in time. Medians, in seconds: `suspend_s`: asked to
    suspend until its GPUs were seen free; of this, `save_s`: until its checkpoint was durable, and `free_s`: from its
    last process's end on. `resume_s`: given GPUs until its training loop began; `first_step_s`: from there until its
    first step was done. `lost_steps`: the most that a kill cost; `interval_steps`: the most that it may cost, a
    checkpoint's interval. None: it was not seen. `detail`: why it did not pass.
    """

    passed: bool
    grace_needed_s: float | None = None
    suspend_s: float | None = None
    save_s: float | None = None
    free_s: float | None = None
    resume_s: float | None = None
    first_step_s: float | None = None
    lost_steps: int | None = None
    interval_steps: int | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        for name in ("grace_needed_s", "suspend_s", "save_s", "free_s", "resume_s", "first_step_s"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"a preemption test's {name} must be seconds from 0 on, got {value}")
        for name in ("lost_steps", "interval_steps"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"a preemption test's {name} must be 0 or more, got {value}")
