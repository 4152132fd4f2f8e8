"""Peers' policies: the order of each, who makes room for whom, and what their users read."""

from dataclasses import replace

import pytest

from hpcdl.baselines import POLICIES
from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.core.model.plan import JobView, NodeView, Plan, Policies, Policy, View, check
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import JobState

LINEAR = Profile("linear", ((1, 1, 1.0), (1, 8, 8.0)))
NODES = (NodeView("n1", (0, 1, 2, 3)),)
NOW = 10_000.0


def made(name: str) -> Policy:
    known = Policies()
    known.add(*POLICIES)
    return known.make(name)


def decide(name: str, *jobs: JobView, now: float = NOW) -> Plan:
    view = View(now, NODES, jobs)
    plan = made(name).decide(view)
    check(plan, view)
    assert made(name).decide(replace(view, jobs=tuple(replace(job) for job in jobs))) == plan
    return plan


def waiting(number: int, total: int | None = 1000, gpus: int = 4, **more: object) -> JobView:
    known: dict[str, object] = {
        "name": f"j{number}", "state": JobState.QUEUED, "gpus_min": 1, "gpus_max": gpus, "nodes": 1, "step": 0,
        "profile": LINEAR, "placement": None, "target": None, "leaving": False, "can_suspend": True, "blocked": "",
        "submitted_at": float(number),
    }  # fmt: skip
    return JobView(id=number, total=total, **(known | more))  # type: ignore[arg-type]


def running(number: int, *gpus: int, total: int | None = 1000, held_s: float = 0.0, **more: object) -> JobView:
    held = Placement((Share("n1", gpus),))
    known: dict[str, object] = {
        "state": JobState.RUNNING, "placement": held, "target": held, "started_at": 0.0, "step_at": NOW,
        "held_since": NOW, "held_gpu_s": held_s,
    }  # fmt: skip
    return waiting(number, total, len(gpus), **(known | more))


def counts(plan: Plan) -> dict[int, int]:
    return {each.job: 0 if each.placement is None else len(each.placement.gpus) for each in plan.targets}


def test_shortest_remaining_time_preempts_the_longer_job() -> None:
    plan = decide("srt", running(1, 0, 1, 2, 3, total=4000), waiting(2, 400))
    assert counts(plan) == {1: 0, 2: 4}
    assert "16 min 40 s left" in plan.by_job()[1].reason
    assert "1 min 40 s left" in plan.by_job()[2].reason
    assert counts(decide("srt", running(1, 0, 1, 2, 3, total=400), waiting(2, 4000))) == {1: 4, 2: 0}


def test_what_is_not_known_to_be_short_comes_last() -> None:
    plan = decide("srt", waiting(1, None), waiting(2, 100_000), waiting(3, profile=None))
    assert counts(plan) == {1: 0, 2: 4, 3: 0}
    assert "not known" in plan.by_job()[1].reason


def test_least_attained_service_prefers_who_had_little() -> None:
    plan = decide("las", running(1, 0, 1, 2, 3, held_s=3600.0), waiting(2, held_gpu_s=3599.0))
    assert counts(plan) == {1: 0, 2: 4}
    assert "1.0 GPU h attained, second queue" in plan.by_job()[1].reason
    assert plan.wake_at == NOW + 300


def test_least_attained_service_is_fifo_within_a_queue() -> None:
    assert counts(decide("las", running(1, 0, 1, 2, 3, held_s=3000.0), waiting(2))) == {1: 4, 2: 0}
    assert counts(decide("las", running(2, 0, 1, 2, 3, held_s=9000.0), waiting(1, held_gpu_s=4000.0))) == {1: 4, 2: 0}


def test_max_min_gives_the_round_to_who_had_fewest() -> None:
    plan = decide("max-min", running(1, 0, 1, 2, 3, held_s=4 * 720.0), waiting(2, held_gpu_s=4 * 360.0))
    assert counts(plan) == {1: 0, 2: 4}
    assert "2 rounds of 360 s attained" in plan.by_job()[1].reason
    assert plan.wake_at == NOW + 360
    same = decide("max-min", running(1, 0, 1, 2, 3, held_s=4 * 700.0), waiting(2, held_gpu_s=4 * 360.0))
    assert counts(same) == {1: 4, 2: 0}


@pytest.mark.parametrize("name", ["srt", "las", "max-min"])
def test_who_cannot_be_suspended_stays_and_who_fits_beside_it_starts(name: str) -> None:
    kept = running(1, 0, 1, total=10**6, held_s=1e6, can_suspend=False)
    plan = decide(name, kept, waiting(2, 10, gpus=4), waiting(3, 20, gpus=2))
    assert counts(plan) == {1: 2, 2: 0, 3: 2}
    assert plan.by_job()[2].reason.startswith("needs 4 GPUs, held by those before it")


@pytest.mark.parametrize("name", ["srt", "las", "max-min"])
def test_what_never_fits_is_told_and_stops_nobody(name: str) -> None:
    plan = decide(name, waiting(1, 10, gpus=8, gpus_min=8), waiting(2, 1000), waiting(3, blocked="held by its user"))
    assert counts(plan) == {1: 0, 2: 4, 3: 0}
    assert "8 GPUs" in plan.by_job()[1].reason
    assert plan.by_job()[3].reason == "held by its user"
