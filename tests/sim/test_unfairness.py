"""Jobs that took much longer than their fair share, and what is said of them."""

from typing import Any

import pytest

from hpcdl.core.model.profile import Profile
from hpcdl.sim import NodeSpell, SimJob, WorkloadError, cluster, summarise
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.unfairness import UnfairJob
from tests.sim.runs import Places, Script, on, run

LINEAR = Profile("linear", ((1, 1, 1.0), (1, 8, 8.0)))


def unfair(
    jobs: tuple[tuple[float, int, int], ...], *moments: tuple[float, Places], nodes: tuple[NodeSpell, ...], **more: Any
) -> tuple[UnfairJob, ...]:
    """Those of jobs (submit, steps, GPUs) under a script, above the limit."""
    each = tuple(
        SimJob(at, f"j{number}", LINEAR, steps, gpus_min=gpus, gpus_max=gpus)
        for number, (at, steps, gpus) in enumerate(jobs, 1)
    )
    ran = run(each, nodes, Script(*moments), **more)
    assert ran.problems == ()
    return summarise(ran).above_max_slowdown


def test_a_job_that_waits_for_those_that_came_later() -> None:
    found = unfair(
        ((0.0, 10, 1), (1.0, 500, 1), (2.0, 500, 1)),
        (0.0, {}), (3.0, {2: on("n1", 0)}), (503.0, {3: on("n1", 0)}), (1003.0, {1: on("n1", 0)}),
        nodes=cluster(1, 1),
    )  # fmt: skip
    (worst,) = [each for each in found if each.job == 1]
    assert worst is found[0]
    assert worst.name == "j1"
    assert worst.fairness > 5
    assert worst.why.startswith("waited 1003 s, spent 0 s in starts and saves, trained 10 s; its fair share would have")
    assert "To let jobs that came later wait would have helped: it takes 1 GPU; later ones held 1000 GPU s" in worst.why


def test_a_job_that_waits_for_those_that_came_earlier() -> None:
    (found,) = unfair(
        ((0.0, 8000, 8), (1.0, 10, 1)), (0.0, {1: on("n1", *range(8))}), (1000.0, {2: on("n1", 0)}), nodes=cluster(1, 8)
    )
    assert found.job == 2
    assert "To suspend jobs that came earlier would have helped: it takes 1 GPU; later ones held 0 GPU s" in found.why


def test_a_job_whose_gpus_were_free() -> None:
    (found,) = unfair(((0.0, 10, 1),), (0.0, {}), (500.0, {1: on("n1", 0)}), nodes=cluster(1, 2))
    assert found.why.endswith("To start it would have helped: it takes 1 GPU, which were free for 500 s of that")


def test_a_job_whose_gpus_were_free_on_other_nodes() -> None:
    here = {1: on("n1", 0), 2: on("n2", 0)}
    found = unfair(
        ((0.0, 400, 1), (0.0, 400, 1), (1.0, 10, 2)), (0.0, here), (400.0, {3: on("n1", 0, 1)}), nodes=cluster(2, 2)
    )
    (worst,) = [each for each in found if each.job == 3]
    assert "Jobs packed on fewer nodes would have helped: it takes 2 GPUs on 1 node, and so many" in worst.why
    assert "for 399 s of that" in worst.why


def test_a_job_that_lost_its_time_to_starts_or_had_too_few_gpus() -> None:
    slow = Profile("slow", ((1, 1, 1.0), (1, 8, 8.0)), startup_s=1.0, resume_s=90.0, save_s=10.0)
    jobs = (SimJob(0.0, "j", slow, 2000, gpus_max=8),)
    moved = [(100.0 * turn + 0.0, {1: on(f"n{turn % 2 + 1}", *range(8))}) for turn in range(12)]
    (lost,) = summarise(run(jobs, cluster(2, 8), Script(*moved), max_slowdown=2.0)).above_max_slowdown
    assert "Fewer suspends would have helped: " in lost.why
    assert "the first of 1 s" in lost.why
    (few,) = summarise(
        run(jobs, cluster(1, 8, "v100"), Script((0.0, {1: on("n1", 0)})), max_slowdown=2.0)
    ).above_max_slowdown
    assert few.why.endswith("More or faster GPUs would have helped: it had 1 v100")


def test_nobody_is_listed_below_the_limit_and_it_is_checked() -> None:
    assert unfair(((0.0, 10, 1),), (0.0, {}), (500.0, {1: on("n1", 0)}), nodes=cluster(1, 2), max_slowdown=100.0) == ()
    with pytest.raises(WorkloadError, match=r"max_slowdown must be a finite number, 1 or more, got 0\.5"):
        Conditions(max_slowdown=0.5)
