"""The tables of the MARBLE paper, and the figures that ours must reach on them."""

import json
from functools import cache

import pytest

from benchmarks import marble_several_nodes as several
from hpcdl.core.model.profile import Profile
from hpcdl.sim.papers.marble import (
    COUNTED_TOGETHER,
    against_optimus,
    gpu_by_gpu,
    marble_set,
    memory_of,
    noise,
    predicted,
    several_nodes,
    single_node,
    warm_starts,
    with_noise,
)
from hpcdl.sim.papers.optimus import PERIOD_S
from hpcdl.sim.papers.table import PaperRow, PaperTable
from tests.support.extent import one_of

SINGLE = ("set 1", "set 2", "set 3")
MULTI = ("set 4", "set 5", "set 6")


@cache
def single() -> PaperTable:
    return single_node()


def row(table: PaperTable, workload: str, policy: str) -> PaperRow:
    (found,) = (each for each in table.rows if (each.workload, each.policy) == (workload, policy))
    return found


@pytest.mark.parametrize(("number", "lsf_s", "marble_s"), [(1, 958, 496), (2, 940, 608), (3, 707, 501)])
def test_the_printed_totals_come_out(number: int, lsf_s: int, marble_s: int) -> None:
    workload = f"set {number}"
    lsf, marble = row(single(), workload, "fifo-exclusive"), row(single(), workload, "marble")
    assert lsf.makespan_s == pytest.approx(lsf_s, rel=0.05)
    assert marble.makespan_s == pytest.approx(marble_s, rel=0.05)
    assert lsf.paper["makespan_s"] == lsf_s
    assert marble.paper["makespan_s"] == marble_s
    assert marble.more["reduction"] == pytest.approx(marble.paper["reduction"], abs=0.01)


def test_ours_is_never_worse_8_percent_better_in_all_and_near_the_optimum() -> None:
    for workload in SINGLE:
        ours = row(single(), workload, "adaptive")
        assert ours.makespan_s <= row(single(), workload, "marble").makespan_s + 1e-6
        assert ours.makespan_s <= 1.05 * row(single(), workload, "optimum").makespan_s
        assert ours.makespan_s >= row(single(), workload, "optimum").more["bound_s"] - 1e-6
    assert row(single(), "all together", "adaptive").more["vs_marble"] >= 0.08


def test_set_1_alone_predicts_one_of_the_four_totals_of_sets_2_and_3() -> None:
    table = predicted()
    for policy in ("fifo-exclusive", "marble"):
        fitted = row(table, "set 1", policy)
        assert fitted.makespan_s == pytest.approx(fitted.paper["makespan_s"], abs=0.1)
    errors = {
        (workload, policy): row(table, workload, policy).makespan_s / row(table, workload, policy).paper["makespan_s"]
        - 1
        for workload in ("set 2", "set 3")
        for policy in ("fifo-exclusive", "marble")
    }
    assert [case for case, error in errors.items() if abs(error) <= 0.05] == [("set 2", "marble")]
    assert max(map(abs, errors.values())) < 0.3


def test_warm_starts_hide_something() -> None:
    table = warm_starts()
    for workload in SINGLE:
        warm = row(table, workload, "marble-warm")
        assert warm.makespan_s <= row(single(), workload, "marble").makespan_s + 1e-6
        assert row(table, workload, "adaptive").makespan_s <= warm.makespan_s + 1e-6
    assert row(table, "set 3", "marble-warm").more["vs_marble"] > 0.02


def test_noise_in_the_curves() -> None:
    table = noise(tuple(range(12)))
    for workload in SINGLE:
        told = row(table, f"{workload}, noise, error told", "adaptive")
        assert told.makespan_s <= 1.02 * row(table, f"{workload}, noise", "marble").makespan_s
        assert told.makespan_s <= 1.02 * row(single(), workload, "marble").makespan_s
        untold = row(table, f"{workload}, noise, error not told", "adaptive")
        assert untold.makespan_s <= 1.02 * row(table, f"{workload}, noise", "marble").makespan_s
        assert told.more["seeds"] == 12


def test_noise_is_seeded_and_only_in_what_is_believed() -> None:
    true = marble_set(1)
    one, again, other = (with_noise(true, seed) for seed in (3, 3, 4))
    assert one == again != other
    assert [job.profile for job in one.jobs] == [job.profile for job in true.jobs]
    first, second, third = (job.believed for job in one.jobs)
    assert isinstance(first, Profile)
    assert first is second  # one curve for each model
    assert third is not first
    assert first.spread == 0.1
    untold = with_noise(true, 3, told=False).jobs[0].believed
    assert untold is not None
    assert untold.spread == 0.0
    assert untold.points == first.points


@pytest.mark.parametrize("speed", one_of(COUNTED_TOGETHER, 1.0))
def test_every_reduction_on_several_nodes_is_higher_than_marbles(speed: float) -> None:
    table = several_nodes("sets", speed)
    for workload in MULTI:
        ours, marble = row(table, workload, "adaptive"), row(table, workload, "marble")
        assert ours.more["reduction"] > marble.more["reduction"] + 0.1
        # Of jobs that end eight times as soon the rule on preemption, which the optimum has not, keeps more apart.
        assert ours.more["over_optimum"] < (0.05 if speed == 1.0 else marble.more["over_optimum"] / 2)
        assert marble.paper["reduction"] in (0.211, 0.305)


def test_against_optimus() -> None:
    table = against_optimus()
    gains = [row(table, f"set {number}", "marble").more["vs_optimus"] for number in (7, 8, 9)]
    assert max(gains) == pytest.approx(0.47, abs=0.03)  # "up to 47 %"
    assert min(gains) > 0.3
    for number in (7, 8, 9):
        ours = row(table, f"set {number}", "adaptive")
        assert ours.makespan_s < row(table, f"set {number}", "marble").makespan_s
    assert PERIOD_S == 600
    for each in gpu_by_gpu().rows:
        if each.policy == "adaptive":
            assert each.more["vs_optimus"] > 0


def test_a_table_is_plain_values() -> None:
    plain = json.loads(json.dumps(single().to_json(), allow_nan=False))
    assert plain["name"] == "MARBLE sets 1 to 3"
    assert plain["notes"]
    assert {"workload", "policy", "makespan_s", "mean_jct_s", "paper"} <= plain["rows"][0].keys()
    assert plain["rows"][1]["paper"] == {
        "makespan_s": 496,
        "reduction": 0.483,
        "suspend_resume_share": 0.132,
        "utilisation_gain": 0.86,
        "memory_gain": 0.91,
    }


def test_gains_of_utilisation_are_those_of_the_totals() -> None:
    """Figures 6b and 6c: the same work in less time; the printed gains of both are within 8 points of that."""
    for number in (1, 2, 3):
        lsf, ours = (row(single(), f"set {number}", policy) for policy in ("fifo-exclusive", "marble"))
        assert ours.more["utilisation_gain"] == pytest.approx(lsf.makespan_s / ours.makespan_s - 1)
        for key in ("utilisation_gain", "memory_gain"):
            assert ours.paper[key] == pytest.approx(ours.more["utilisation_gain"], abs=0.08)
        assert ours.paper["memory_gain"] == pytest.approx(ours.more["utilisation_gain"], abs=0.04)
        assert 0 < lsf.more["memory_utilisation"] < ours.more["memory_utilisation"] < 1
        assert lsf.more["memory_gain"] == 0


@pytest.mark.parametrize("speed", [0.5, 4.0, 16.0])
@pytest.mark.parametrize("rise", [0.2, 0.9])
def test_no_curve_with_the_fastest_numbers_of_one_node_gives_set_4_its_printed_reduction(
    speed: float, rise: float
) -> None:
    workload = several.with_curves(4, speed, several.ONE_NODE, dict.fromkeys(several.ONE_NODE, rise))
    assert several.reduction(workload) > 0.3 > several.PRINTED[4]


def test_other_fastest_numbers_give_all_three_printed_reductions() -> None:
    fastest = several.ONE_NODE | {"resnet-50": 5, "resnet-101": 5}
    rise = {"resnet-50": 0.93, "inception-v3": 0.56, "resnet-101": 0.71, "vgg-16": 0.42}
    for number, printed in several.PRINTED.items():
        found = several.reduction(several.with_curves(number, 2.0, fastest, rise))
        assert found == pytest.approx(printed, abs=0.02)


def test_memory_is_assumed_of_every_model_and_fits_a_gpu() -> None:
    models = {job.name.split()[0] for number in range(1, 10) for job in marble_set(number).jobs}
    assert models == {"ResNet-50", "Inception-v3", "ResNet-101", "VGG-16"}
    for model in models:
        assert memory_of(model).on(6) < memory_of(model).on(1) < 16_384
        assert memory_of(model, 8).on(48) == memory_of(model).on(6), "each node has a batch of its own"


def test_a_further_figure_cannot_hide_a_column() -> None:
    with pytest.raises(ValueError, match="makespan_s"):
        PaperRow("w", "p", 1.0, 1.0, {"makespan_s": 2.0})
