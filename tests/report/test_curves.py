"""Curves: the exact steps of hand-made histories, and what is drawn of them."""

import math
import re
from itertools import pairwise

import pytest

from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause, Role
from hpcdl.core.model.world import JobState
from hpcdl.report import read_history
from hpcdl.report.charts import Axis, StepCurve, axis_for, chart, curve_legend, kind, rungs_up_to
from hpcdl.report.curves import (
    BINS,
    QUANTILES,
    StepFunction,
    distribution,
    gpus_held,
    gpus_there,
    gpus_training,
    merged,
    queue_length,
)
from tests.report.story import node, placed, rows, set_three, submitted


def steps(curve: StepFunction) -> list[tuple[float, float]]:
    return list(zip(curve.times, curve.values, strict=True))


def test_the_queue_of_set_three() -> None:
    # VGG-16 waits from the submit until it starts, Inception-v3 has nothing in hand only at the moment of its resume.
    assert steps(queue_length(read_history(rows(set_three())))) == [(0, 1), (167, 0)]


def test_gpus_of_set_three() -> None:
    history = read_history(rows(set_three()))
    assert steps(gpus_held(history)) == [(0, 6), (152, 3), (167, 6), (321, 4), (501, 0)]
    # Resume is asked for at 152; job 3 trains from 204 on, job 2 again from 218 on.
    assert steps(gpus_training(history)) == [(0, 0), (37, 6), (152, 0), (204, 2), (218, 6), (321, 4), (501, 0)]
    held = gpus_held(history)
    assert held.mean == pytest.approx((6 * 152 + 3 * 15 + 6 * 154 + 4 * 180) / 501)
    assert held.most == 6
    assert [held.at(when) for when in (-1, 0, 151.9, 152, 400)] == [0, 6, 6, 3, 4]


def test_a_job_that_goes_on_and_one_that_lost_its_gpus_wait_again() -> None:
    told: list[tuple[float, ev.Event]] = [
        (0, node("n1", 2)),
        (0, submitted(1, "a")),
        (10, submitted(2, "b")),
        (20, ev.StartRequested(1, 1, ("n1",), placed([0]))),
        (50, ev.GpusFreed(1, 1, 1, "n1")),
        (50, ev.IncarnationEnded(1, 1, Cause.NODE_LOST)),
        (70, ev.StartRequested(1, 2, ("n1",), placed([0, 1]))),
        (100, ev.NodeSilent("n1")),
    ]
    history = read_history(rows(told))
    assert steps(queue_length(history)) == [(0, 1), (10, 2), (20, 1), (50, 2), (70, 1), (100, 0)]
    assert steps(gpus_held(history)) == [(0, 0), (20, 1), (50, 0), (70, 2), (100, 0)]


def test_a_gpu_with_a_background_job_counts_once() -> None:
    told: list[tuple[float, ev.Event]] = [(0, node("n1", 1))]
    for job, role in ((1, Role.PRIMARY), (2, Role.BACKGROUND)):
        told += [(0, submitted(job, f"{job}")), (0, ev.StartRequested(job, 1, ("n1",), placed([0], role)))]
    for job, end in ((1, 5), (2, 9)):
        told += [(end, ev.IncarnationEnded(job, 1, Cause.DONE)), (end, ev.JobEnded(job, JobState.DONE))]
    assert steps(gpus_held(read_history(rows(told)))) == [(0, 1), (9, 0)]


def test_gpus_that_come_and_go() -> None:
    history = read_history(rows(set_three(origin=100.0)))
    there = gpus_there([((0.0, math.inf), 4), ((150.0, 300.0), 2), ((5000.0, 6000.0), 8)], history)
    assert steps(there) == [(0, 4), (50, 6), (200, 4)]  # they do not leave at the end


def test_nothing() -> None:
    empty = read_history([])
    assert steps(queue_length(empty)) == [(0, 0)]
    assert queue_length(empty).mean is None
    assert merged([(3, 3), (5, 6), (1, 2), (2, 4)]) == [(1, 4), (5, 6)]
    assert distribution([]).times == ()


def test_steps_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="2 times for 1 values"):
        StepFunction((0, 1), (1,), 2)
    with pytest.raises(ValueError, match="ascend"):
        StepFunction((0, 0), (1, 2), 2)


@pytest.mark.parametrize("length", [None, 1000.0, 1777.0])
def test_thinning_keeps_the_area(length: float | None) -> None:
    times = tuple(number * 0.37 for number in range(2600))
    curve = StepFunction(times, tuple(float(number * 7919 % 101) for number in range(2600)), 970.0)
    thin = curve.thinned(length=length)
    assert len(thin.times) <= BINS + 1
    assert thin.end == curve.end
    assert curve.mean is not None
    assert thin.mean == pytest.approx(curve.mean)
    assert thin.most <= curve.most
    ends = StepFunction((*times, 970.0), (*curve.values, 0.0), 970.0).thinned(length=length)
    assert (ends.times[-1], ends.values[-1]) == (970.0, 0.0)
    assert ends.mean == pytest.approx(curve.mean)
    few = StepFunction((0.0, 1.0), (1.0, 2.0), 3.0)
    assert few.thinned() is few


def test_distribution() -> None:
    assert steps(distribution([4.0, 1.0, 1.0, 3.0])) == [(1, 0.5), (3, 0.75), (4, 1)]
    many = distribution([float(number) for number in range(1, 10_001)])
    assert len(many.times) == QUANTILES
    assert (many.times[-1], many.values[-1]) == (10_000, 1)
    assert all(share == at / 10_000 for at, share in steps(many))


@pytest.mark.parametrize("most", [0, 1, 3, 5, 6, 16, 99, 103, 1000, 7_777, 123_456])
def test_rungs_are_few_whole_and_reach_the_top(most: int) -> None:
    rungs = rungs_up_to(most)
    assert 2 <= len(rungs) <= 6
    assert rungs[0] == 0
    assert rungs[-1] >= most
    assert all(rung == int(rung) for rung in rungs)


def test_the_axis_of_times_that_differ_much_is_logarithmic() -> None:
    assert not axis_for([100.0, 200.0, 900.0]).log
    axis = axis_for([5.0, 10.0, 20.0, 90_000.0])
    assert axis.log
    assert axis.place(90_000) == 1
    assert 0 < axis.place(5) < 0.05
    assert 2 <= len(axis.ticks()) <= 8
    assert axis_for([]) == Axis(0.0, 1.0)
    assert axis_for([0.0]).place(0.0) == 0


def test_a_drawing_stays_inside_and_names_its_curves() -> None:
    curves = [
        StepCurve("flat & low", StepFunction((0.0, 40.0), (1.0, 2.0), 100.0), 0),
        StepCurve("high", StepFunction((0.0, 10.0), (9.0, 10.0), 80.0), 1),
        StepCurve("empty", StepFunction((), (), 0.0), 2),
    ]
    drawn = chart("GPUs", "over time", curves, Axis(0.0, 100.0), StepFunction((0.0,), (10.0,), 100.0))
    first, second, third = re.findall(r'<path d="([^"]+)"', drawn)
    assert first == "M0 200V0H2000"
    assert second == "M0 200V180H800V160H2000"
    assert third == "M0 200V20H200V0H1600"
    assert drawn.count('class="direct"') == 2
    assert "flat &amp; low" in drawn
    assert "empty" not in drawn


def test_the_first_eight_curves_differ_in_colour_and_neighbours_in_dashes() -> None:
    kinds = [kind(place) for place in range(16)]
    assert len({each.split()[0] for each in kinds[:8]}) == 8
    assert len(set(kinds)) == 16
    assert all(one.split()[1] != other.split()[1] for one, other in pairwise(kinds[:8]))
    assert "&lt;b&gt;" in curve_legend(["<b>"], "GPUs there")


def test_curves_that_lie_on_each_other_get_no_name() -> None:
    same = StepFunction((0.0, 50.0), (5.0, 3.0), 100.0)
    drawn = chart("x", "y", [StepCurve(name, same, place) for place, name in enumerate("abc")], Axis(0.0, 100.0))
    assert "direct" not in drawn
