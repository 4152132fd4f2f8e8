"""What reports of an attempt show: where its warm-up ends, how sure its rate is, how much jobs of a kind differ."""

import math
from collections.abc import Sequence

import pytest

from hpcdl.core.fold.trials import STRETCHES, differences, shows_clearly, shows_rate, trial_of, warm_up, with_report
from hpcdl.core.model.profile import AttemptRate, Profile
from hpcdl.estimators.certainty import WholeTime, certainty

STEADY = ((1, 0.18), (2, 0.36), (3, 0.54), (4, 0.72), (6, 1.08), (7, 1.26))


def attempt(reports: Sequence[tuple[float, float]], job: int = 1) -> AttemptRate:
    """An attempt whose reports are of so many steps that took so many seconds."""
    run = AttemptRate(job, 1, "v100", 1, 1)
    for steps, seconds in reports:
        run = with_report(run, steps, seconds)
    return run


def rate(run: AttemptRate) -> float:
    return run.counted.steps / run.counted.seconds


def test_a_slow_first_step_is_a_warm_up() -> None:
    run = attempt(((1, 8.0), (19, 1.2)))
    assert (run.warm.steps, run.warm.seconds) == (1, 8.0)
    assert rate(run) == pytest.approx(19 / 1.2)
    assert run.hidden < 0.02
    took = warm_up([run])
    assert took is not None
    assert took.seconds == pytest.approx(8.0, abs=0.2)


@pytest.mark.parametrize("steps", [10.0**6, 10.0**16, 10.0**30])
@pytest.mark.parametrize("seconds", [1e-9, 0.5, 1e12])
def test_numbers_that_nobody_means_are_survived(steps: float, seconds: float) -> None:
    """Found: after 10^16 steps one more made no difference, and the logarithm of 0 was asked for."""
    run = attempt([(20, 5.0), (steps, seconds), (1, 0.5), (steps, 0.0), (3, seconds), (5, 1.0)])
    assert all(map(math.isfinite, (run.error, run.variation, run.hidden, *(by for _, by in run.else_faster))))
    found = certainty(
        Profile("p", ((1, 1, rate(run)),), trials=(trial_of([run], rate(run), 0.0, differences([run])),)),
        "v100",
        1,
        1,
        WholeTime(),
    )
    assert found.low <= found.high < 100.0


@pytest.mark.parametrize("slow", [3.0, 30.0])
def test_a_warm_up_of_several_steps_ends_where_they_get_faster(slow: float) -> None:
    run = attempt([(1, 0.2 * slow)] * 4 + [(2, 0.4), (3, 0.6), (5, 1.0), (8, 1.6)])
    assert run.warm.steps == 4
    assert rate(run) == pytest.approx(5.0)


def test_a_warm_up_that_fades_does_not_count_as_it_began() -> None:
    """What was found: of 24 steps with two reports 12 were a warm-up, and the job was to take half as long again."""
    factors = [1 + 27 * 0.6**step for step in range(12)] + [1.0] * 12
    run = attempt([(1, 0.13 * each) for each in factors[:8]] + [(4, 0.13 * sum(factors[8:12]))] + [(6, 0.78)] * 2)
    assert rate(run) == pytest.approx(1 / 0.13, rel=0.1)


def test_steady_steps_are_sure_and_few_are_not() -> None:
    run = attempt(STEADY)
    assert run.warm.steps == 0
    assert run.error < 0.05**2
    assert run.hidden < 0.06
    few = attempt(STEADY[:2])
    assert few.hidden > 2 * run.hidden
    assert few.error > run.error
    assert (shows_clearly(run), shows_clearly(few)) == (True, False)


def test_steps_that_differ_are_less_sure() -> None:
    noisy = attempt([(steps, seconds * (0.5 if place % 2 else 1.7)) for place, (steps, seconds) in enumerate(STEADY)])
    assert noisy.variation > 4 * attempt(STEADY).variation
    assert noisy.error > 4 * attempt(STEADY).error


def test_steps_that_were_done_when_the_last_report_came_take_no_time() -> None:
    run = attempt(((1, 0.3), (8, 1.6), (2, 0.0)))
    assert (run.counted + run.warm).steps == 11
    assert rate(attempt(((8, 1.6), (2, 0.0)))) == pytest.approx(10 / 1.6)
    assert attempt(((2, 0.0),)).stretches == (), "no report yet"


def test_what_is_kept_of_an_attempt_is_bounded_and_its_sums_are_whole() -> None:
    run = attempt([(1, 3.0)] + [(10 + report % 3, 1.0) for report in range(500)])
    assert len(run.stretches) == STRETCHES
    assert (run.stretches[0].steps, run.warm.steps) == (1, 1)
    assert (run.counted + run.warm).seconds == pytest.approx(503.0)
    assert shows_rate(run)


def test_a_single_report_of_few_steps_is_no_rate() -> None:
    assert not shows_rate(attempt(((1, 8.3),)))
    assert shows_rate(attempt(((40, 8.3),)))


def test_how_much_jobs_of_a_kind_differ_is_learnt_from_all_of_the_instance() -> None:
    long = [(100, 10.0)] * 10
    alike = differences([attempt(long, job) for job in range(1, 9)])
    unlike = differences([attempt([(100, 10.0 * math.exp(0.25 * (-1) ** job))] * 10, job) for job in range(1, 9)])
    assert alike[1] > 3
    assert math.sqrt(max(0.0, alike[0]) / alike[1]) < 0.03
    assert math.sqrt(unlike[0] / unlike[1]) == pytest.approx(0.25, rel=0.25)
    run, nothing = attempt(long), (0.0, 0.0)
    scales = [trial_of([run], 10.0, 0.0, nothing, others).scale for others in ([alike], [], [unlike])]
    assert scales[0] < scales[1] < scales[2]
    assert trial_of([run], 10.0, 0.0, unlike, [alike] * 5).scale > scales[1], "its own jobs say more"


def test_what_a_trial_says_counts_its_steps() -> None:
    found = trial_of([attempt(((1, 8.0), (19, 1.2)), 3)], 19 / 1.2, 7.9, (0.0, 0.0))
    assert found.of == "20 steps of job 3"
    assert found.warm_s == 7.9
    assert found.scale > trial_of([attempt(STEADY)], 1 / 0.18, 0.0, (0.0, 0.0)).scale
