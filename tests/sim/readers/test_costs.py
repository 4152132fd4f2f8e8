"""Costs from the command line: of profiles that say none."""

from pathlib import Path

import pytest

from hpcdl.core.model.profile import Profile
from hpcdl.sim import Workload, WorkloadError, cluster
from hpcdl.sim.readers import Costs, read_workload

PLAIN = Profile("plain", ((1, 1, 2.0),))
OWN = Profile("own", ((1, 1, 2.0),), save_s=3.0)
PROFILES = {"plain": PLAIN, "own": OWN}


def read(tmp_path: Path, rows: str, costs: Costs | None) -> Workload:
    path = tmp_path / "jobs.csv"
    path.write_text(f"submit_s,model,gpus,steps,duration_s\n{rows}")
    return read_workload(path, PROFILES, cluster(1, 4), costs=costs)


def test_profiles_without_costs_take_those_that_are_given_and_others_keep_theirs(tmp_path: Path) -> None:
    work = read(tmp_path, "0,plain,1,10,\n0,own,1,10,\n0,plain,1,,100\n0,,2,,100\n", Costs(30.0, None, 7.5))
    plain, own, timed, log = (job.profile for job in work.jobs)
    assert (plain.startup_s, plain.resume_s, plain.save_s) == (30.0, 30.0, 7.5)
    assert own is OWN
    assert timed is plain, "one profile for all of its jobs"
    assert (log.startup_s, log.rate(2)) == (30.0, 1.0)
    assert [job.steps for job in work.jobs[2:]] == [140, 70], "the start-up is a part of a duration"
    assert "a start takes 30 s, a resume 30 s, a save 7.5 s (3 jobs, first in line 2)" in work.notes[0]


def test_a_resume_of_its_own_and_none_at_all(tmp_path: Path) -> None:
    assert read(tmp_path, "0,plain,1,10,\n", Costs(30.0, 20.0)).jobs[0].profile.resume_s == 20.0
    assert read(tmp_path, "0,plain,1,10,\n", None).jobs[0].profile is PLAIN


def test_costs_that_nobody_takes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError) as caught:
        read(tmp_path, "0,own,1,10,\n", Costs(30.0))
    assert str(caught.value).endswith(
        "jobs.csv: every profile has costs of its own: leave out --startup, --resume and --save"
    )
    with pytest.raises(WorkloadError, match="save_s must be a finite number of seconds, 0 or more, got -1"):
        Costs(save_s=-1)
