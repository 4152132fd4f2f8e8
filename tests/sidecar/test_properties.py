"""Whatever the workload: no plan breaks a promise, and everyone finishes."""

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcdl.core.model.plan import Policies
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import validate
from hpcdl.sidecar import POLICIES
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.engine import simulate
from hpcdl.sim.results import summarise
from hpcdl.sim.workload import NodeSpell, SimJob, Workload
from tests.support.seeds import seeds

RATES = st.floats(0.1, 10.0)
SECONDS = st.floats(0.0, 300.0)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    def points() -> tuple[tuple[int, int, float], ...]:
        return tuple((1, gpus, draw(RATES)) for gpus in sorted(draw(st.sets(st.integers(1, 8), min_size=1))))

    startup_s = draw(SECONDS)
    return Profile(
        "p",
        points(),
        kinds=(("k80", points()),) if draw(st.booleans()) else (),
        startup_s=startup_s,
        gate_s=draw(st.floats(0.0, startup_s)),
        save_s=draw(SECONDS),
        resume_s=draw(SECONDS),
        resume_up_s=draw(st.none() | SECONDS),
        move_save_s=draw(st.none() | SECONDS),
        move_s=draw(st.none() | SECONDS),
    )


@st.composite
def jobs(draw: st.DrawFn) -> SimJob:
    nodes = draw(st.sampled_from((1, 1, 1, 2)))
    low = draw(st.integers(1, 2 if nodes == 2 else 4))
    counts = sorted(draw(st.sets(st.integers(low, 4), max_size=3)))
    return SimJob(
        submit_s=0.0,
        name="j",
        profile=draw(profiles()),
        steps=draw(st.integers(1, 20_000)),
        gpus_min=counts[0] if counts else low,
        gpus_max=counts[-1] if counts else draw(st.none() | st.integers(low, 6)),
        gpus_counts=tuple(counts),
        nodes=nodes,
        told=draw(st.integers(0, 5)) > 0,
        predicted=draw(st.none() | st.floats(-1.0, 1.0)),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    gaps = draw(st.lists(st.floats(0.0, 500.0), min_size=1, max_size=8))
    at, found = 0.0, []
    for number, gap in enumerate(gaps):
        at += gap
        found.append(replace(draw(jobs()), submit_s=at, name=f"j{number}"))
    ends_s = draw(st.sampled_from((math.inf, 400.0, 2_000.0)))
    nodes = (
        NodeSpell("n1", 4, "v100"),
        NodeSpell("n2", draw(st.integers(4, 8)), "k80"),
        NodeSpell("n3", 4, "v100", draw(st.sampled_from((0.0, 100.0))), ends_s),
    )
    return Workload("drawn", tuple(found), nodes)


def registry() -> Policies:
    policies = Policies()
    policies.add(*POLICIES)
    return policies


@pytest.mark.parametrize("policy", ["elastic", "elastic-letter", "k8s-default", "optimus"])
@given(
    workload=workloads(),
    warm=st.booleans(),
    trouble=st.booleans(),
)
@settings(max_examples=seeds(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_plan_keeps_its_promises_and_everyone_finishes(
    policy: str, workload: Workload, warm: bool, trouble: bool
) -> None:
    conditions = Conditions(
        seed=1,
        jitter=0.3 if trouble else 0.0,
        mtbf_s=20_000.0 if trouble else 0.0,
        restarts=(150.0, 900.0) if trouble else (),
        warm=warm,
    )
    run = simulate(workload, policy, registry(), conditions)
    assert run.problems == ()
    validate(run.world)
    results = summarise(run)
    assert results.finished == len(workload.jobs)
    for job, told in zip(workload.jobs, results.jobs, strict=True):
        held = {number for _, number in told.gpus if number}
        allowed = job.gpus_counts or range(job.gpus_min, (job.gpus_max or 8) + 1)
        assert held <= {number * job.nodes for number in allowed}
        if policy == "k8s-default" and not trouble and workload.nodes[2].until_s == math.inf:
            assert told.suspends == 0
        if policy == "optimus" and not trouble and workload.nodes[2].until_s == math.inf:
            sizes = [number for _, number in told.gpus if number]
            assert sizes == sorted(sizes)
