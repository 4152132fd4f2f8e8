"""Small simulated runs: a policy that follows a script, and what happened when."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.core.model.plan import Plan, Policies, View
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import Target, validate
from hpcdl.policies import all_policies
from hpcdl.sim import SimJob, Workload, cluster, simulate
from hpcdl.sim.conditions import Conditions, SimulatedRun
from hpcdl.sim.workload import NodeSpell

COSTS = Profile(
    "costs",
    ((1, 1, 1.0), (1, 2, 2.0), (1, 4, 4.0), (2, 1, 1.5)),
    startup_s=10.0,
    gate_s=4.0,
    save_s=3.0,
    resume_s=5.0,
    resume_up_s=7.0,
    move_save_s=11.0,
    move_s=13.0,
)
"""A profile whose times all differ."""

Places = Mapping[int, Placement]


def on(node: str, *gpus: int) -> Placement:
    """A placement on one node."""
    return Placement((Share(node, gpus),))


class Script:
    """A policy that gives what is written: from each moment on, jobs have these placements and the others none."""

    name = "script"

    def __init__(self, *moments: tuple[float, Places], warm: Sequence[int] = ()) -> None:
        self.moments, self.warm = moments, warm

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        places = [places for at, places in self.moments if at <= view.now][-1]
        targets = tuple(Target(job.id, places.get(job.id), "as written") for job in view.jobs)
        later = [at for at, _ in self.moments if at > view.now]
        there = {job.id for job in view.jobs}
        warm = tuple(each for each in self.warm if each in there and each in places)
        return Plan(targets, warm, min(later, default=None))


class Calls:
    """A policy that is a function."""

    name = "script"

    def __init__(self, decide: Callable[[View], Plan]) -> None:
        self.decide = decide


def jobs_of(*steps: int, profile: Profile = COSTS, submit_s: float = 0.0, **more: Any) -> tuple[SimJob, ...]:
    """Jobs that are submitted together, with so many steps each."""
    return tuple(SimJob(submit_s, f"j{number}", profile, each, **more) for number, each in enumerate(steps, 1))


def run(
    jobs: Sequence[SimJob],
    nodes: Sequence[NodeSpell] | None = None,
    policy: str | Any = "marble",
    **conditions: Any,
) -> SimulatedRun:
    """Simulates, and checks that what is left makes sense."""
    policies = all_policies()
    name = policy
    if not isinstance(policy, str):
        policies, name = Policies(), "script"
        policies.register("script", lambda: policy)
    workload = Workload("made", tuple(jobs), tuple(cluster(1, 4) if nodes is None else nodes))
    if name == "script":
        conditions = {"exempt_starts": 0.0, **conditions}  # it moves jobs whenever it says so
    ran = simulate(workload, name, policies, Conditions(**conditions))
    validate(ran.world)
    return ran


def happened(ran: SimulatedRun, kind: type[ev.Event], job: int = 1) -> list[float]:
    """When events of that kind happened to a job."""
    events = [(record.at, record.event) for record in ran.records if isinstance(record.event, kind)]
    return [round(at, 6) for at, event in events if getattr(event, "job", job) == job]


def ends(ran: SimulatedRun) -> list[float]:
    """When each job ended, in the order of their ids."""
    return [round(job.finished_at, 6) for job in ran.history.jobs if job.finished_at is not None]
