"""Hand-made views and workloads for the policies of adaptive/."""

from dataclasses import replace

from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.core.model.plan import JobView, NodeView, Plan, Policy, View, check
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import JobState

CONCAVE = Profile("concave", ((1, 1, 1.0), (1, 2, 1.7), (1, 4, 2.6), (1, 8, 3.4)), 60.0, 5.0, 25.0)
FLAT = Profile("flat", ((1, 1, 2.0), (1, 2, 2.2), (1, 4, 2.1)), 60.0, 5.0, 25.0)
LINEAR = Profile("linear", ((1, 1, 1.0), (1, 8, 8.0)), 60.0, 5.0, 25.0, kinds=(("k80", ((1, 1, 0.2), (1, 8, 1.6))),))


def node(name: str, size: int, kind: str = "") -> NodeView:
    return NodeView(name, tuple(range(size)), kind)


def job(number: int, total: int | None = 1000, **more: object) -> JobView:
    known: dict[str, object] = {
        "name": f"j{number}",
        "state": JobState.QUEUED,
        "gpus_min": 1,
        "gpus_max": 8,
        "nodes": 1,
        "step": 0,
        "profile": CONCAVE,
        "placement": None,
        "target": None,
        "leaving": False,
        "can_suspend": True,
        "blocked": "",
        "submitted_at": float(number),
    }
    return JobView(id=number, total=total, **(known | more))  # type: ignore[arg-type]


def running(number: int, *gpus: int, on: str = "n1", total: int | None = 1000, **more: object) -> JobView:
    held = Placement((Share(on, gpus),))
    known: dict[str, object] = {
        "state": JobState.RUNNING,
        "placement": held,
        "target": held,
        "started_at": 0.0,
        "step": 1,
        "step_at": 1000.0,
        "held_since": 0.0,
    }
    return job(number, total, **(known | more))


def view(
    *jobs: JobView, nodes: tuple[NodeView, ...] = (node("n1", 8),), now: float = 1000.0, objective: str = "jct"
) -> View:
    return View(now, nodes, jobs, objective=objective)


def decide(policy: Policy, seen: View) -> Plan:
    """The plan, which keeps what plans promise and is the same when asked again, also by a view made anew."""
    plan = policy.decide(seen)
    check(plan, seen)
    assert policy.decide(seen) == plan
    anew = replace(seen, jobs=tuple(replace(each) for each in seen.jobs))
    assert policy.decide(anew) == plan
    return plan


def gpus(plan: Plan) -> list[str]:
    told = []
    for target in plan.targets:
        place = target.placement
        told.append("+".join(f"{s.node}:{','.join(map(str, s.gpus))}" for s in place.shares) if place else "-")
    return told


def counts(plan: Plan) -> list[int]:
    return [0 if each.placement is None else len(each.placement.gpus) for each in plan.targets]


def reasons(plan: Plan) -> list[str]:
    return [target.reason for target in plan.targets]
