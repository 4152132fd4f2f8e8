"""Every policy keeps its promises and gets all jobs done while GPUs are avoided, fail, are preempted and come back."""

import random

import pytest

from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.arrays import Array
from hpcdl.core.model.job import JobSpec
from hpcdl.core.rules.intake import Settings
from hpcdl.policies import all_policies
from tests.core.workloads.test_every_verb import never_more_than_allowed
from tests.support.model_cluster import Cluster
from tests.support.seeds import seeds

NODES = {"n1": 4, "n2": 4}
FOUND = (45,)
"""Seeds by which something was found once."""


def happen(cluster: Cluster, numbers: random.Random) -> None:
    """One thing that users or fate do."""
    node, index, known = numbers.choice(sorted(NODES)), numbers.randrange(4), sorted(cluster.world.jobs)
    spec = JobSpec(
        ("train",),
        "j",
        gpus_min=numbers.choice((1, 1, 2)),
        gpus_max=numbers.choice((2, 4)),
        steps=numbers.choice((20, 100, 400)),
        profile="plain",
        gate=numbers.random() < 0.5,
        priority=numbers.choice((0, 0, 3, -3)),
    )
    request, moves = f"r{cluster.world.seq}", numbers.random() < 0.5
    match numbers.randrange(9):
        case 0 | 1:
            cluster.send(cmd.Submit((spec,), request))
        case 2:
            array = Array(((1, 3, 1),), max_parallel=numbers.choice((0, 1, 2)))
            cluster.send(cmd.Submit((cmd.Entry(spec, array),), request))
        case 3:
            cluster.send(cmd.Avoid(node, index, 120.0, moves=moves))
        case 4:
            cluster.send(cmd.Avoid(node, None, 60.0, moves=moves))
        case 5:
            cluster.report_fault(node, index, numbers.choice(("xid 79", "xid 94")))
        case 6 if known:
            cluster.send(cmd.Preempt(numbers.choice(known)))
        case 7 if known:
            cluster.kill(numbers.choice(known))
        case _:
            cluster.send(cmd.Drain(node, None, numbers.random() < 0.3, "maintenance"))


@pytest.mark.parametrize("policy", all_policies().names())
def test_every_policy_gets_around_what_is_avoided(policy: str) -> None:
    for seed in (*range(seeds(8)), *FOUND):
        numbers = random.Random(seed)
        settings = Settings(agent_lease_s=300.0, avoid_s=300.0, avoid_failures=2)
        cluster = Cluster(NODES, seed=seed, delay_s=1.0, settings=settings)
        cluster.policies = all_policies()
        cluster.restart_daemon()
        cluster.send(cmd.ChoosePolicy(policy))
        cluster.tick_every(15.0)
        for _ in range(25):
            happen(cluster, numbers)
            cluster.run(numbers.choice((0.0, 1.0, 5.0, 30.0)))
            never_more_than_allowed(cluster)
        for node in NODES:
            cluster.send(cmd.Drain(node, None, False, "it stays"))
        cluster.run_to_end()
        assert [r.event for r in cluster.journal.records if isinstance(r.event, ev.TroubleSeen)] == [], seed
