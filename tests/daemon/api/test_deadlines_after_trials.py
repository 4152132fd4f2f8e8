"""What is said of a deadline once a job like it has trained for a few seconds: no certainty from a trial."""

from dataclasses import replace

import pytest

from benchmarks.deadlines_after_trials import FAMILIES, TrialWorld, Verdict, counts, simulated_verdicts
from hpcdl.adaptive.deadline import outlook
from hpcdl.adaptive.options import candidates
from hpcdl.adaptive.prior import doubt
from hpcdl.core.controller.view_builder import build_view
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.core.model.job import JobSpec
from hpcdl.core.rules.intake import Settings
from hpcdl.daemon.api.estimates import not_known_text
from hpcdl.daemon.api.learnt import learnt_of
from hpcdl.daemon.api.submit import submit_of, tried
from hpcdl.daemon.time_left import measured_rate, remaining
from hpcdl.policies import all_policies

WARM = ((8.0, 1), (9.16, 17), (9.17, 20))
"""Reports of 20 steps, of which the first took 8 s and the others 0.06 s each; the last one follows at once."""


def test_a_slow_first_step_is_not_extrapolated() -> None:
    """What was found: 20 steps in 9 s, so 300 steps in 2 min "cannot be met: needs 2 min 19 s at least"; took 28 s."""
    trials = TrialWorld()
    trials.trains(WARM)
    found = trials.told(300, 120.0)
    assert found["probability"] > 0.9
    assert 15.0 < found["needs_low_s"] < 27.0 < found["needs_high_s"] < 60.0
    assert 20.0 < found["needs_s"] < 40.0, "one warm-up, and 300 steps of 0.06 s"
    assert "perhaps 2" in found["text"]
    assert "s: from 20 steps of job 1" in found["text"]


@pytest.mark.parametrize(
    "reports",
    [
        ((8.0, 1), (16.0, 2), (24.0, 3)),
        ((9.0, 12), (9.5, 20)),
        ((8.0, 1), (12.0, 2), (14.0, 3), (15.0, 5), (16.0, 20)),
    ],
)
def test_what_may_be_met_is_not_called_impossible(reports: tuple[tuple[float, int], ...]) -> None:
    """Steps that all were of the warm-up, a report of slow and fast ones, and one that ends little by little."""
    trials = TrialWorld()
    trials.trains(reports)
    found = trials.told(300, 60.0)
    assert 0.0 < found["probability"] < 1.0
    assert "cannot be met" not in found["text"]


def test_what_is_impossible_is_called_so() -> None:
    trials = TrialWorld()
    trials.trains(WARM)
    found = trials.told(100_000, 60.0)
    assert found["probability"] == 0.0
    assert "cannot be met: needs" in found["text"]
    assert trials.told(300, -5.0)["lines"][0].endswith("has passed")


def test_more_steps_make_it_surer() -> None:
    short, long = TrialWorld(), TrialWorld()
    short.trains(WARM)
    long.trains(tuple((8.0 + 1.2 * report, 1 + 20 * report) for report in range(60)))
    bands = [found["needs_high_s"] / found["needs_low_s"] for found in (t.told(3000, 600.0) for t in (short, long))]
    assert bands[1] < 1.4 < bands[0]


def test_jobs_that_differ_make_it_less_sure() -> None:
    alike, unlike = TrialWorld(), TrialWorld()
    for trials, seconds in ((alike, (60.0, 60.0, 60.0)), (unlike, (30.0, 60.0, 120.0))):
        for each in seconds:
            trials.trains(tuple((each * part / 20, 50 * part) for part in range(1, 21)))
    bands = [found["needs_high_s"] / found["needs_low_s"] for found in (t.told(3000, 600.0) for t in (alike, unlike))]
    assert bands[0] < 1.3 < 2.0 < bands[1]


def test_further_gpus_may_be_of_no_use() -> None:
    trials = TrialWorld(4)
    trials.trains(tuple((1.2 * report, 20 * report) for report in range(1, 60)))
    found = trials.told(2000, 60.0, gpus=4)
    assert found["needs_s"] < 60.0 < found["needs_high_s"]
    assert trials.told(2000, 25.0, gpus=4)["probability"] > 0.0
    assert trials.told(2000, 5.0, gpus=4)["probability"] == 0.0, "six times as fast at most"


def test_one_report_is_no_rate_yet() -> None:
    trials = TrialWorld()
    number = trials.trains(((8.3, 1),), ends=False)
    assert trials.told(300, 600.0)["probability"] is None
    running = trials.world.jobs[number]
    assert not_known_text(trials.world, running, trials.profiles, trials.at).startswith(
        "when it is done is not known yet"
    )


def test_a_job_that_runs_itself_soon_has_its_own_rate() -> None:
    trials = TrialWorld(2)
    trials.trains(tuple((0.9 * report, 9 * report) for report in range(1, 20)))
    told = trials.told(3000, 1000.0)
    slower = [(seconds, round(7.5 * seconds)) for seconds in (0.6, 1.1, 1.6, 2.4, 3.6, 5.4, 8.1, 12.2, 18.3, 24.0)]
    number = trials.trains(((0.13, 1), *slower), ends=False)
    rate = measured_rate(trials.world.jobs[number], trials.at)
    assert rate == pytest.approx(7.5, rel=0.02), "after 24 s, of which the trial says 10 steps/s"
    left = remaining(trials.world, trials.world.jobs[number], trials.profiles, trials.at)
    assert left is not None
    assert (left.measured, left.low) == (True, None)
    assert told["needs_low_s"] < 300.0 < told["needs_high_s"]


def test_what_is_left_of_a_job_carries_the_band_of_a_trial() -> None:
    trials = TrialWorld(2)
    trials.trains(WARM)
    number = trials.submit(300)
    trials.then(ev.StartRequested(number, 1, ("n1",), Placement((Share("n1", (0,)),))))
    trials.then(ev.Started(number, 1, 1, "n1", pid=7))
    left = remaining(trials.world, trials.world.jobs[number], trials.profiles, trials.at)
    assert left is not None
    assert left.low is not None
    assert left.high is not None
    assert left.low < left.seconds < left.high


def test_a_trial_is_not_the_length_of_another_job() -> None:
    """What was found: 300 steps of the same script under another name were taken to last as long as a trial of 20."""
    trials = TrialWorld(2)
    trials.trains(WARM)
    spec = JobSpec(("python", "warm.py"), "another", gpus_min=1, gpus_max=1)
    for steps, low, high in ((300, 100.0, 250.0), (None, 5.0, 20.0)):
        number = trials.world.next_job
        trials.then(ev.JobSubmitted(number, replace(spec, steps=steps), f"request {number}"))
        view = build_view(trials.world, trials.profiles, trials.at)
        candidate = next(each for each in candidates(view).candidates if each.job.id == number)
        assert candidate.left_s is not None
        assert low < candidate.left_s < high
        assert doubt(candidate.job) >= 0.9, "with great doubt"


def test_a_dry_run_tells_the_deadline_with_its_band() -> None:
    trials = TrialWorld()
    trials.trains(WARM)
    entry = {"command": ["python", "warm.py"], "name": "warm", "gpus_max": 1, "steps": 300}
    command = submit_of({"request_id": "again", "jobs": [entry | {"deadline": trials.at + 120.0}]})
    (row,) = tried(trials.world, command, all_policies(), trials.profiles, Settings(), trials.at)
    assert row["ends_low_at"] < row["ends_at"] < row["ends_high_at"]
    assert "perhaps" in row["forecast"]["text"]
    assert row["forecast"]["probability"] > 0.9


def test_a_job_with_much_evidence_is_planned_without_much_caution() -> None:
    """What was found: learnt rates were planned as nearly twice as long, for what was not known of 16 GPUs."""
    trials = TrialWorld(16)
    trials.trains(tuple((1.2 * report, 12 * report) for report in range(1, 200)))
    number = trials.submit(3000, 1000.0)
    view = build_view(trials.world, trials.profiles, trials.at)
    table = outlook(view, candidates(view))
    assert view.by_id[number].profile.spread > 0.1  # type: ignore[union-attr]
    assert 300.0 < table.seconds.min() < 345.0


def test_of_a_deadline_nothing_is_claimed_that_is_not_known() -> None:
    """What was found: "kept on time" of a deadline in 2 s, and "cannot meet its deadline" after a trial."""
    trials = TrialWorld()
    trials.trains(WARM)
    for due_s, said in ((2.0, "will hardly meet its deadline"), (200.0, "expected to be done by")):
        number = trials.submit(300, due_s)
        view = build_view(trials.world, trials.profiles, trials.at)
        alone = replace(view, jobs=(view.by_id[number],))
        (target,) = all_policies().make("adaptive").decide(alone).targets
        assert said in target.reason


def test_a_short_job_says_nothing_of_the_length_of_a_long_one() -> None:
    trials = TrialWorld()
    trials.trains(WARM)
    for steps, told in ((20, True), (3000, False)):
        number = trials.submit(steps)
        lines, found = learnt_of(trials.world, trials.world.jobs[number])
        assert any("whole job" in line for line in lines) is told
        assert found["length"] is not None


def test_the_benchmark_finds_no_impossible_deadline_that_is_met() -> None:
    found = counts(simulated_verdicts(60, seed=7))
    assert found["submits"] == 60
    assert found["impossible_met"] == 0
    assert found["off"] == 0


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_of_no_family_of_scripts_what_is_told_is_clearly_wrong(family: str) -> None:
    found = counts(simulated_verdicts(30, seed=8, family=family))
    assert (found["off"], found["impossible_met"]) == (0, 0)


def test_a_bin_is_judged_by_how_much_its_answers_can_say() -> None:
    few, many = ([Verdict(0.3, False)] * number for number in (4, 40))
    assert (counts(few)["off"], counts(many)["off"]) == (0, 1)
    assert counts(few)["bins"][0]["met_high"] == pytest.approx(0.602, abs=0.001)
