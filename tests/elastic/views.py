"""Hand-made views for the policies of elastic/."""

from dataclasses import replace

from hpcdl.core.model import JobState, Placement, Share
from hpcdl.core.plan import JobView, NodeView, Plan, View, check
from hpcdl.core.policy import Policy
from hpcdl.core.profile import Profile

# The paper's example: 1.7 times as fast on two GPUs, 2.4 times on four. The costs are those of figure 3.
RESNET = Profile(
    "resnet",
    ((1, 1, 1.0), (1, 2, 1.7), (1, 4, 2.4)),
    startup_s=110.0,
    gate_s=83.0,
    resume_s=27.0,
    resume_up_s=37.0,
    move_save_s=35.0,
    move_s=207.0,
)


def node(name: str, size: int, kind: str = "") -> NodeView:
    return NodeView(name, tuple(range(size)), kind)


def job(number: int, total: int | None = 1000, **more: object) -> JobView:
    known: dict[str, object] = {
        "name": f"j{number}",
        "state": JobState.QUEUED,
        "gpus_min": 1,
        "gpus_max": 4,
        "counts": (1, 2, 4),
        "nodes": 1,
        "step": 0,
        "profile": RESNET,
        "placement": None,
        "target": None,
        "leaving": False,
        "can_suspend": True,
        "blocked": "",
        "submitted_at": 0.0,
    }
    return JobView(id=number, total=total, **(known | more))  # type: ignore[arg-type]


def running(number: int, *gpus: int, on: str = "n1", total: int | None = 1000, **more: object) -> JobView:
    held = Placement((Share(on, gpus),))
    known: dict[str, object] = {
        "state": JobState.RUNNING,
        "placement": held,
        "target": held,
        "started_at": 0.0,
        "step_at": 1000.0,
        "held_since": 0.0,
    }
    return job(number, total, **(known | more))


def view(*jobs: JobView, nodes: tuple[NodeView, ...] = (node("n1", 4),), now: float = 1000.0) -> View:
    return View(now, nodes, jobs)


def decide(policy: Policy, seen: View) -> Plan:
    """The plan, which keeps what plans promise and is the same when asked again."""
    plan = policy.decide(seen)
    check(plan, seen)
    assert policy.decide(seen) == plan
    return plan


def adopted(seen: View, plan: Plan) -> View:
    """The next view when nothing has happened but that the plan was adopted."""
    targets = plan.by_job()
    return replace(seen, jobs=tuple(replace(each, target=targets[each.id].placement) for each in seen.jobs))


def gpus(plan: Plan) -> list[str]:
    told = []
    for target in plan.targets:
        place = target.placement
        told.append("+".join(f"{s.node}:{','.join(map(str, s.gpus))}" for s in place.shares) if place else "-")
    return told


def reasons(plan: Plan) -> list[str]:
    return [target.reason for target in plan.targets]
