"""How often attempts end, as trainers are told."""

from dataclasses import replace

import pytest

from hpcdl.core.model.incarnation import Incarnation, IncarnationState, Placement, Share
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.world import Job, World
from hpcdl.core.rules.interruptions import PRIOR_S, mean_time_between_s

HOUR_S = 3600.0
NOW = 1e6


def job(number: int, ended: int, held_h: float, running_h: float | None = None, gpus: int = 1) -> Job:
    live: tuple[Incarnation, ...] = ()
    if running_h is not None:
        placement = Placement((Share("n1", (number,)),))
        since = NOW - running_h * HOUR_S
        live = (Incarnation(ended + 1, IncarnationState.RUNNING, (), placement, granted_at=since),)
    spec = JobSpec(("train",), "j", gpus_min=gpus, gpus_max=gpus)
    last = ended + len(live)
    return Job(number, spec, 0.0, live=live, last_incarnation=last, held_gpu_s=held_h * HOUR_S * gpus)


def mean_h(*jobs: Job) -> float:
    """Of the first of them."""
    world = World(jobs={each.id: each for each in jobs}, active={each.id: None for each in jobs})
    return mean_time_between_s(world, jobs[0], NOW) / HOUR_S


def test_without_anything_observed_it_is_the_prior() -> None:
    assert mean_h(job(1, 0, 0.0)) == PRIOR_S / HOUR_S == 6


@pytest.mark.parametrize("gpus", [1, 4])
def test_what_was_observed_of_the_job_outweighs_it(gpus: int) -> None:
    assert mean_h(job(1, 2, 3.0, gpus=gpus)) == (6 + 3) / 3
    assert mean_h(job(1, 99, 50.0, gpus=gpus)) == pytest.approx(0.56)
    assert mean_h(job(1, 0, 0.0, running_h=100.0, gpus=gpus)) > 100, "not one was interrupted yet"


def test_a_new_job_is_interrupted_as_the_others_are() -> None:
    others = [job(number, 19, 9.0, running_h=1.0) for number in (2, 3)]
    assert mean_h(job(1, 0, 0.0), *others) == pytest.approx((6 + 2 * 10) / (1 + 2 * 19))
    still = [replace(each, live=(), last_incarnation=19) for each in others]
    assert mean_h(job(1, 0, 0.0), *still) == 6, "of jobs that wait or are over nothing is taken"
