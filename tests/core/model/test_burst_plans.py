"""Burst-parallel plans of a job: what is refused, and how fast they say that it is."""

from dataclasses import replace

import pytest

from hpcdl.core.model.frozen import from_json, to_json
from hpcdl.core.model.job import MOST_WIDTHS, JobSpec, StagePlan
from hpcdl.core.model.plan import burst_profile

PLANS = (StagePlan(1, 10.0, (1, 1)), StagePlan(2, 6.0, (2, 1)), StagePlan(4, 5.0, (4, 2)))
SPEC = JobSpec(("python", "x.py"), "x", gpus_max=None, burst=PLANS)


def test_an_iteration_takes_what_the_plan_for_no_more_gpus_says() -> None:
    profile = burst_profile(SPEC)
    expected = {1: 100.0, 2: 1000 / 6, 3: 1000 / 6, 4: 200.0, 8: 200.0}
    assert {gpus: profile.rate(gpus) for gpus in expected} == pytest.approx(expected)
    assert burst_profile(replace(SPEC)) is profile
    nodes = burst_profile(replace(SPEC, nodes=2, nodes_max=3))
    assert [nodes.rate(gpus, 2) for gpus in (1, 2, 8)] == pytest.approx([1000 / 6, 200.0, 200.0])
    assert [nodes.rate(gpus, 3) for gpus in (1, 2)] == pytest.approx([1000 / 6, 200.0])


def test_it_is_stored_as_it_is() -> None:
    assert from_json(JobSpec, to_json(SPEC)) == SPEC
    before = {key: value for key, value in to_json(SPEC).items() if key != "burst"}
    assert from_json(JobSpec, before) == replace(SPEC, burst=())


def test_what_is_no_plan() -> None:
    for wrong in (PLANS[1:], (PLANS[0], PLANS[2], PLANS[1]), (PLANS[0], StagePlan(2, 1.0, (1,)))):
        with pytest.raises(ValueError, match="for 1 GPU and then for more and more"):
            replace(SPEC, burst=wrong)
    with pytest.raises(ValueError, match=f"at most {MOST_WIDTHS} widths"):
        replace(SPEC, burst=(StagePlan(1, 1.0, (1,) * (MOST_WIDTHS + 1)),))
    for widths in ((), (3, 1), (0, 1)):
        with pytest.raises(ValueError, match="must give each stage some of them"):
            StagePlan(2, 1.0, widths)
    with pytest.raises(ValueError, match="more than 0 ms"):
        StagePlan(1, 0.0, (1,))
