"""What every registered policy promises, on small workloads that nobody thought of."""

import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcdl.core.model.plan import Plan, Policies, Policy, View, check
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import JobState, validate
from hpcdl.policies import all_policies
from hpcdl.sim import SimJob, Workload, simulate
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.workload import NodeSpell
from tests.sim.runs import COSTS
from tests.support.seeds import seeds

OBJECTIVES = ("jct", "makespan", "throughput", "deadline", "fair")
PROFILES = (
    COSTS,
    Profile("flat", ((1, 1, 2.0),), startup_s=3.0, save_s=1.0, resume_s=2.0),
    Profile("falling", ((1, 1, 1.0), (1, 2, 1.8), (1, 3, 1.2), (2, 1, 0.9)), startup_s=20.0, save_s=2.0, resume_s=8.0),
    Profile("free", ((1, 1, 1.0), (1, 4, 3.0), (2, 4, 5.0)), kinds=(("k80", ((1, 1, 0.3),)), ("v100", ((1, 4, 9.0),)))),
)


class Watched:
    """A policy, asked twice each time; what it says and what it leaves behind are looked at."""

    def __init__(self, policy: Policy) -> None:
        self.name, self.policy, self.asked = policy.name, policy, 0

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        self.asked += 1
        before = copy.deepcopy(view)
        plan = self.policy.decide(view)
        said = tuple(plan.targets)
        assert view == before, "it changed the view"
        check(plan, view)
        check(replace(plan, targets=said), view)  # also what it did not name
        assert all(target.reason.strip() for target in said)
        jobs = tuple(replace(job) for job in view.jobs)
        fresh = View(view.now, view.nodes, jobs, view.objective, view.bare, view.gaps, view.arrivals)
        again = self.policy.decide(fresh)  # without anything that was remembered in the view
        assert tuple(again.targets) == said, "another plan for the same view"
        assert (again.warm, again.wake_at) == (plan.warm, plan.wake_at)
        return plan


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    mixed = draw(st.booleans())  # several kinds of GPUs: then no job is on several nodes, which one kind has to have
    kind = draw(st.sampled_from(["", "k80", "v100"]))
    kinds = st.sampled_from(["", "k80", "v100"]) if mixed else st.just(kind)
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    nodes = [NodeSpell(f"n{number}", size, draw(kinds)) for number, size in enumerate(sizes, 1)]
    if draw(st.booleans()):  # one more that comes, or comes and goes
        begin = draw(st.sampled_from([0.0, 30.0]))
        nodes.append(NodeSpell("n9", 2, draw(kinds), begin, begin + draw(st.sampled_from([40.0, 300.0]))))
    jobs = [draw(sim_jobs(number, sizes, 1 if mixed else len(sizes))) for number in range(draw(st.integers(1, 8)))]
    return Workload("drawn", tuple(sorted(jobs, key=lambda job: job.submit_s)), tuple(nodes))


@st.composite
def sim_jobs(draw: st.DrawFn, number: int, sizes: list[int], most: int) -> SimJob:
    submit_s = draw(st.sampled_from([0.0, 0.0, 10.0, 25.0, 70.0]))
    wide = draw(st.integers(1, most))
    limit = sorted(sizes, reverse=True)[wide - 1]  # so many GPUs have `wide` nodes
    low = draw(st.integers(1, limit))
    high = draw(st.integers(low, 5))
    some = draw(st.sets(st.integers(low, high), max_size=3))
    more: dict[str, Any] = {
        "gpus_min": low,
        "gpus_max": draw(st.sampled_from([high, None])),
        "gpus_counts": tuple(sorted({low, *some})) if draw(st.booleans()) else (),
        "nodes": wide if draw(st.booleans()) else 1,
        "user": draw(st.sampled_from(["", "ada", "bob"])),
        "told": draw(st.integers(0, 3)) > 0,
    }
    if draw(st.booleans()):
        more["nodes_max"] = most
    if draw(st.booleans()):
        more["deadline_s"] = submit_s + draw(st.sampled_from([0.0, 60.0, 400.0]))
    if draw(st.integers(0, 4)) == 0:
        more["predicted"] = draw(st.floats(-1.0, 1.0))
    steps = draw(st.integers(1, 200))
    return SimJob(submit_s, f"j{number}", draw(st.sampled_from(PROFILES)), steps, **more)


@pytest.mark.parametrize("name", all_policies().names())
@settings(
    max_examples=seeds(4),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    workload=workloads(),
    fails=st.booleans(),
    warm=st.booleans(),
    objective=st.sampled_from(OBJECTIVES),
    seed=st.integers(0, 9),
)
def test_promises(name: str, workload: Workload, fails: bool, warm: bool, objective: str, seed: int) -> None:
    watched = Watched(all_policies().make(name))
    policies = Policies()
    policies.register("watched", lambda: watched)
    mtbf_s = 400.0 if fails else 0.0
    conditions = Conditions(seed, jitter=0.1, mtbf_s=mtbf_s, checkpoint_s=20.0, warm=warm, objective=objective)
    ran = simulate(workload, "watched", policies, conditions)
    assert ran.problems == ()  # every promise was kept, and everyone finished
    assert watched.asked > 0
    validate(ran.world)
    assert [job.state for job in ran.history.jobs] == [JobState.DONE] * len(workload.jobs)
    for job in ran.history.jobs:
        asked = ran.jobs[job.id]
        for attempt in job.attempts:
            assert asked.nodes <= len(attempt.placement.shares) <= (asked.nodes_max or asked.nodes)
            for share in attempt.placement.shares:
                assert len(share.gpus) >= asked.gpus_min
                assert asked.gpus_max is None or len(share.gpus) <= asked.gpus_max
                assert not asked.gpus_counts or len(share.gpus) in asked.gpus_counts
    held: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for span in ran.history.spans:
        held.setdefault((span.node, span.gpu), []).append((span.start_at, span.end_at))
    for spans in held.values():
        spans.sort()
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
