"""A modelled trainer: one attempt of a job, how far it is, and how long what it does takes.

`agents` moves it from event to event.
"""

import math
import random
from dataclasses import dataclass, field, replace

from hpcdl.core.model.incarnation import Placement
from hpcdl.core.model.job import LARGEST
from hpcdl.core.model.profile import Profile
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.workload import SimJob


@dataclass(slots=True)
class PastIncarnations:
    """What is left of a job's earlier incarnations. `step`: of its last durable checkpoint."""

    step: float = 0.0
    started: bool = False
    nodes: tuple[str, ...] = ()
    gpus: int = 0
    attached: bool = False


@dataclass(slots=True)
class SimulatedTrainer:
    """One incarnation on all its nodes; `parts`: those whose processes are there.

    `since`: when `step` was true and from when on it trains, None while it does not. `turn`: rises with whatever makes
    what was scheduled before pointless. `arrived`: nodes whose agent has taken the request that is under way.

    `in_place`: its ranks can form new memberships; `membership`: the newest one that they know; `formed`: they
    have formed one; `lost`: nodes of it that are gone. `up_at`: when the processes that it began with are up.
    `since_of`: the membership for which each node was requested. `unsaved_s`: seconds of training since its last
    checkpoint. `alone_rate`: its rate with its GPUs to itself. `fails_at`, `progress_at`: when it will fail, and tell
    its progress, if it trains until then.
    """

    job: int
    number: int
    nodes: tuple[str, ...]
    placement: Placement | None
    in_place: bool = False
    parts: set[str] = field(default_factory=set)
    arrived: set[str] = field(default_factory=set)
    step: float = 0.0
    since: float | None = None
    rate: float = 0.0
    turn: int = 0
    stopping: bool = False
    membership: int = 0
    formed: bool = False
    lost: set[str] = field(default_factory=set)
    up_at: float = 0.0
    since_of: dict[str, int] = field(default_factory=dict)
    unsaved_s: float = 0.0
    alone_rate: float = 0.0
    fails_at: float = math.inf
    progress_at: float = math.inf

    def step_at(self, now: float) -> float:
        """Steps done by `now`."""
        return self.step if self.since is None else self.step + max(0.0, now - self.since) * self.rate

    def settle(self, now: float) -> None:
        """Stops its training at `now`, at the step that it came to."""
        self.step, self.since = self.step_at(now), None
        self.turn += 1


@dataclass(frozen=True, slots=True)
class Delays:
    """How long things take a trainer, from the truth about its job; chance depends on the seed, not on when."""

    conditions: Conditions

    def startup_s(self, job: SimJob, past: PastIncarnations, trainer: SimulatedTrainer, waited_s: float) -> float:
        """From the grant of GPUs to the first step. `waited_s`: since the job's submit.

        What of a first start needs no GPU (`gate_s`) has been done since the submit.
        """
        placement = trainer.placement
        if placement is None:
            raise ValueError("a trainer at the gate does not start up")
        if past.started:
            moved = bool(past.nodes) and past.nodes != placement.nodes
            seconds = job.profile.resume_for(past.gpus, len(placement.gpus), moved)
        else:
            seconds = job.profile.startup_s - min(job.profile.gate_s, max(0.0, waited_s))
        return seconds * self._factor(job, trainer, "startup")

    def gate_s(self, job: SimJob, trainer: SimulatedTrainer) -> float:
        """Seconds from a warm start to the gate."""
        return (job.profile.gate_s or job.profile.startup_s) * self._factor(job, trainer, "startup")

    def join_s(self, job: SimJob, trainer: SimulatedTrainer) -> float:
        """From the start of the processes on one more node until they can be taken in."""
        profile = job.profile
        return (profile.startup_s if profile.join_s is None else profile.join_s) * self._factor(job, trainer, "join")

    def rescale_s(self, job: SimJob, trainer: SimulatedTrainer, before: int, after: int) -> float:
        """Without progress, from the moment at which all members know: from `before` nodes to `after`."""
        if before == after:
            after -= 1  # the same number of others: what a loss costs
        return job.profile.rescale_for(before, after) * self._factor(job, trainer, f"membership {trainer.membership}")

    def save_s(self, job: SimJob, trainer: SimulatedTrainer, moved: bool) -> float:
        """From the suspend signal until its processes are gone."""
        return job.profile.save_for(moved) * self._factor(job, trainer, "save")

    def fails_after_s(self, trainer: SimulatedTrainer) -> float:
        """Seconds of training until it fails; infinite without failures."""
        if not self.conditions.mtbf_s:
            return math.inf
        return self._random(trainer, "failure").expovariate(1 / self.conditions.mtbf_s)

    def _factor(self, job: SimJob, trainer: SimulatedTrainer, what: str) -> float:
        sigma = math.hypot(self.conditions.jitter, job.profile.times_spread)
        return math.exp(self._random(trainer, what).gauss(0.0, sigma)) if sigma else 1.0

    def _random(self, trainer: SimulatedTrainer, what: str) -> random.Random:
        return random.Random(f"{self.conditions.seed}/{trainer.job}/{trainer.number}/{what}")


OF_STARTS = ("startup_s", "gate_s", "resume_s", "resume_up_s", "move_s", "join_s")
OF_SAVES = ("save_s", "move_save_s")


def drawn(job: SimJob, number: int, conditions: Conditions) -> SimJob:
    """The job as it really is, where jobs differ from what their workload says by `Conditions.spread`."""
    if not conditions.spread:
        return job

    def factor(what: str) -> float:
        return math.exp(random.Random(f"{conditions.seed}/{number}/{what}").gauss(0.0, conditions.spread))

    steps = min(LARGEST, max(1, round(job.steps * factor("length"))))
    profile = _times_by(_times_by(job.profile, OF_STARTS, factor("starts")), OF_SAVES, factor("saves"))
    return replace(job, steps=steps, profile=profile)


def _times_by(profile: Profile, names: tuple[str, ...], factor: float) -> Profile:
    """The profile with these times so many times as long, as far as it has them."""
    times = {name: seconds * factor for name in names if (seconds := getattr(profile, name)) is not None}
    return replace(profile, **times)


def told_steps(job: SimJob) -> int | None:
    """The total number of steps that it tells on submit; None: it tells none."""
    return predicted_total(job, 0.0) if job.believed_steps is None else job.believed_steps or None


def predicted_total(job: SimJob, step: float) -> int:
    """The total number of steps that its trainer would predict at `step`."""
    left = job.steps - step
    if job.predicted is None or left <= 0:
        return job.steps
    return math.ceil(step + max(1.0, left * math.exp(job.predicted * left / job.steps)))
