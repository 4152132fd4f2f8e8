"""Hand-made views of elastic trainers on nodes, and the answer of trying everything."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.core.model.plan import JobView, NodeView, Plan, Policy, View, check
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import JobState

ELASTIC = Profile(
    "elastic",
    ((1, 1, 10.0), (2, 1, 18.0), (4, 1, 32.0), (8, 1, 50.0)),
    startup_s=20.0,
    save_s=5.0,
    resume_s=20.0,
    grow_s=20.0,
    shrink_s=5.0,
)
STEEP = replace(ELASTIC, name="steep", points=((1, 1, 1.0), (2, 1, 2.0), (8, 1, 8.0)))
GPUS = Profile("gpus", ((1, 1, 1.0), (1, 4, 3.0), (2, 4, 5.0), (4, 4, 9.0)), startup_s=10.0, save_s=2.0, resume_s=8.0)


def nodes(many: int, size: int = 1, kind: str = "", first: int = 1, until: float | None = None) -> tuple[NodeView, ...]:
    return tuple(NodeView(f"n{at:03d}", tuple(range(size)), kind, until=until) for at in range(first, first + many))


def waiting(number: int, profile: Profile | None = ELASTIC, low: int = 1, high: int = 8, **more: object) -> JobView:
    known: dict[str, object] = {
        "name": f"j{number}",
        "state": JobState.QUEUED,
        "gpus_min": 1,
        "gpus_max": 1,
        "nodes": low,
        "nodes_max": high,
        "step": 0,
        "total": 1_000_000,
        "profile": profile,
        "placement": None,
        "target": None,
        "leaving": False,
        "can_suspend": True,
        "blocked": "",
        "submitted_at": float(number),
        "rescale": "in-process",
    }
    return JobView(id=number, **(known | more))  # type: ignore[arg-type]


def on(names: Sequence[str], size: int = 1) -> Placement:
    return Placement(tuple(Share(name, tuple(range(size))) for name in sorted(names)))


def training(number: int, names: Sequence[str], profile: Profile | None = ELASTIC, **more: object) -> JobView:
    size = int(str(more.get("gpus_max", 1)))
    held = on(names, size)
    known: dict[str, object] = {
        "state": JobState.RUNNING,
        "placement": held,
        "target": held,
        "in_place": True,
        "members": tuple(names),
        "step": 1,
        "step_at": 1000.0,
        "held_since": 0.0,
        "started_at": 0.0,
    }
    return waiting(number, profile, **(known | more))  # type: ignore[arg-type]


def view(*jobs: JobView, there: Sequence[NodeView], objective: str = "throughput", now: float = 1000.0) -> View:
    return View(now, tuple(there), jobs, objective)


def decide(policy: Policy, seen: View) -> Plan:
    """The plan, which keeps what plans promise, and is the same when asked again, also by a view made anew."""
    plan = policy.decide(seen)
    check(plan, seen)
    said = tuple(plan.targets)
    check(replace(plan, targets=said), seen)
    assert all(target.reason.strip() for target in said)
    again = policy.decide(replace(seen, jobs=tuple(replace(each) for each in seen.jobs)))
    assert tuple(again.targets) == said
    assert (again.warm, again.wake_at, again.optimal) == (plan.warm, plan.wake_at, plan.optimal)
    return plan


def counts(plan: Plan) -> list[int]:
    return [0 if each.placement is None else len(each.placement.shares) for each in plan.targets]


def names(plan: Plan) -> list[tuple[str, ...]]:
    return [() if each.placement is None else each.placement.nodes for each in plan.targets]


def reasons(plan: Plan) -> list[str]:
    return [each.reason for each in plan.targets]


def worth(job: JobView, many: int, horizon_s: float) -> float:
    """Eq. 13 to 16 for one trainer of one group of nodes, in steps/s."""
    assert job.profile is not None
    held = 0 if job.placement is None else len(job.placement.shares)
    rate = job.profile.rate(1, many) if many else 0.0
    before = job.profile.rate(1, held) if held else 0.0
    cost_s = 0.0
    if many > held and held:
        cost_s = job.profile.grow_s or 0.0
    elif many < held:
        cost_s = (job.profile.shrink_s or 0.0) if held > 1 else job.profile.save_s
    return horizon_s * rate - before * cost_s


def best(jobs: Sequence[JobView], capacity: int, horizon_s: float) -> float:
    """The highest value of any choice of counts, by trying all."""
    sizes = [[0, *range(job.nodes, min(job.nodes_max, capacity) + 1)] for job in jobs]
    return max(
        sum(worth(job, many, horizon_s) for job, many in zip(jobs, each, strict=True))
        for each in product(*sizes)
        if sum(each) <= capacity
    )
