"""Random lives of pilots: jobs end, no node is asked for twice, nothing is held once there is nothing to train."""

import random
from dataclasses import replace

import pytest

from hpcdl.batch.limits import PilotLimits
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.world import JobState
from tests.support.model_batch import GPUS, BatchCluster
from tests.support.seeds import seeds

SEEDS, ROUGH = seeds(12), seeds(8)
"""Run more by hand: python -m tests.core.workloads.test_pilots FIRST LAST."""
POLICIES = ("adaptive", "bftrainer", "harvest", "marble")


def live(seed: int, rough: bool = False) -> BatchCluster:
    """One history to its end."""
    rng = random.Random(seed)
    site = PilotLimits(
        queues=("q",),
        pilots_max=rng.choice([1, 3, 6]),
        nodes_max=rng.choice([None, 2]),
        walltime_min_s=60.0,
        startup_s=10.0,
    )
    if rough:
        site = replace(site, walltime_max_s=rng.choice([None, 240.0, 600.0]))
    policy = POLICIES[seed % len(POLICIES)]
    model = BatchCluster(6, site, policy=policy, seed=seed, grace_s=rng.choice([20.0, 60.0]), rough=rough)
    model.tick_every(10.0)
    names = list(model.agents)
    for number in range(rng.randint(3, 7)):
        wide = rng.random() < 0.5 and policy != "marble"
        spec = JobSpec(
            ("train",),
            f"j{number}",
            profile="plain",
            steps=rng.randint(200, 4000),
            gpus_min=GPUS if wide else rng.choice([1, 2]),
            gpus_max=GPUS,
            nodes_max=rng.randint(2, 4) if wide else None,
            rescale=rng.choice(["restart", "in-process"]) if wide else "restart",
            grace_s=20.0,
            retries=30,
        )
        model.submit(spec)
    for _ in range(rng.randint(2, 8)):
        nodes = rng.sample(names, rng.randint(1, len(names)))
        model.claim(nodes, rng.uniform(0, 1500), rng.uniform(60, 600), rng.random() < 0.6)
    for _ in range(2):
        model.run(rng.uniform(50, 800))
        model.restart_daemon()
        if rough:
            model.stay_away(rng.choice([5.0, 60.0, 600.0]))
    model.run_until(lambda: not model.world.active, 40_000.0)
    model.run(2000.0)
    return model


@pytest.mark.parametrize(
    ("seed", "rough"), [(seed, False) for seed in range(SEEDS)] + [(seed, True) for seed in range(ROUGH)]
)
def test_random_lives_of_pilots(seed: int, rough: bool) -> None:
    model = live(seed, rough)
    assert set(model.states().values()) == {JobState.DONE}, f"seed {seed}: {model.states()}"
    living = [pilot for pilot in model.world.pilots.values() if not pilot.over]
    assert not living, f"seed {seed}: with nothing to train, these are kept: {living}"
    assert model.most_pilots, f"seed {seed}: no pilot was ever asked for"
    assert not model.users, f"seed {seed}: {model.users}"
    assert not model.too_late, f"seed {seed}: {model.too_late}"
    model.check_replay()


if __name__ == "__main__":
    import sys

    for each in range(int(sys.argv[1]), int(sys.argv[2])):
        print(each, flush=True)
        test_random_lives_of_pilots(each, rough=True)
