"""What holds in every view, and in every simulated run on nodes that come and go."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcdl.core.model.incarnation import Placement
from hpcdl.core.model.plan import JobView, NodeView, Policy, View
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import JobState, validate
from hpcdl.harvest import Harvest
from hpcdl.milp import BFTrainer, EqualShare, Reallocation
from hpcdl.policies import all_policies
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.engine import simulate
from hpcdl.sim.workload import NodeSpell, SimJob, Workload
from tests.milp.trainer_views import ELASTIC, GPUS, STEEP, decide, on, training, waiting
from tests.support.seeds import seeds

OBJECTIVES = ["throughput", "efficiency", "priority", "jct", "deadline", "makespan", "fair"]
PROFILES = [ELASTIC, STEEP, GPUS, replace(GPUS, name="k80s", kinds=(("k80", ((1, 1, 0.2), (4, 2, 1.5))),)), None]
STATES = ["waits", "waits", "trains", "trains", "restarts", "fixed", "stuck", "leaves", "about", "blocked", "grows"]


@st.composite
def views(draw: st.DrawFn) -> View:
    """Nodes of two kinds and sizes, some of which leave soon, are away or gone; and jobs in all states."""
    sizes = st.sampled_from([(1, "v100"), (4, "v100"), (4, "k80")])
    nodes = []
    for at in range(draw(st.integers(0, 12))):
        size, kind = draw(sizes)
        until = draw(st.sampled_from([None, None, 1010.0, 1060.0, 5000.0]))
        nodes.append(NodeView(f"n{at:02d}", tuple(range(size)), kind, until=until))
    free: dict[tuple[int, str], list[str]] = {}
    for each in nodes:
        free.setdefault((len(each.gpus), each.kind), []).append(each.name)
    away = draw(st.sampled_from(["", "", "bare", "silent"]))
    gone = [] if not nodes else [draw(st.sampled_from([each.name for each in nodes]))]
    jobs: list[JobView] = []
    for number in range(1, draw(st.integers(0, 7)) + 1):
        size, kind = draw(sizes)
        low = draw(st.integers(1, 3))
        more: dict[str, object] = {
            "low": low,
            "high": draw(st.integers(low, 8)),
            "gpus_max": size,
            "gpus_min": draw(st.sampled_from([1, size])),
            "profile": draw(st.sampled_from(PROFILES)),
            "submitted_at": draw(st.sampled_from([float(number), -1e6])),
            "total": draw(st.sampled_from([None, 100, 100_000])),
            "deadline": draw(st.sampled_from([None, 900.0, 2000.0, 1e6])),
            "weight": draw(st.sampled_from([0.5, 1.0, 4.0])),
            "rescale": draw(st.sampled_from(["restart", "torchrun", "in-process"])),
        }
        state = draw(st.sampled_from(STATES))
        many = draw(st.integers(1, min(4, int(str(more["high"])))))
        mine = free.get((size, kind), [])[:many]
        if state == "waits" or not mine:
            jobs.append(waiting(number, **more))  # type: ignore[arg-type]
            continue
        free[size, kind] = free[size, kind][many:]
        jobs.append(_standing(number, state, mine, size, more))
    there = tuple(each for each in nodes if not away or each.name not in gone)
    bare = frozenset(gone) if away == "bare" else frozenset()
    gaps = tuple(draw(st.lists(st.floats(0.1, 1e4), max_size=20)))
    return View(1000.0, there, tuple(jobs), draw(st.sampled_from(OBJECTIVES)), bare, gaps)


def _standing(number: int, state: str, mine: list[str], size: int, more: dict[str, object]) -> JobView:
    job = training(number, mine, **more)  # type: ignore[arg-type]
    if state == "restarts":
        return replace(job, in_place=False, members=(), rescale="restart")
    if state == "fixed":
        return replace(job, in_place=False, members=(), can_suspend=False)
    if state == "stuck":
        return replace(job, can_suspend=False)
    if state == "leaves":
        return replace(job, leaving=True, state=JobState.SUSPENDING, step_at=None, target=None, in_place=False)
    if state == "blocked":
        return replace(job, blocked="held by its user", leaving=True, step_at=None, in_place=False)
    if state == "about":
        return replace(job, placement=None, in_place=False, members=(), step_at=None, state=JobState.QUEUED)
    if state == "grows":  # one of its nodes has joined, the others are still to come
        return replace(job, placement=on(mine[:1], size), members=tuple(mine[:1]))
    return job


SETTINGS = st.builds(
    Reallocation,
    st.sampled_from([None, 10.0, 120.0, 3000.0]),
    st.sampled_from([None, 1, 3]),
    st.sampled_from(["adaptive", "marble"]),
)


@given(views(), SETTINGS, st.sampled_from([BFTrainer, EqualShare, Harvest]))
@settings(max_examples=seeds(60), deadline=None)
def test_plans_keep_their_promises(
    seen: View, reallocation: Reallocation, policy: type[BFTrainer | EqualShare | Harvest]
) -> None:
    """`decide` checks: no GPU twice, numbers in range, who cannot be suspended keeps on, a reason for everyone."""
    made: Policy = policy(reallocation)
    plan = decide(made, seen)
    placed = {target.job: target.placement for target in plan.targets}
    for job in seen.jobs:
        target, held = placed[job.id], job.placement
        if job.nodes_max > 1 and target is not None and target is not held:
            kinds = {seen.kind_of(name) for name in target.nodes}
            assert len(kinds) == 1, "a trainer is on one kind of GPU at a time"
        if job.rescale == "torchrun" and job.in_place and target is not None and held is not None:
            stays = not set(held.shares).isdisjoint(target.shares)
            assert not stays or job.members[0] in target.nodes or job.members[0] not in seen.gpus


@given(views(), SETTINGS)
@settings(max_examples=seeds(60), deadline=None)
def test_a_plan_stands_until_something_happens(seen: View, reallocation: Reallocation) -> None:
    """Once every job has what the plan gives it, in place, the plan is to leave it so."""
    made = BFTrainer(replace(reallocation, t_fwd_s=120.0))
    targets = {target.job: target.placement for target in decide(made, seen).targets}
    jobs = []
    for job in seen.jobs:
        target = targets[job.id]
        if job.blocked or job.standing.name == "BETWEEN":
            return
        runs: dict[str, object] = {"placement": target, "target": target}
        if target is not job.placement:
            names = () if target is None else target.nodes
            runs |= {"in_place": target is not None, "members": names}
            runs |= {"can_suspend": True, "step_at": 1000.0, "state": JobState.RUNNING}
        jobs.append(replace(job, **runs))  # type: ignore[arg-type]
    if any(node.until is not None for node in seen.nodes) or seen.objective in ("jct", "deadline"):
        return  # what does not pay is cut after the optimum; what is left changes with time
    if any(job.profile is None or not job.in_place for job in jobs if job.placement is not None):
        return
    settled = replace(seen, jobs=tuple(jobs))
    again = {target.job: target.placement for target in decide(made, settled).targets}
    assert again == targets


CURVES = [
    Profile("a", ((1, 2, 1.0), (2, 2, 1.8), (4, 2, 3.0)), 20.0, 3.0, 10.0, grow_s=5.0, shrink_s=1.0),
    Profile("b", ((1, 1, 2.0), (1, 2, 2.4), (4, 2, 5.0)), 20.0, 3.0, 10.0, kinds=(("k80", ((1, 1, 0.5),)),)),
]
JOBS = st.lists(
    st.tuples(
        st.integers(0, 300),
        st.integers(0, 1),
        st.integers(1, 900),
        st.integers(1, 3),
        st.integers(0, 3),
        st.sampled_from(["restart", "in-process", "torchrun"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=10,
)
SPELLS = st.lists(st.tuples(st.integers(0, 200), st.integers(5, 400)), max_size=5)


# A trainer that grows in place, and shrinks before its new node has joined: the one where it trains must attempt.
GROWING = [
    *[(0, 0, 1, 1, 0, "restart", False)] * 4,
    (0, 0, 186, 1, 0, "restart", False),
    (41, 1, 265, 3, 0, "restart", False),
    (119, 0, 94, 1, 0, "restart", False),
    (119, 0, 238, 1, 2, "restart", False),
    (132, 0, 14, 1, 1, "in-process", False),
    (1, 0, 1, 1, 0, "restart", False),
]


@pytest.mark.parametrize("policy", ["bftrainer", "equal-share", "harvest"])
@given(JOBS, SPELLS, st.sampled_from(OBJECTIVES), SETTINGS, st.integers(0, 99))
@example(GROWING, [(0, 203), (0, 212)], "throughput", Reallocation(None), 0)
@settings(max_examples=seeds(25), deadline=None)
def test_everyone_finishes_on_nodes_that_come_and_go(
    policy: str,
    drawn: list[tuple[int, int, int, int, int, str, bool]],
    spells: list[tuple[int, int]],
    objective: str,
    reallocation: Reallocation,
    seed: int,
) -> None:
    jobs = tuple(
        SimJob(
            float(at), f"j{number}", CURVES[curve], steps, 1, 2, nodes=low, nodes_max=low + more, rescale=way, told=told
        )
        for number, (at, curve, steps, low, more, way, told) in enumerate(sorted(drawn))
    )
    always = tuple(NodeSpell(f"n{at}", 2, "v100") for at in range(3))
    come = tuple(
        NodeSpell(f"x{at}", 2, "v100", float(begin), float(begin + long)) for at, (begin, long) in enumerate(spells)
    )
    conditions = Conditions(seed, objective=objective, checkpoint_s=20.0)
    run = simulate(Workload("drawn", jobs, always + come), policy, all_policies(reallocation), conditions)
    assert run.problems == ()
    assert not run.world.active
    validate(run.world)
    for job in run.history.jobs:
        for attempt in job.attempts:
            asked = run.jobs[job.id]
            assert isinstance(attempt.placement, Placement)
            assert len(attempt.placement.shares) <= (asked.nodes_max or asked.nodes)


def test_first_come_first_served_is_kept_in_a_run() -> None:
    """No trainer starts before one that was submitted earlier and could run."""
    jobs = tuple(
        SimJob(5.0 * number, f"j{number}", CURVES[0], 200 + 37 * (number * 7 % 11), 1, 2, nodes=1, nodes_max=4)
        for number in range(20)
    )
    nodes = tuple(NodeSpell(f"n{at}", 2) for at in range(4))
    for policy in ("bftrainer", "equal-share"):
        policies = all_policies(Reallocation(parallel=2))
        run = simulate(Workload("w", jobs, nodes), policy, policies, Conditions(objective="efficiency"))
        started = [job.first_start_at or 0.0 for job in run.world.jobs.values()]
        assert started == sorted(started)
        spans = sorted(
            (attempt.start_at, attempt.end_at or attempt.start_at)
            for job in run.history.jobs
            for attempt in job.attempts
        )
        assert max(sum(begin <= at < end for begin, end in spans) for at, _ in spans) <= 2
