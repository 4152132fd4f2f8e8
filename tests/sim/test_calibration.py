"""What `submit --deadline` foretells comes true as often as it says: jobs of a day that the forecast never saw."""

from dataclasses import replace
from statistics import fmean

import pytest

from benchmarks.deadline_calibration import predicted
from hpcdl.sim.papers.data import genie

HOURS = 10


@pytest.mark.long
def test_what_is_foretold_of_deadlines_comes_true() -> None:
    """Twenty tasks an hour are twice what the GPUs can do, so many deadlines are missed."""
    day = genie(20, 2001)
    told = predicted(replace(day, jobs=tuple(job for job in day.jobs if job.submit_s < HOURS * 3600.0)))
    assert len(told) > 100
    assert 0.5 < fmean(met for _, met in told) < 0.97
    assert abs(fmean(chance for chance, _ in told) - fmean(met for _, met in told)) < 0.08
    brier = fmean((chance - met) ** 2 for chance, met in told)
    rate = fmean(met for _, met in told)
    assert brier < 0.12
    assert brier < 0.75 * rate * (1 - rate)  # of one who always says how many meet theirs
    sure = [met for chance, met in told if chance >= 0.95]
    doubtful = [met for chance, met in told if chance < 0.5]
    assert fmean(sure) > 0.95
    assert fmean(doubtful) < 0.5
