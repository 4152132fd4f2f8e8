"""How long things take a modelled trainer, and what it predicts."""

import math
from dataclasses import replace
from statistics import pstdev

import pytest

from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.core.model.profile import ProfileError
from hpcdl.sim import SimJob
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.trainers import Delays, PastIncarnations, SimulatedTrainer, predicted_total
from hpcdl.sim.workload import WorkloadError
from tests.sim.runs import COSTS, on

JOB = SimJob(0.0, "j", COSTS, 1000)


def trainer(placement: Placement | None = None, job: int = 1, number: int = 1) -> SimulatedTrainer:
    where = placement or on("n1", 0)
    return SimulatedTrainer(job, number, where.nodes, where)


@pytest.mark.parametrize(
    ("past", "waited_s", "seconds"),
    [
        (PastIncarnations(), 0.0, 10.0),
        (PastIncarnations(), 1.0, 9.0),
        (PastIncarnations(), 50.0, 6.0),
        (PastIncarnations(), -1.0, 10.0),
        (PastIncarnations(5.0, True, ("n1",), 1), 50.0, 5.0),
        (PastIncarnations(5.0, True, ("n1",), 4), 50.0, 5.0),
        (PastIncarnations(5.0, True, ("n2",), 1), 50.0, 13.0),
    ],
)
def test_start_ups(past: PastIncarnations, waited_s: float, seconds: float) -> None:
    assert Delays(Conditions()).startup_s(JOB, past, trainer(), waited_s) == seconds


def test_a_start_up_on_more_gpus() -> None:
    up = trainer(Placement((Share("n1", (0, 1)),)))
    assert Delays(Conditions()).startup_s(JOB, PastIncarnations(5.0, True, ("n1",), 1), up, 0.0) == 7.0


def test_saves_and_gates() -> None:
    delays = Delays(Conditions())
    assert (delays.save_s(JOB, trainer(), False), delays.save_s(JOB, trainer(), True)) == (3.0, 11.0)
    assert delays.gate_s(JOB, trainer()) == 4.0
    assert delays.gate_s(SimJob(0.0, "j", replace(COSTS, gate_s=0.0), 1), trainer()) == 10.0
    with pytest.raises(ValueError, match="does not start up"):
        delays.startup_s(JOB, PastIncarnations(), SimulatedTrainer(1, 1, ("n1",), None), 0.0)


def test_the_profile_says_how_far_times_differ() -> None:
    def saves(own: float, jitter: float) -> list[float]:
        job = replace(JOB, profile=replace(COSTS, times_spread=own))
        return [
            Delays(Conditions(1, jitter=jitter)).save_s(job, trainer(number=number), False) for number in range(1, 400)
        ]

    def sigma(seconds: list[float]) -> float:
        return pstdev(math.log(each / COSTS.save_s) for each in seconds)

    assert set(saves(0.0, 0.0)) == {COSTS.save_s}
    assert sigma(saves(0.3, 0.0)) == pytest.approx(0.3, rel=0.1)
    assert sigma(saves(0.3, 0.4)) == pytest.approx(0.5, rel=0.1)
    assert saves(0.3, 0.0) == saves(0.3, 0.0)
    with pytest.raises(ProfileError, match="times_spread: must be 5 or less"):
        replace(COSTS, times_spread=6.0)


def test_chance_depends_on_the_seed_and_on_whom_it_concerns() -> None:
    def drawn(seed: int, job: int, number: int) -> tuple[float, float, float]:
        delays = Delays(Conditions(seed, jitter=0.2, mtbf_s=100.0))
        who = trainer(job=job, number=number)
        return (
            delays.startup_s(JOB, PastIncarnations(), who, 0.0),
            delays.save_s(JOB, who, False),
            delays.fails_after_s(who),
        )

    assert drawn(1, 2, 3) == drawn(1, 2, 3)
    others = {drawn(1, 2, 3), drawn(2, 2, 3), drawn(1, 3, 3), drawn(1, 2, 4)}
    assert len(others) == 4
    assert Delays(Conditions()).fails_after_s(trainer()) == math.inf
    mean = sum(drawn(0, job, 1)[2] for job in range(500)) / 500
    assert mean == pytest.approx(100.0, rel=0.15)


def test_a_trainer_counts_its_steps() -> None:
    one = replace(trainer(), step=10.0, since=100.0, rate=2.0)
    assert one.step_at(105.0) == 20.0
    assert one.step_at(90.0) == 10.0  # never back
    one.settle(110.0)
    assert (one.step, one.since, one.turn) == (30.0, None, 1)
    assert one.step_at(200.0) == 30.0


@pytest.mark.parametrize(
    ("predicted", "step", "total"),
    [(None, 0.0, 1000), (0.0, 0.0, 1000), (0.5, 0.0, 1649), (0.5, 500.0, 1143), (0.5, 1000.0, 1000), (-9.0, 0.0, 1)],
)
def test_predicted_totals(predicted: float | None, step: float, total: int) -> None:
    assert predicted_total(replace(JOB, predicted=predicted), step) == total


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"jitter": -0.1}, "jitter must be a finite number"),
        ({"jitter": math.nan}, "jitter must be a finite number"),
        ({"mtbf_s": math.inf}, "mtbf_s must be a finite number"),
        ({"progress_s": 0.0}, "progress_s must be more than 0"),
        ({"checkpoint_s": math.nan}, "checkpoint_s must be more than 0"),
        ({"until_s": -1.0}, "until_s must be more than 0"),
        ({"restarts": (math.nan,)}, "restarts are times from 0 on"),
    ],
)
def test_conditions_that_make_no_sense(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        Conditions(**wrong)  # type: ignore[arg-type]
