"""Views made by hand, and a bare loop that lives through a policy's decisions."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hpcdl.core.model.incarnation import Placement, Role, Share
from hpcdl.core.model.plan import JobView, NodeView, Plan, Policy, View, check
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import JobState

# Rates by (nodes, GPUs each): 4 GPUs of a node are less than twice as fast as 2.
CURVE = Profile("curve", ((1, 1, 1.0), (1, 2, 1.9), (1, 4, 2.8), (2, 1, 1.5), (2, 2, 2.9), (2, 4, 4.0)), startup_s=30.0)
FLAT = Profile("flat", ((1, 1, 1.0), (1, 4, 1.0)))


def job(number: int, **more: object) -> JobView:
    known: dict[str, object] = {
        "name": f"j{number}",
        "state": JobState.QUEUED,
        "gpus_min": 1,
        "gpus_max": 4,
        "nodes": 1,
        "step": 0,
        "total": 1000,
        "profile": CURVE,
        "placement": None,
        "target": None,
        "leaving": False,
        "can_suspend": True,
        "blocked": "",
        "submitted_at": 0.0,
    }
    return JobView(id=number, **(known | more))  # type: ignore[arg-type]


def on(*gpus: int, node: str = "n1") -> Placement:
    return Placement((Share(node, gpus),), Role.PRIMARY)


def running(number: int, placement: Placement, **more: object) -> JobView:
    return job(number, state=JobState.RUNNING, placement=placement, target=placement, **more)


def decide(policy: Policy, *jobs: JobView, now: float = 0.0, **sizes: int) -> Plan:
    """The plan, checked; asked twice."""
    return decide_on(
        policy, tuple(NodeView(name, tuple(range(n))) for name, n in (sizes or {"n1": 4}).items()), jobs, now
    )


def decide_on(policy: Policy, nodes: tuple[NodeView, ...], jobs: Sequence[JobView], now: float = 0.0) -> Plan:
    view = View(now, nodes, tuple(jobs))
    plan = policy.decide(view)
    check(plan, view)
    assert policy.decide(view) == plan
    assert all(target.reason for target in plan.targets)
    return plan


def gpus(plan: Plan) -> list[str]:
    """By job: `n1:0,1`, `n1:0+n2:0`, `-`."""
    told = []
    for target in plan.targets:
        place = target.placement
        told.append("+".join(f"{s.node}:{','.join(map(str, s.gpus))}" for s in place.shares) if place else "-")
    return told


def shapes(plan: Plan) -> list[tuple[int, int] | None]:
    """By job: (nodes, GPUs each)."""
    places = [target.placement for target in plan.targets]
    return [None if place is None else (len(place.shares), place.per_node) for place in places]


@dataclass
class Life:
    """What happened: by job id its start, its end and its placement."""

    started: dict[int, float] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)
    placed: dict[int, Placement] = field(default_factory=dict)


def live(policy: Policy, nodes: tuple[NodeView, ...], jobs: Sequence[JobView]) -> Life:
    """Every job from its submit to its end, on GPUs that nobody takes from it; AssertionError where one never ends."""
    life = Life()
    waiting = sorted(jobs, key=lambda each: each.submitted_at)
    here: dict[int, JobView] = {}
    now = 0.0
    while waiting or here:
        moments = [end for number, end in life.ended.items() if number in here]
        moments += [waiting[0].submitted_at] if waiting else []
        assert moments, f"{sorted(here)} wait for ever"
        now = min(moments)
        here = {number: each for number, each in here.items() if life.ended.get(number, now + 1) > now}
        while waiting and waiting[0].submitted_at <= now:
            each = waiting.pop(0)
            here[each.id] = each
        plan = decide_on(policy, nodes, [here[number] for number in sorted(here)], now)
        for target in plan.targets:
            each = here[target.job]
            if each.placement is not None:
                assert target.placement == each.placement, "nothing is preempted"
            elif target.placement is not None:
                life.started[each.id], life.placed[each.id] = now, target.placement
                here[each.id] = _runs(each, target.placement, now)
                life.ended[each.id] = now + _seconds(each, target.placement)
    return life


def _runs(each: JobView, placement: Placement, now: float) -> JobView:
    return replace(each, state=JobState.RUNNING, placement=placement, target=placement, step_at=now)


def _seconds(each: JobView, placement: Placement) -> float:
    if each.profile is None or each.total is None:
        return 100.0
    rate = each.profile.rate(placement.per_node, len(placement.shares))
    return each.profile.startup_s + each.total / rate
