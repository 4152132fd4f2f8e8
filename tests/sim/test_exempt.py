"""No policy preempts an attempt that has not yet trained for three times what its start took, whatever it was told."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcdl.core.model import events as ev
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import validate
from hpcdl.core.rules.exemption import STARTS
from hpcdl.policies import all_policies
from hpcdl.sim import SimJob, Workload, cluster, simulate
from hpcdl.sim.conditions import Conditions, SimulatedRun
from tests.sim.test_every_policy import OBJECTIVES, workloads
from tests.support.seeds import seeds

SLOW = Profile("slow", ((1, 1, 1.0), (1, 4, 3.0)), startup_s=40.0, save_s=1.0, resume_s=40.0)
SHORT = Profile("short", ((1, 1, 1.0),), startup_s=2.0, save_s=1.0, resume_s=2.0)


def preempted_too_soon(ran: SimulatedRun) -> list[str]:
    """Suspends and ends that came before their time, by what was recorded; nodes that left count for nothing."""
    requested: dict[tuple[int, int], float] = {}
    gates: dict[tuple[int, int], float] = {}
    granted: dict[tuple[int, int], float] = {}
    due: dict[tuple[int, int], float] = {}
    gone = {record.at for record in ran.records if isinstance(record.event, ev.NodeLost | ev.NodeLeaves)}
    found = []
    for record in ran.records:
        event, at = record.event, record.at
        if isinstance(event, ev.IncarnationEvent):
            key = (event.job, event.incarnation)
        if isinstance(event, ev.StartRequested):
            requested[key] = at
            if event.placement is not None:
                granted[key] = at
        elif isinstance(event, ev.AtGate):
            gates[key] = at
        elif isinstance(event, ev.OpenRequested):
            granted[key] = at
        elif isinstance(event, ev.TrainerReady | ev.Reformed) and key not in due:
            gate_s = gates[key] - requested[key] if granted[key] > requested[key] else 0.0
            due[key] = at + STARTS * (at - granted[key] + gate_s)
        elif isinstance(event, ev.SuspendRequested | ev.EndRequested) and key in granted and at not in gone:
            if key not in due or at < due[key] - 1e-6:
                found.append(f"job {key[0]}.{key[1]} at {at}, due {due.get(key)}: {event.kind}")
    return found


@pytest.mark.parametrize("name", all_policies().names())
@settings(
    max_examples=seeds(4),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    workload=workloads(),
    warm=st.booleans(),
    objective=st.sampled_from(OBJECTIVES),
    seed=st.integers(0, 9),
    slower=st.sampled_from([0.2, 1.0, 8.0]),
    elastic=st.booleans(),
)
def test_every_policy_waits_until_a_start_has_paid(
    name: str, workload: Workload, warm: bool, objective: str, seed: int, slower: float, elastic: bool
) -> None:
    def untold(job: SimJob) -> SimJob:
        profile = job.profile
        times = {key: slower * getattr(profile, key) for key in ("startup_s", "resume_s", "gate_s")}
        rescale = "in-process" if elastic and job.nodes_max and job.nodes_max > 1 else "restart"
        return replace(job, profile=replace(profile, **times), believed=profile, rescale=rescale)

    told = replace(workload, jobs=tuple(map(untold, workload.jobs)))
    conditions = Conditions(seed, jitter=0.3, warm=warm, objective=objective, progress_s=20.0)
    ran = simulate(told, name, all_policies(), conditions)
    assert ran.problems == ()
    validate(ran.world)
    assert preempted_too_soon(ran) == []


@pytest.mark.parametrize("name", all_policies().names())
def test_a_slow_start_beside_short_jobs(name: str) -> None:
    """The case that was found: a start of 40 s of which nobody was told, beside a job every 20 s."""
    long = SimJob(0.0, "long", SLOW, 900, gpus_min=1, gpus_max=4, told=False)
    short = [SimJob(5.0 + 20.0 * each, f"s{each}", SHORT, 10, gpus_max=1, told=False) for each in range(30)]
    ran = simulate(Workload("thrash", (long, *short), tuple(cluster(1, 4))), name, all_policies(), Conditions())
    assert ran.problems == ()
    assert preempted_too_soon(ran) == []
    first = ran.history.jobs[0]
    assert sum(attempt.asked_at is not None for attempt in first.attempts) <= 3


def test_without_the_rule_it_is_preempted_at_once() -> None:
    """So the tests above would see it."""
    long = SimJob(0.0, "long", SLOW, 900, gpus_min=1, gpus_max=4, told=False)
    short = [SimJob(5.0 + 20.0 * each, f"s{each}", SHORT, 10, gpus_max=1, told=False) for each in range(30)]
    workload = Workload("thrash", (long, *short), tuple(cluster(1, 4)))
    ran = simulate(workload, "adaptive", all_policies(), Conditions(exempt_starts=0.0))
    assert preempted_too_soon(ran)
