"""Algorithms 1 and 2 on views."""

from dataclasses import replace

import pytest

from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import JobState
from hpcdl.sidecar import Optimus, SideCar
from tests.adaptive.views import decide, gpus, node, reasons
from tests.sidecar.views import RESNET, adopted, job, running, view

LATE = 500.0  # submitted so long before the view's time that it is initialised


def test_an_incoming_job_takes_what_ends_first() -> None:
    plan = decide(SideCar(), view(job(1, submitted_at=LATE)))
    assert gpus(plan) == ["n1:0,1,2,3"]
    assert reasons(plan) == ["starts on 4 GPUs of n1: ends in 7 min 24 s, the last of all jobs in 7 min 24 s"]
    assert plan.warm == ()


def test_optional_numbers_only() -> None:
    plan = decide(SideCar(), view(job(1, counts=(1, 3), profile=None), nodes=(node("n1", 4),)))
    assert gpus(plan) == ["n1:0,1,2"]
    slower = Profile("slower", ((1, 1, 1.0), (1, 2, 0.5), (1, 4, 0.9)))
    assert gpus(decide(SideCar(), view(job(1, profile=slower)))) == ["n1:0"]


def test_reshape_down_waits_for_the_initialisation() -> None:
    """Figure 1: job 2's initialisation goes on while job 1 trains."""
    seen = view(running(1, 0, 1, 2, 3), job(2, submitted_at=990.0))
    plan = decide(SideCar(), seen)
    assert gpus(plan) == ["n1:0,1,2,3", "n1:2,3"]
    assert plan.warm == (2,)
    assert plan.wake_at == pytest.approx(990.0 + 83.0)
    assert reasons(plan) == [
        "trains on 4 GPUs of n1; gives 2 GPUs of n1 for job 2 in 1 min 13 s, when that is initialised",
        "is initialised ahead, 1 min 13 s to go; then gets 2 GPUs of n1, 2 of them from job 1",
    ]
    assert gpus(decide(SideCar(), adopted(seen, plan))) == gpus(plan)
    then = replace(adopted(seen, plan), now=1073.0)
    plan = decide(SideCar(), then)
    assert gpus(plan) == ["n1:0,1", "n1:2,3"]
    assert plan.warm == (2,)
    assert plan.wake_at is None
    first, second = reasons(plan)
    assert first.startswith("gives 2 GPUs of n1 for job 2 and keeps 2: ends in 8 min 32 s instead of 5 min 44 s")
    assert second.startswith("starts on 2 GPUs of n1: ends in 10 min 15 s, the last of all jobs in 10 min 15 s")


def test_idle_gpus_are_reserved_during_the_initialisation() -> None:
    """Table II: a GPU is `reserved` for a job that is not yet running; algorithm 2 must not give it away."""
    seen = view(
        running(1, 0, 1, total=4000),
        running(2, 2, total=600),
        job(3, 4000, counts=(2,), gpus_min=2, submitted_at=990.0),
    )
    plan = decide(SideCar(), seen)
    assert gpus(plan) == ["n1:0,1", "n1:2", "n1:1,3"]
    assert plan.warm == (3,)
    assert "1 of them from job 1" in reasons(plan)[2]
    plan = decide(SideCar(), replace(adopted(seen, plan), now=1080.0))
    assert gpus(plan) == ["n1:0", "n1:2", "n1:1,3"]


def test_at_the_gate_it_is_initialised_whatever_the_profile_says() -> None:
    plan = decide(SideCar(), view(running(1, 0, 1, 2, 3), job(2, submitted_at=990.0, at_gate=True)))
    assert gpus(plan) == ["n1:0,1", "n1:2,3"]


def test_when_the_giver_ends_during_the_initialisation_all_is_asked_anew() -> None:
    waits = Placement((Share("n1", (2, 3)),))
    seen = view(job(2, submitted_at=990.0, target=waits))
    assert gpus(decide(SideCar(), seen)) == ["n1:0,1,2,3"]
    # Once it is initialised the reshape is under way, and what it was promised stays.
    late = view(job(2, submitted_at=500.0, target=waits))
    assert gpus(decide(SideCar(), late)) == ["n1:2,3"]
    leaves = running(1, 0, 1, 2, 3, leaving=True, target=None)
    assert gpus(decide(SideCar(), view(leaves, job(2, submitted_at=990.0, target=waits)))) == ["-", "-"]


def test_the_giver_is_the_one_with_the_smallest_makespan() -> None:
    long, short = running(1, 0, 1, total=9000), running(2, 2, 3, total=1500)
    plan = decide(SideCar(), view(long, short, job(3, submitted_at=LATE)))
    assert gpus(plan) == ["n1:0,1", "n1:2", "n1:3"]


def test_a_suspended_job_comes_in_at_the_price_of_a_resume() -> None:
    last = Placement((Share("n1", (0, 1, 2, 3)),))
    suspended = job(1, state=JobState.SUSPENDED, step=400, started_at=10.0, submitted_at=999.0, last=last)
    plan = decide(SideCar(), view(suspended))
    assert reasons(plan) == ["starts on 4 GPUs of n1: ends in 4 min 37 s, the last of all jobs in 4 min 37 s"]
    elsewhere = replace(suspended, last=Placement((Share("n2", (0, 1, 2, 3)),)))
    assert reasons(decide(SideCar(), view(elsewhere)))[0].startswith("starts on 4 GPUs of n1: ends in 7 min 37 s")


def test_nothing_to_take_and_strict_order() -> None:
    plan = decide(SideCar(), view(running(1, 0), running(2, 1), running(3, 2), running(4, 3), job(5), job(6)))
    assert gpus(plan) == ["n1:0", "n1:1", "n1:2", "n1:3", "-", "-"]
    assert reasons(plan)[4:] == [
        "needs 1 GPU, 0 of 4 GPUs free",
        "needs 1 GPU, 0 of 4 GPUs free; job 5 is before it",
    ]


def test_n_remove_is_what_is_missing() -> None:
    """Line 22: GPUs are removed so that none is left over."""
    plan = decide(SideCar(), view(running(1, 0, 1, 2, 3), job(2, counts=(1,), gpus_max=1, submitted_at=LATE)))
    assert gpus(plan) == ["n1:0,1,2,3", "-"]


@pytest.mark.parametrize(
    "more",
    [
        {"can_suspend": False},
        {"step_at": None},
        {"state": JobState.STARTING},
        {"leaving": True},
    ],
)
def test_who_gives_nothing(more: dict[str, object]) -> None:
    plan = decide(SideCar(), view(replace(running(1, 0, 1, 2, 3), **more), job(2, submitted_at=LATE)))  # type: ignore[arg-type]
    assert gpus(plan) == ["n1:0,1,2,3", "-"]


def test_reshape_up() -> None:
    plan = decide(SideCar(), view(running(1, 0, 1)))
    assert gpus(plan) == ["n1:0,1,2,3"]
    assert reasons(plan) == [
        "goes from 2 GPUs of n1 to 4: ends in 7 min 34 s instead of 9 min 48 s, the last of all jobs in 7 min 34 s"
    ]


def test_reshape_up_must_be_worth_its_cost() -> None:
    plan = decide(SideCar(), view(running(1, 0, 1, step=850)))
    assert gpus(plan) == ["n1:0,1"]
    assert reasons(plan) == ["2 GPUs of n1: ends in 1 min 28 s, the last of all jobs in 1 min 28 s"]


def test_reshape_up_shortens_the_makespan_first_then_the_sum() -> None:
    eight = (node("n1", 8),)
    plan = decide(SideCar(), view(running(1, 0, 1, total=3000), running(2, 2, 3, total=9000), nodes=eight))
    assert gpus(plan) == ["n1:0,1,6,7", "n1:2,3,4,5"]
    assert reasons(plan)[0].endswith("the last of all jobs in 1 h 03 min as before")


def test_no_reshape_up_while_a_job_comes_in() -> None:
    waits = job(2, counts=(4,), gpus_min=4)
    plan = decide(SideCar(), view(running(1, 0, 1, can_suspend=False), waits))
    assert gpus(plan) == ["n1:0,1", "-"]
    plan = decide(SideCar(), view(running(1, 0, 1), waits))
    assert gpus(plan) == ["n1:0,1", "-"]


V100_K80 = (node("n1", 4, "v100"), node("n2", 4, "k80"))
TWO_KINDS = replace(RESNET, kinds=(("k80", ((1, 1, 0.14), (1, 2, 0.25), (1, 4, 0.4))), ("v100", RESNET.points)))


def test_types_of_gpus() -> None:
    plan = decide(SideCar(), view(job(1, profile=TWO_KINDS), job(2, profile=TWO_KINDS), nodes=V100_K80))
    assert gpus(plan) == ["n1:0,1,2,3", "n2:0,1,2,3"]
    # Beside a running job, two fast GPUs are better than four slow ones.
    held = running(1, 0, 1, profile=TWO_KINDS)
    plan = decide(SideCar(), view(held, job(2, profile=TWO_KINDS), nodes=V100_K80))
    assert gpus(plan) == ["n1:0,1", "n1:2,3"]


def test_a_move_costs_more_and_pays_for_a_long_job_only() -> None:
    held = running(1, 0, 1, on="n2", profile=TWO_KINDS)
    plan = decide(SideCar(), view(held, nodes=V100_K80))
    assert gpus(plan) == ["n1:0,1,2,3"]
    assert reasons(plan)[0].startswith("moves from 2 GPUs of n2 to 4 of n1: ends in 10 min 59 s instead of 1 h 06 min")
    short = running(1, 0, 1, on="n2", profile=TWO_KINDS, step=950)
    assert gpus(decide(SideCar(), view(short, nodes=V100_K80))) == ["n2:0,1,2,3"]


def test_several_nodes_start_on_idle_gpus_and_keep_them() -> None:
    two = (node("n1", 4), node("n2", 4))
    plan = decide(SideCar(), view(job(1, nodes=2), nodes=two))
    assert gpus(plan) == ["n1:0,1,2,3+n2:0,1,2,3"]
    held = Placement((Share("n1", (0, 1)), Share("n2", (0, 1))))
    wide = running(1, 0, placement=held, target=held, nodes=2)
    plan = decide(SideCar(), view(wide, nodes=two))
    assert gpus(plan) == ["n1:0,1+n2:0,1"]


def test_nodes_of_two_kinds_where_there_are_no_others() -> None:
    plan = decide(SideCar(), view(job(1, profile=TWO_KINDS, nodes=2), nodes=V100_K80))
    assert gpus(plan) == ["n1:0,1,2,3+n2:0,1,2,3"]
    plan = decide(SideCar(), view(job(1, profile=TWO_KINDS, nodes=2), nodes=(*V100_K80, node("n3", 2, "v100"))))
    assert gpus(plan) == ["n1:0,1+n3:0,1"]
    plan = decide(Optimus(), view(job(1, profile=TWO_KINDS, nodes=2), nodes=V100_K80))
    assert gpus(plan) == ["n1:0+n2:0"]


def test_steps_from_accuracies() -> None:
    """Section III-C: without a number of epochs, Optimus's fit says how far it is to the accuracy wanted."""
    points = tuple((step, 1.0 - 1.0 / (0.01 * step + 1.25)) for step in range(0, 1000, 100))
    near = running(1, 0, 1, total=None, step=900, accuracy=points, accuracy_target=0.91)
    far = running(1, 0, 1, total=None, step=900, accuracy=points, accuracy_target=0.99)
    assert gpus(decide(SideCar(), view(near))) == ["n1:0,1"]
    plan = decide(SideCar(), view(far))
    assert gpus(plan) == ["n1:0,1,2,3"]
    assert "ends in 1 h 02 min instead of 1 h 27 min" in reasons(plan)[0]


def test_jobs_of_unknown_length_and_speed() -> None:
    plan = decide(SideCar(), view(running(1, 0, 1, total=None, step=20), job(2, None, submitted_at=LATE)))
    assert gpus(plan) == ["n1:0,1", "n1:2,3"]
    plan = decide(SideCar(), view(job(1, None, profile=None)))
    assert gpus(plan) == ["n1:0,1,2,3"]


def test_blocked_impossible_and_bare() -> None:
    plan = decide(SideCar(), view(job(1, blocked="held by its user"), job(2, counts=(8,), gpus_min=8, gpus_max=8)))
    assert gpus(plan) == ["-", "-"]
    assert reasons(plan) == ["held by its user", "needs 8 GPUs; the largest node has 4"]
    assert gpus(decide(SideCar(), view(job(1), nodes=()))) == ["-"]
    away = running(1, 0, 1, on="n9")
    plan = decide(SideCar(), view(away))
    assert gpus(plan) == ["n9:0,1"]
    assert "agent is away" in reasons(plan)[0]
