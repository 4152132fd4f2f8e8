"""The policies through the real Controller: nodes come and go, trainers fail, the daemon is killed."""

from dataclasses import replace

import pytest

from hpcdl import genie as ours
from hpcdl.core.model.plan import Policies
from hpcdl.core.model.world import JobState
from hpcdl.sim import Conditions, NodeSpell, Workload, simulate
from hpcdl.sim.papers.data import genie

POLICIES = Policies()
POLICIES.add(*ours.POLICIES)
NODES = (
    NodeSpell("n1", 4, "k80"),
    NodeSpell("n2", 4, "k80", 0, 30_000),
    NodeSpell("n2", 4, "k80", 40_000),
    NodeSpell("n3", 4, "v100", 5_000, 60_000),
    NodeSpell("n4", 2, "k80"),
)
TROUBLE = Conditions(mtbf_s=20_000, jitter=0.2, restarts=(10_000.0, 50_000.0), seed=3)


def workload() -> Workload:
    whole = genie(5, 0)
    return replace(whole, jobs=whole.jobs[:30], nodes=NODES)


@pytest.mark.parametrize("name", POLICIES.names())
def test_everyone_finishes_whatever_happens(name: str) -> None:
    run = simulate(workload(), name, POLICIES, TROUBLE)
    assert run.problems == ()
    assert {job.outcome for job in run.world.jobs.values()} == {JobState.DONE}
    assert sum(job.suspends for job in run.world.jobs.values()) == 0, "none of them preempts"
    again = simulate(workload(), name, POLICIES, TROUBLE)
    assert again.history == run.history
