"""`PilotLimits`: what a site allows pilots, and what they cost there.

`site.py` reads the files of conf/sites/ into it, `pilots.py` stays within it. It is loaded by everything that knows
pilots, so it imports nothing.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PilotLimits:
    """Limits and costs of pilots. Times in seconds; None: no limit.

    `pilots_max`: batch jobs of ours at once, waiting ones included; `nodes_max`: nodes of one pilot; `nodes_total`: of
    all of them. `queues`: the partitions or queues that pilots may use, () for none. `without`: nodes never taken.
    `pilots_without_preemption`: they may use queues whose batch jobs are not ended for others', too.
    `walltime_min_s`, `walltime_max_s`: of one pilot; walltimes are whole multiples of `walltime_step_s`. `margin_s`:
    how long before its hole's end a pilot ends. `startup_s`: from a pilot's start until its agents are there, until it
    has been measured. `useful`: the part of a pilot's walltime in which it must be able to train, for start-up and
    saves cost the site as much as training. `patience_s`: a pilot that waits for longer is cancelled. `options`: what
    each submission carries (account, project), as arguments of sbatch or bsub.
    """

    pilots_max: int = 0
    nodes_max: int | None = None
    nodes_total: int | None = None
    queues: tuple[str, ...] = ()
    without: frozenset[str] = frozenset()
    pilots_without_preemption: bool = False
    walltime_min_s: float = 120.0
    walltime_max_s: float | None = None
    walltime_step_s: float = 60.0
    margin_s: float = 60.0
    startup_s: float = 30.0
    useful: float = 0.5
    patience_s: float = 120.0
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("pilots_max", "nodes_max", "nodes_total"):
            number = getattr(self, name)
            if number is not None and number < 0:
                raise ValueError(f"{name} must be 0 or more, got {number}")
        if not 0 < self.walltime_min_s <= (self.walltime_max_s or self.walltime_min_s):
            raise ValueError(
                f"walltimes must be from above 0, got {self.walltime_min_s:g} to {self.walltime_max_s or 0:g} s"
            )
        for name in ("walltime_step_s", "patience_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name):g}")
        for name in ("margin_s", "startup_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name):g}")
        if not 0 <= self.useful < 1:
            raise ValueError(f"useful must be from 0 to below 1, got {self.useful:g}")
