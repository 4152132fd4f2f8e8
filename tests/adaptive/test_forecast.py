"""What is estimated of a job with a deadline, and what would help it."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl.adaptive.forecast import estimate_deadline, outlooks, probability, roll
from hpcdl.core.model.plan import JobView, View
from hpcdl.core.model.profile import Profile
from tests.adaptive.views import job, node, running, view
from tests.support.seeds import seeds

SLOW = Profile("slow", ((1, 1, 1.0), (1, 2, 1.6), (1, 4, 2.5)), 30.0, 20.0, 30.0)


def due_view(*jobs: JobView, gpus: int = 4, now: float = 0.0) -> View:
    return view(*jobs, nodes=(node("n1", gpus),), now=now, objective="deadline")


def due_job(number: int, total: int, deadline: float | None, **more: object) -> JobView:
    known: dict[str, object] = {"profile": SLOW, "deadline": deadline, "submitted_at": 0.0}
    return job(number, total, **(known | more))


def test_an_empty_cluster_and_time_enough() -> None:
    found = estimate_deadline(due_view(), due_job(1, 1000, 5000.0))
    assert found is not None
    assert found.probability > 0.95
    assert found.ends_at == 1030.0
    assert found.helps == ()
    due, ends = (datetime.fromtimestamp(at, UTC).astimezone().strftime("%H:%M") for at in (5000.0, 1030.0))
    assert found.lines(0.0) == [
        f"deadline {due}: 99 % likely to be met",
        f"if nothing else comes, it is done by {ends}",
    ]
    assert found.lines(0.0, "under x")[0] == f"deadline {due}: 99 % likely under x"


def test_no_number_of_gpus_is_enough() -> None:
    found = estimate_deadline(due_view(), due_job(1, 9000, 3000.0))
    assert found is not None
    assert found.probability == 0.0
    first, helps = found.lines(0.0, "under x")
    assert first.endswith(" cannot be met: needs 1 h 00 min at least"), "whatever is chosen"
    assert helps == f"under x: {'; '.join(found.helps)}"
    assert any("later" in each for each in found.helps)


def test_more_gpus_would_help() -> None:
    found = estimate_deadline(due_view(), due_job(1, 1000, 700.0, gpus_max=1))
    assert found is not None
    assert found.probability == 0.0
    assert any("with up to 2 GPUs per node instead of 1" in each for each in found.helps)


def test_a_later_deadline_would_help_by_as_much_as_it_says() -> None:
    seen, mine = due_view(), due_job(1, 9000, 3000.0)
    found = estimate_deadline(seen, mine)
    assert found is not None
    assert any("with a deadline 20 min later" in each for each in found.helps)
    after = estimate_deadline(seen, replace(mine, deadline=3000.0 + 1200.0))
    assert after is not None
    assert after.probability >= 0.9


def test_it_waits_for_those_that_are_more_urgent() -> None:
    held = [running(n, n - 1, total=2000, profile=SLOW, deadline=2010.0, step=0, step_at=0.0) for n in range(1, 5)]
    mine = due_job(5, 600, 6000.0)
    rolled = roll(due_view(*held), mine)
    assert rolled is not None
    assert rolled.ends_s >= 630.0
    free = roll(due_view(), mine)
    assert free is not None
    assert rolled.ends_s >= free.ends_s


def test_what_cannot_be_estimated() -> None:
    assert estimate_deadline(due_view(), due_job(1, 1000, None)) is None
    assert estimate_deadline(due_view(), replace(due_job(1, 1, 5000.0), total=None)) is None
    assert estimate_deadline(due_view(), due_job(1, 1000, 5000.0, gpus_min=5)) is None


def test_uncertain_rates_make_it_less_likely() -> None:
    sure = due_job(1, 1000, 500.0)
    unsure = replace(sure, profile=replace(SLOW, spread=0.2))
    seen = due_view()
    chances = []
    for each in (sure, unsure):
        rolled = roll(seen, each)
        assert rolled is not None
        chances.append(probability(seen, each, rolled))
    assert chances[1] < chances[0]


def test_more_that_keeps_coming_makes_it_less_likely() -> None:
    mine = due_job(50, 4000, 12000.0, submitted_at=7200.0)
    few = [due_job(n, 600, 20000.0, submitted_at=3600.0 * n) for n in (1, 2)]
    many = [due_job(n, 600, 20000.0, submitted_at=200.0 * n) for n in range(1, 40, 2)]
    chances = []
    for jobs in (few, many):
        found = estimate_deadline(due_view(*jobs, now=7200.0), replace(mine, id=len(jobs) * 2 + 1))
        assert found is not None
        chances.append(found.probability)
    assert chances[1] < chances[0]


@settings(max_examples=seeds(40), deadline=None)
@given(
    totals=st.lists(st.integers(1, 5000), max_size=6),
    total=st.integers(1, 5000),
    due=st.integers(1, 20000),
    gpus=st.integers(1, 6),
)
def test_a_chance_is_a_chance_and_the_same_when_asked_again(totals: list[int], total: int, due: int, gpus: int) -> None:
    others = [due_job(n, each, float(due + each)) for n, each in enumerate(totals, 1)]
    seen, mine = due_view(*others, gpus=gpus), due_job(99, total, float(due))
    found = estimate_deadline(seen, mine)
    assert found is not None
    assert 0.0 <= found.probability <= 1.0
    assert found == estimate_deadline(seen, mine)
    assert found.ends_at is None or found.ends_at >= total / 2.5


def test_one_look_ahead_answers_for_all_jobs_as_one_for_each_would() -> None:
    jobs = [due_job(n, 600 * n, 3000.0 + 700.0 * n if n % 3 else None, submitted_at=100.0 * n) for n in range(1, 10)]
    seen = due_view(*jobs, now=1000.0)
    found = outlooks(seen, [*(each.id for each in jobs), 77], {})
    assert sorted(found) == [each.id for each in jobs if each.deadline is not None]
    for each in jobs:
        alone = estimate_deadline(seen, each)
        assert found.get(each.id) == (None if alone is None else (alone.probability, alone.ends_at))
    assert outlooks(due_view(), [1], {}) == {}


def test_who_is_slower_than_its_profile_says_is_late() -> None:
    mine = running(1, 0, total=2000, profile=SLOW, deadline=3000.0, step=500, step_at=0.0, submitted_at=-900.0)
    seen = due_view(mine, gpus=1)
    believed, slow = outlooks(seen, [1], {})[1], outlooks(seen, [1], {1: 0.45})[1]
    assert (believed[0] > 0.95, believed[1]) == (True, 1500.0)
    assert (slow[0] < 0.1, round(slow[1] or 0.0, 6)) == (True, round(1500.0 / 0.45, 6))
    assert outlooks(seen, [1], {1: 0.2})[1][0] == 0.0
    assert outlooks(seen, [1], {1: 0.95})[1] == pytest.approx(believed, rel=1e-3), "a little slower is the same"
    estimated = estimate_deadline(seen, mine, 0.45)
    assert estimated is not None
    assert (estimated.probability, estimated.ends_at) == slow
