"""Every measure of a run, on one that can be worked out by hand."""

import json

import pytest

from hpcdl.core.model.profile import Profile
from hpcdl.policies import all_policies
from hpcdl.sim import SimJob, Workload, cluster, simulate
from hpcdl.sim.results import percentile, summarise
from hpcdl.sim.workload import NodeSpell
from tests.sim.runs import Calls, Script, jobs_of, on, run

PLAIN = Profile("plain", ((1, 1, 1.0), (1, 2, 2.0)), startup_s=10.0, save_s=2.0, resume_s=5.0, power_w=300.0)


def test_a_run_by_hand() -> None:
    """Job 1 trains from 10 on, on one GPU; at 30 it goes to two (saved at 32, on from 37): 80 - 20 steps, until 67.
    Job 2 waits until 50 for GPU 0 of the other node, trains from 60 to 90."""
    first = SimJob(0.0, "first", PLAIN, 80, user="ada", deadline_s=70.0)
    second = SimJob(20.0, "second", PLAIN, 30, deadline_s=80.0)
    script = Script(
        (0.0, {1: on("n1", 0)}),
        (30.0, {1: on("n1", 0, 1)}),
        (50.0, {1: on("n1", 0, 1), 2: on("n2", 0)}),
    )
    found = summarise(run([first, second], cluster(2, 2), script))
    one, two = found.jobs
    assert (one.wait_s, one.start_s, one.end_s, one.jct_s) == (0.0, 0.0, 67.0, 67.0)
    assert (two.wait_s, two.start_s, two.end_s, two.jct_s) == (30.0, 50.0, 90.0, 70.0)
    assert one.gpus == ((0.0, 1), (32.0, 2), (67.0, 0))
    assert (one.suspends, one.resumes, one.rescales, one.moves) == (1, 1, 1, 0)
    assert one.lost_s == 37.0 - 30.0
    assert (one.deadline_met, two.deadline_met) == (True, False)
    assert (one.user, one.state) == ("ada", "DONE")
    assert found.makespan_s == 90.0
    assert (found.mean_jct_s, found.median_jct_s, found.p95_jct_s) == (68.5, 68.5, 70.0)
    assert (found.mean_wait_s, found.longest_wait_s, found.p95_wait_s) == (15.0, 30.0, 30.0)
    assert (found.finished, found.deadlines, found.deadlines_met) == (2, 2, 0.5)
    assert found.lost_share == pytest.approx(7.0 / (67.0 + 40.0))
    assert found.held == pytest.approx((32 * 1 + 35 * 2 + 40 * 1) / (4 * 90))
    assert found.utilisation == pytest.approx((20 * 1 + 30 * 2 + 30 * 1) / (4 * 90))
    assert found.energy_kwh == pytest.approx((20 + 60 + 30) * 300 / 3.6e6)
    assert found.problems == ()


def test_fairness_is_the_jct_over_that_alone_on_a_share() -> None:
    """Two jobs share two GPUs for their whole time: one each is their due. Alone for ever: all of them is."""
    same = summarise(
        run(jobs_of(40, 40, profile=PLAIN), cluster(1, 2), Script((0.0, {1: on("n1", 0), 2: on("n1", 1)})))
    )
    assert [job.fairness for job in same.jobs] == [pytest.approx(1.0), pytest.approx(1.0)]
    alone = summarise(run(jobs_of(40, profile=PLAIN), cluster(1, 2), Script((0.0, {1: on("n1", 0)}))))
    assert alone.worst_fairness == pytest.approx(50.0 / 30.0)


def test_moves_are_counted() -> None:
    script = Script((0.0, {1: on("n1", 0)}), (30.0, {1: on("n2", 0)}))
    found = summarise(run(jobs_of(80, profile=PLAIN), cluster(2, 1), script))
    assert (found.moves, found.rescales, found.suspends, found.resumes) == (1, 0, 1, 1)


def test_a_run_that_was_cut_off() -> None:
    jobs = (*jobs_of(20, profile=PLAIN), SimJob(0.0, "late", PLAIN, 500, deadline_s=600.0))
    found = summarise(run(jobs, cluster(1, 2), Script((0.0, {1: on("n1", 0)})), until_s=100.0))
    assert (found.finished, found.deadlines_met) == (1, 0.0)
    assert found.jobs[1].wait_s is None
    assert found.jobs[1].fairness is None
    assert found.problems != ()


def test_nothing_done_at_all() -> None:
    def refuse(view: object) -> None:
        raise RuntimeError("no")

    found = summarise(run(jobs_of(20), (NodeSpell("n1", 1),), Calls(refuse)))  # type: ignore[arg-type]
    assert (found.mean_jct_s, found.p95_wait_s, found.lost_share, found.mean_fairness) == (None, None, None, None)
    assert found.energy_kwh is None
    assert found.finished == 0


def test_percentiles() -> None:
    assert percentile([], 0.95) is None
    assert percentile([3.0], 0.95) == 3.0
    assert percentile([float(number) for number in range(100, 0, -1)], 0.95) == 95.0
    assert percentile([1.0, 2.0], 0.5) == 1.0


def test_as_json() -> None:
    found = summarise(run(jobs_of(20, 30)))
    plain = json.loads(json.dumps(found.to_json()))
    assert plain["policy"] == "marble"
    assert [job["name"] for job in plain["jobs"]] == ["j1", "j2"]
    assert plain["jobs"][0]["gpus"][-1][1] == 0
    assert "jobs" not in found.to_json(jobs=False)


def test_gpus_count_only_while_their_node_is_there() -> None:
    profile = Profile("p", ((1, 1, 1.0),))
    nodes = (NodeSpell("n1", 1), NodeSpell("n2", 1, from_s=1_000.0))
    workload = Workload("w", (SimJob(0.0, "j", profile, 500, gpus_max=1),), (*nodes, NodeSpell("n3", 1, until_s=250.0)))
    results = summarise(simulate(workload, "fifo", all_policies()))
    assert results.makespan_s == pytest.approx(500.0)
    assert results.utilisation == pytest.approx(500 / 750)
    assert results.held == pytest.approx(500 / 750)


def test_a_fair_share_of_several_types_is_a_part_of_the_time_on_each() -> None:
    profile = Profile("p", ((1, 1, 9.0),), kinds=(("a", ((1, 1, 2.0),)), ("b", ((1, 1, 1.0),))))
    nodes = (*cluster(1, 1, "a"), *cluster(1, 3, "b", first=2))
    (job,) = summarise(run((SimJob(0.0, "j", profile, 500, gpus_max=1),), nodes, "fifo")).jobs
    assert job.jct_s is not None
    assert job.fairness == pytest.approx(job.jct_s / (500 / (0.25 * 2.0 + 0.75 * 1.0)))
