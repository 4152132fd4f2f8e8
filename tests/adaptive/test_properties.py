"""What holds in every view, and in every simulated run."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl.adaptive import Adaptive, AdaptiveFifo, objectives
from hpcdl.adaptive.choice import pick
from hpcdl.adaptive.options import candidates
from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.core.model.plan import JobView, NodeView, Policies, View
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import JobState
from hpcdl.sim.conditions import Conditions, SimulatedRun
from hpcdl.sim.engine import simulate
from hpcdl.sim.workload import NodeSpell, SimJob, Workload
from tests.adaptive.views import CONCAVE, FLAT, LINEAR, decide, job, running
from tests.support.extent import one_of
from tests.support.seeds import seeds

PROFILES = [CONCAVE, FLAT, LINEAR, None]
OBJECTIVES = ["jct", "throughput", "fair", "makespan"]


@st.composite
def views(draw: st.DrawFn) -> View:
    """Nodes of two kinds, on which some jobs run, wait, leave, cannot be suspended or are blocked."""
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=7))
    nodes = tuple(
        NodeView(f"n{at}", tuple(range(size)), draw(st.sampled_from(["v100", "k80"]))) for at, size in enumerate(sizes)
    )
    free = {each.name: list(each.gpus) for each in nodes}
    jobs: list[JobView] = []
    for number in range(1, draw(st.integers(1, 9)) + 1):
        low = draw(st.integers(1, 3))
        more: dict[str, object] = {
            "profile": draw(st.sampled_from(PROFILES)),
            "gpus_min": low,
            "gpus_max": draw(st.integers(low, 8)),
            "submitted_at": draw(st.sampled_from([0.0, 900.0, 990.0])),
            "total": draw(st.sampled_from([None, 10, 1000, 100_000])),
        }
        spot = draw(st.sampled_from(sorted(free)))
        if draw(st.booleans()) and len(free[spot]) >= low:
            many = draw(st.integers(low, min(len(free[spot]), int(str(more["gpus_max"])))))
            gpus = tuple(free[spot][:many])
            free[spot] = free[spot][many:]
            state = draw(st.sampled_from(["trains", "fixed", "leaves", "blocked"]))
            more["can_suspend"] = state != "fixed"
            if state == "leaves":
                more |= {"leaving": True, "step_at": None, "state": JobState.SUSPENDING, "target": None}
            if state == "blocked":
                more["blocked"] = "held by its user"
            jobs.append(running(number, *gpus, on=spot, **more))  # type: ignore[arg-type]
        else:
            if draw(st.booleans()):
                more |= {"step": 5, "state": JobState.SUSPENDED, "last": Placement((Share(spot, (0,)),))}
            jobs.append(job(number, **more))  # type: ignore[arg-type]
    return View(1000.0, nodes, tuple(jobs), draw(st.sampled_from(OBJECTIVES)))


@given(views(), st.sampled_from([Adaptive(), AdaptiveFifo()]))
@settings(max_examples=seeds(40), deadline=None)
def test_plans_keep_their_promises_and_are_the_same_for_the_same_view(seen: View, policy: Adaptive) -> None:
    """`decide` checks: no GPU twice, numbers in range, who cannot be suspended keeps all, a reason for everyone."""
    plan = decide(policy, seen)
    assert all(number in plan.by_job() for number in plan.warm)


@given(views())
@settings(max_examples=seeds(30), deadline=None)
def test_a_decision_stands_when_it_is_carried_out(seen: View) -> None:
    """Asked again at the same moment, with every job on its way to its target, the policy wants the same counts."""
    plan = decide(Adaptive(), seen)
    targets = plan.by_job()
    before = {each.id: each.placement for each in seen.jobs}
    after = []
    for each in seen.jobs:
        target = targets[each.id].placement
        held = before[each.id]
        if each.blocked or (held is not None and target is not None and held.same_gpus(target)):
            after.append(replace(each, target=target))
        else:
            leaves = held is not None
            state = JobState.RESCALING if leaves else each.state
            after.append(
                replace(each, target=target, leaving=leaves, state=state, step_at=None, step=int(each.steps(seen.now)))
            )
    again = decide(Adaptive(), replace(seen, jobs=tuple(after)))
    worse = sum(
        one.placement is None and targets[one.job].placement is not None and not seen_blocked(seen, one.job)
        for one in again.targets
    )
    assert worse == 0


def seen_blocked(seen: View, number: int) -> bool:
    return next(bool(each.blocked) for each in seen.jobs if each.id == number)


@given(views(), st.data())
@settings(max_examples=seeds(30), deadline=None)
def test_one_more_gpu_is_never_worse(seen: View, data: st.DataObject) -> None:
    """For the same worth of every option that there was before, the exact counts are worth as much or more."""
    at = data.draw(st.integers(0, len(seen.nodes) - 1))
    larger = replace(seen.nodes[at], gpus=(*seen.nodes[at].gpus, len(seen.nodes[at].gpus)))
    more = replace(seen, nodes=(*seen.nodes[:at], larger, *seen.nodes[at + 1 :]))
    small, large = candidates(seen), candidates(more)
    one = pick(small, objectives.values(seen, small))
    other = pick(large, objectives.values(more, large))
    if one.optimal and other.optimal and len(small.pools) == len(large.pools):
        assert other.value >= one.value * (1 - 1e-9)


def policies() -> Policies:
    known = Policies()
    known.register("adaptive", Adaptive)
    known.register("adaptive-fifo", AdaptiveFifo)
    return known


CURVES = [
    Profile("a", ((1, 1, 1.0), (1, 2, 1.8), (1, 4, 3.0)), 20.0, 3.0, 10.0, gate_s=5.0),
    Profile("b", ((1, 1, 2.0), (1, 2, 2.4), (1, 4, 2.0)), 20.0, 3.0, 10.0, kinds=(("k80", ((1, 1, 0.5),)),)),
]
JOBS = st.lists(
    st.tuples(
        st.integers(0, 300), st.integers(0, 1), st.integers(1, 900), st.integers(1, 3), st.integers(0, 3), st.booleans()
    ),
    min_size=1,
    max_size=12,
)
NODES = (NodeSpell("n1", 4, "v100"), NodeSpell("n2", 3, "k80"))


def ran(workload: Workload, policy: str, objective: str, warm: bool = False) -> SimulatedRun:
    run = simulate(workload, policy, policies(), Conditions(objective=objective, warm=warm))
    assert run.problems == ()
    assert not run.world.active
    return run


@given(JOBS, st.sampled_from(["adaptive", "adaptive-fifo"]), st.sampled_from(OBJECTIVES), st.booleans())
@settings(max_examples=seeds(15), deadline=None)
def test_everyone_finishes(
    drawn: list[tuple[int, int, int, int, int, bool]], policy: str, objective: str, warm: bool
) -> None:
    jobs = tuple(
        SimJob(float(at), f"j{number}", CURVES[curve], steps, low, min(4, low + more), told=told)
        for number, (at, curve, steps, low, more, told) in enumerate(sorted(drawn))
    )
    run = ran(Workload("drawn", jobs, NODES), policy, objective, warm)
    assert {job.outcome for job in run.world.jobs.values()} == {JobState.DONE}


def test_the_order_of_start_is_kept() -> None:
    jobs = tuple(
        SimJob(10.0 * number, f"j{number}", CURVES[number % 2], 300 + 531 * (number * 7 % 11), 1 + number % 3, 4)
        for number in range(24)
    )
    started = [
        job.first_start_at for job in ran(Workload("w", jobs, NODES[:1]), "adaptive-fifo", "jct").world.jobs.values()
    ]
    assert started == sorted(started, key=lambda at: at or 0.0)
    free = [job.first_start_at for job in ran(Workload("w", jobs, NODES[:1]), "adaptive", "jct").world.jobs.values()]
    assert free != sorted(free, key=lambda at: at or 0.0)


@pytest.mark.parametrize("objective", ["jct", "throughput", "fair"])
@pytest.mark.parametrize("policy", ["adaptive", "adaptive-fifo"])
@pytest.mark.parametrize("wide", one_of(4, 1))
def test_no_job_waits_beyond_the_bound(monkeypatch: pytest.MonkeyPatch, policy: str, wide: int, objective: str) -> None:
    """Short jobs come faster than they can be served; the one that nobody wants is done within the bound.

    The bound: PATIENCE_S and PATIENCE_RUNS times its length after its submit it is overdue, and then nobody that came
    later is before it. So it waits at most for what came before it, and what came before it is done one after the other
    at worst, each in the time that it takes on its fewest GPUs and the starts that it needs.
    """
    monkeypatch.setattr(objectives, "PATIENCE_S", 600.0)
    monkeypatch.setattr(objectives, "PATIENCE_RUNS", 1.0)
    plain = Profile("plain", ((1, 1, 1.0), (1, 4, 1.05)), 5.0, 1.0, 4.0)
    flood = [SimJob(20.0 * number, f"s{number}", plain, 100, 1, 4) for number in range(90)]
    late = SimJob(30.0, "late", plain, 400, wide, 4)
    jobs = tuple(sorted([*flood, late], key=lambda each: each.submit_s))
    run = ran(Workload("flood", jobs, (NodeSpell("n1", 4),)), policy, objective)
    ends = {run.jobs[number].name: each.finished_at for number, each in run.world.jobs.items()}
    done = ends["late"]
    before_s = sum(each.steps + 50.0 for each in jobs if each.submit_s <= late.submit_s)
    assert done is not None
    assert done - late.submit_s <= 600.0 + late.steps + before_s + late.steps + 50.0
