"""Placements, cost, CER, latency and ECT, against numbers worked out by hand."""

import pytest

from hpcdl.core.model.plan import NodeView, View
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import JobState
from hpcdl.genie import model
from tests.genie.made import CURVE, job


def platform(*sizes: int, kind: str = "") -> model.Platform:
    return model.platform_of(
        View(0.0, tuple(NodeView(f"n{i}", tuple(range(n)), kind) for i, n in enumerate(sizes)), ())
    )


def test_cost_of_equation_10() -> None:
    four = platform(4, 4, 4, 4)
    assert model.cost(four, 1, 1) == pytest.approx(1 / 16 + 0.4 / 4)
    assert model.cost(four, 2, 2) == pytest.approx(4 / 16 + 0.4 * 2 / 4)
    assert model.cost(four, 1, 4) < model.cost(four, 4, 1)  # the same GPUs, packed


def test_placements_of_a_job_by_falling_cer() -> None:
    found = model.placements(job(1, nodes_max=2), platform(4, 4))
    assert {(o.nodes, o.gpus) for o in found} == {(n, g) for n in (1, 2) for g in (1, 2, 3, 4)}
    assert [o.ratio for o in found] == sorted((o.ratio for o in found), reverse=True)
    best = found[0]
    assert (best.nodes, best.gpus) == (1, 2)
    assert best.ratio == pytest.approx(1.9 / (2 / 8 + 0.4 / 2))


def test_placements_keep_to_what_the_job_takes() -> None:
    only = model.placements(job(1, counts=(1, 4)), platform(4, 4))
    assert {(o.nodes, o.gpus) for o in only} == {(1, 1), (1, 4)}
    assert {o.gpus for o in model.placements(job(1, gpus_min=2, gpus_max=3), platform(4))} == {2, 3}
    assert {o.nodes for o in model.placements(job(1, nodes=2, nodes_max=3), platform(4, 4, 4, 4))} == {2, 3}
    assert model.placements(job(1, nodes=3), platform(4, 4)) == ()
    assert model.placements(job(1, gpus_min=8, gpus_max=8), platform(4, 4)) == ()
    assert model.placements(job(1), platform()) == ()


def test_two_nodes_give_what_the_smaller_one_has() -> None:
    found = model.placements(job(1, nodes=2), platform(4, 2))
    assert {o.gpus for o in found} == {1, 2}


def test_a_placement_has_gpus_of_one_kind_at_that_kinds_rate() -> None:
    mixed = model.platform_of(View(0.0, (NodeView("a", (0, 1), "v100"), NodeView("b", (0, 1), "k80")), ()))
    profile = Profile("p", ((1, 1, 1.0), (1, 2, 2.0)), kinds=(("k80", ((1, 1, 0.1), (1, 2, 0.2))),))
    found = model.placements(job(1, profile=profile, nodes_max=2), mixed)
    assert {(o.kind, o.nodes, o.gpus): o.rate for o in found} == {
        ("v100", 1, 1): 1.0,
        ("v100", 1, 2): 2.0,
        ("k80", 1, 1): 0.1,
        ("k80", 1, 2): 0.2,
    }
    assert found[0].kind == "v100"


def test_latency_of_equation_4() -> None:
    option = model.PlacementOption("", 1, 2, 1.9, 0.3, 6.3)
    assert model.latency(job(1), option, 0.0) == pytest.approx(30 + 1000 / 1.9)
    assert model.latency(job(1, step=620), option, 0.0) == pytest.approx(30 + 380 / 1.9)
    assert model.latency(job(1, total=None), option, 0.0) is None
    assert model.latency(job(1, profile=None), option, 0.0) is None


def test_a_suspended_job_resumes() -> None:
    profile = Profile("p", CURVE.points, startup_s=30.0, resume_s=37.0)
    option = model.PlacementOption("", 1, 2, 1.9, 0.3, 6.3)
    suspended = job(1, profile=profile, state=JobState.SUSPENDED, step=810)
    assert model.latency(suspended, option, 0.0) == pytest.approx(37 + 190 / 1.9)


def test_expected_completion_times_of_equation_9() -> None:
    single = 30 + 1000.0
    assert model.single_latency(job(1)) == single
    assert model.expected_at(job(1, submitted_at=50.0)) == 50 + 2 * single  # no deadline: normal
    assert model.expected_at(job(1, submitted_at=50.0, deadline=50.0)) == 50  # urgent
    assert model.expected_at(job(1, submitted_at=50.0, deadline=50.0 + single)) == 50 + single  # prior
    assert model.expected_at(job(1, total=None)) is None
    assert model.expected_at(job(1, profile=None, deadline=9.0)) == 9.0
