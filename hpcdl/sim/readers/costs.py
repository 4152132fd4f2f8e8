"""What starts, resumes and saves cost under profiles that do not say it: those from CSV, and of jobs in logs."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from hpcdl.core.model.profile import Profile
from hpcdl.sim.workload import WorkloadError

_COSTS = (
    "startup_s", "save_s", "resume_s", "resume_up_s", "move_save_s", "move_s", "grow_s", "shrink_s", "join_s"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds; `resume_s` None: as long as a start. Raises WorkloadError."""

    startup_s: float = 0.0
    resume_s: float | None = None
    save_s: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            seconds: float | None = getattr(self, name)
            if seconds is not None and not 0 <= seconds < math.inf:
                raise WorkloadError(f"{name} must be a finite number of seconds, 0 or more, got {seconds}")

    def __str__(self) -> str:
        return f"a start takes {self.startup_s:g} s, a resume {self._resume_s:g} s, a save {self.save_s:g} s"

    @property
    def _resume_s(self) -> float:
        return self.startup_s if self.resume_s is None else self.resume_s

    def on(self, profile: Profile) -> Profile | None:
        """The profile with these costs; None where it has any of its own, and keeps all of them."""
        return _on(profile, self.startup_s, self._resume_s, self.save_s)


@lru_cache(maxsize=4096)  # the same profile again for all of its jobs: policies are told of it once
def _on(profile: Profile, startup_s: float, resume_s: float, save_s: float) -> Profile | None:
    if any(getattr(profile, name) for name in _COSTS):
        return None
    return replace(profile, startup_s=startup_s, resume_s=resume_s, save_s=save_s)
