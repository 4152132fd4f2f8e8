"""Under which conditions a workload is simulated, and what came of it. Values only.

`engine` fills a `SimulatedRun`; `results` and `page` read it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcdl.core.model.events import Recorded
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import World
from hpcdl.core.rules.exemption import STARTS
from hpcdl.report.history import History
from hpcdl.sim.workload import SimJob, Workload, WorkloadError

MOST_JITTER = 5.0
"""Of a sigma: a delay is then 150 times as long or as short already."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What surrounds a simulated workload.

    `seed`: for everything that is left to chance. `jitter`: sigma of the lognormal factor on every start-up, save and
    resume; 0 takes the profile's times as they are. `spread`: sigma of the factors by which each job's start-ups, saves
    and length differ from what its workload says; above 0 policies see of them only what trainers showed so far, as in
    the daemon; 0 tells policies every job's steps. `progress_s`: seconds between two reports of a trainer's progress;
    `first_progress_s`: until the first one wherever it begins to train, None: as between two.
    `checkpoint_s`: between two checkpoints, which is what a failure loses at most. `mtbf_s`: mean time between failures
    of a trainer while it trains, 0 for none. `restarts`: when the daemon is killed and started again. `objective`: what
    policies are to aim for. `warm`: jobs may be started ahead at the gate. `until_s`: the simulation ends there.
    `exempt_starts`: see `hpcdl.core.rules.exemption`; 0 for the papers' policies in studies of the papers, which have
    costs and rules of their own. `sharing`: jobs that agreed to it share GPUs, under policies that leave it to this
    setting. `max_slowdown`: above which finish-time fairness (`results.JobResult`) a job is listed as unfair.
    """

    seed: int = 0
    jitter: float = 0.0
    spread: float = 0.0
    progress_s: float = 300.0
    checkpoint_s: float = 600.0
    mtbf_s: float = 0.0
    restarts: tuple[float, ...] = ()
    objective: str = "jct"
    warm: bool = False
    until_s: float = math.inf
    exempt_starts: float = STARTS
    sharing: bool = True
    first_progress_s: float | None = None
    max_slowdown: float = 5.0

    def __post_init__(self) -> None:
        for key in ("jitter", "spread", "mtbf_s"):
            value: float = getattr(self, key)
            if not (math.isfinite(value) and value >= 0):
                raise WorkloadError(f"{key} must be a finite number, 0 or more, got {value}")
        for key in ("jitter", "spread"):
            if getattr(self, key) > MOST_JITTER:
                raise WorkloadError(f"{key} must be {MOST_JITTER:g} or less, got {getattr(self, key)}")
        if not (math.isfinite(self.max_slowdown) and self.max_slowdown >= 1):
            raise WorkloadError(f"max_slowdown must be a finite number, 1 or more, got {self.max_slowdown}")
        for key in ("progress_s", "checkpoint_s", "until_s"):
            if not getattr(self, key) > 0:
                raise WorkloadError(f"{key} must be more than 0 seconds, got {getattr(self, key)}")
        if any(not (math.isfinite(at) and at >= 0) for at in self.restarts):
            raise WorkloadError(f"restarts are times from 0 on, got {self.restarts}")


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """What came of a workload under one policy.

    `history`: as the ledger of a real run gives it. `jobs`: the simulated job behind each job id. `believed`: the
    profiles that the policy saw, by lower-case name. `decisions`: how many, and `decide_s`: wall seconds that each
    took. `problems`: what went wrong, one line each; empty in a good run.
    """

    workload: Workload
    policy: str
    conditions: Conditions
    history: History
    world: World
    records: tuple[Recorded, ...]
    jobs: Mapping[int, SimJob]
    believed: Mapping[str, Profile]
    decide_s: tuple[float, ...] = field(compare=False, default=())
    problems: tuple[str, ...] = ()

    @property
    def decisions(self) -> int:
        """How often the policy decided."""
        return len(self.decide_s)
