"""The simulation: every delay, what failures and departures cost, and what goes wrong without a traceback."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest
import yaml

from hpcdl.config.layers import conf_folder
from hpcdl.config.profiles import load_profiles
from hpcdl.core.model import events as ev
from hpcdl.core.model.frozen import to_json
from hpcdl.core.model.incarnation import Cause, Placement, Share
from hpcdl.core.model.plan import Plan, View
from hpcdl.core.model.profile import Profile, find_profile
from hpcdl.core.model.world import JobState, Target
from hpcdl.policies import all_policies
from hpcdl.report import measure
from hpcdl.sim import SimJob, Workload, cluster, engine, simulate
from hpcdl.sim.conditions import SimulatedRun
from hpcdl.sim.workload import NodeSpell, WorkloadError
from tests.sim.runs import COSTS, Calls, Script, ends, happened, jobs_of, on, run

TWO = cluster(2, 4)


def journal(ran: SimulatedRun) -> str:
    return json.dumps([[each.seq, each.at, each.event.kind, to_json(each.event)] for each in ran.records])


# --- delays ----------------------------------------------------------------------------------------------------------


def test_a_cold_start() -> None:
    ran = run(jobs_of(20), policy=Script((0.0, {1: on("n1", 0)})))
    assert happened(ran, ev.TrainerReady) == [10.0]
    assert ends(ran) == [30.0]
    assert ran.problems == ()


@pytest.mark.parametrize(("placed", "ready"), [(0.0, 10.0), (2.0, 10.0), (4.0, 10.0), (100.0, 106.0)])
def test_the_gate_counts_from_the_submit(placed: float, ready: float) -> None:
    ran = run(jobs_of(20), policy=Script((0.0, {}), (placed, {1: on("n1", 0)})))
    assert happened(ran, ev.TrainerReady) == [ready]


def test_a_warm_start_waits_at_the_gate() -> None:
    first, second = jobs_of(20, 20)
    script = Script((0.0, {1: on("n1", 0)}), (1.0, {1: on("n1", 0), 2: on("n1", 0)}), warm=(2,))
    ran = run([first, second], policy=script, warm=True)
    assert happened(ran, ev.AtGate, 2) == [5.0]
    assert happened(ran, ev.OpenRequested, 2) == [30.0]  # when the first one is through
    assert happened(ran, ev.TrainerReady, 2) == [36.0]  # what is left of its start-up
    assert ends(ran) == [30.0, 56.0]


def test_save_and_resume() -> None:
    ran = run(jobs_of(20), policy=Script((0.0, {1: on("n1", 0)}), (15.0, {}), (30.0, {1: on("n1", 0)})))
    assert happened(ran, ev.GpusFreed)[0] == 18.0
    assert happened(ran, ev.TrainerReady) == [10.0, 35.0]
    assert ends(ran) == [50.0]


def test_resume_up_and_down() -> None:
    ran = run(
        jobs_of(40), policy=Script((0.0, {1: on("n1", 0)}), (15.0, {1: on("n1", 0, 1)}), (30.0, {1: on("n1", 1)}))
    )
    # 5 steps by 15, saved at 18; on two GPUs from 25 on: 10 more by 30, saved at 33; 25 more from 38 on.
    assert happened(ran, ev.TrainerReady) == [10.0, 25.0, 38.0]
    assert ends(ran) == [63.0]


def test_moves() -> None:
    running = run(jobs_of(20), TWO, Script((0.0, {1: on("n1", 0)}), (15.0, {1: on("n2", 0)})))
    assert happened(running, ev.TrainerReady) == [10.0, 15.0 + 11.0 + 13.0]
    suspended = run(jobs_of(20), TWO, Script((0.0, {1: on("n1", 0)}), (15.0, {}), (30.0, {1: on("n2", 0)})))
    assert happened(suspended, ev.GpusFreed)[0] == 18.0
    assert happened(suspended, ev.TrainerReady) == [10.0, 43.0]
    assert ends(suspended) == [58.0]


def test_a_start_that_is_suspended_has_nothing_to_save() -> None:
    ran = run(jobs_of(20), policy=Script((0.0, {1: on("n1", 0)}), (5.0, {}), (50.0, {1: on("n1", 0)})))
    assert happened(ran, ev.GpusFreed)[0] == 5.0
    assert happened(ran, ev.TrainerReady) == [56.0]  # it never trained, so this is its first start
    assert ends(ran) == [76.0]


def test_the_end_wins_over_a_suspend_at_the_same_moment() -> None:
    ran = run(jobs_of(20, 20), policy=Script((0.0, {1: on("n1", 0)}), (30.0, {2: on("n1", 0)})))
    assert happened(ran, ev.SuspendRequested, 1) == []
    assert ends(ran) == [30.0, 56.0]


def test_several_nodes() -> None:
    job = SimJob(0.0, "wide", COSTS, 30, gpus_max=1, nodes=2)
    both = Placement((Share("n1", (0,)), Share("n2", (3,))))
    ran = run([job], TWO, Script((0.0, {1: both}), (20.0, {}), (40.0, {1: both})))
    assert happened(ran, ev.GpusFreed)[:2] == [23.0, 23.0]  # every node asked, one save
    assert happened(ran, ev.TrainerReady) == [10.0, 45.0]
    assert ends(ran) == [45.0 + (30 - 15) / 1.5]
    assert len(happened(ran, ev.Saved)) == 1


def test_each_kind_of_gpu_has_its_curve() -> None:
    profile = replace(COSTS, kinds=(("k80", ((1, 1, 0.5),)), ("v100", ((1, 1, 5.0),))))
    nodes = (NodeSpell("n1", 1, "k80"), NodeSpell("n2", 1, "v100"), NodeSpell("n3", 1))
    places = {number: on(f"n{number}", 0) for number in (1, 2, 3)}
    ran = run(jobs_of(20, 20, 20, profile=profile), nodes, Script((0.0, places)))
    assert ends(ran) == [50.0, 14.0, 30.0]


# --- what is not as planned ------------------------------------------------------------------------------------------


def test_a_failure_loses_a_checkpoint_interval_at_most() -> None:
    ran = run(jobs_of(6000), mtbf_s=150.0, checkpoint_s=40.0, seed=3)
    assert [job.state for job in ran.history.jobs] == [JobState.DONE]
    lost, before = [], None
    for record in ran.records:
        event = record.event
        if isinstance(event, ev.Exited) and event.signal == "SIGKILL":
            before = event.step
        elif isinstance(event, ev.TrainerReady) and before is not None:
            lost.append(before - event.step)
            before = None
    assert len(lost) > 3
    assert all(-1 <= each <= 40.0 * 4 + 1 for each in lost)  # steps, at 4 a second
    assert max(lost) > 0
    causes = {attempt.cause for attempt in ran.history.jobs[0].attempts}
    assert causes == {Cause.INFRASTRUCTURE, Cause.DONE}


def test_the_daemon_knows_the_checkpoint_that_a_failed_job_goes_back_to() -> None:
    seen: list[tuple[float, int]] = []

    def decide(view: View) -> Plan:
        seen.extend((view.now, job.step) for job in view.jobs if job.placement is None and view.now)
        return Plan(tuple(Target(job.id, on("n1", 0), "here") for job in view.jobs))

    ran = run(jobs_of(3000), policy=Calls(decide), mtbf_s=1500.0, checkpoint_s=100.0, seed=1)
    resumed = [each.event.step for each in ran.records if isinstance(each.event, ev.TrainerReady)]
    assert len(resumed) > 1
    assert [step for _, step in seen] == resumed[1:]


def test_a_node_that_comes_and_one_that_goes() -> None:
    nodes = (NodeSpell("n1", 4, until_s=1000.0), NodeSpell("n2", 4, from_s=900.0))
    profile = replace(COSTS, gate_s=0.0)
    ran = run(jobs_of(8000, profile=profile), nodes, checkpoint_s=600.0, policy="marble")
    resumed = [each.event.step for each in ran.records if isinstance(each.event, ev.TrainerReady)]
    assert resumed == [0, 2400]  # of the checkpoint at 610
    assert happened(ran, ev.TrainerReady) == [10.0, 1013.0]
    assert ends(ran) == [1013.0 + (8000 - 2400) / 4]
    assert [attempt.cause for attempt in ran.history.jobs[0].attempts] == [Cause.NODE_LOST, Cause.DONE]


@pytest.mark.parametrize(("gone", "resumed"), [("n1", 40), ("n2", 45)])
def test_a_node_goes_while_its_job_saves(gone: str, resumed: int) -> None:
    """Where the writer is gone, the last checkpoint is what is left; else the writer saves all the same."""
    job = SimJob(0.0, "wide", replace(COSTS, points=((1, 1, 1.0), (2, 1, 1.0))), 100, gpus_max=1, nodes=2)
    nodes = [NodeSpell(name, 4, until_s=56.0 if name == gone else math.inf) for name in ("n1", "n2")]
    nodes += [NodeSpell("n3", 4)]
    later = Placement((Share("n2" if gone == "n1" else "n1", (0,)), Share("n3", (0,))))
    both = Placement((Share("n1", (0,)), Share("n2", (0,))))
    ran = run([job], nodes, Script((0.0, {1: both}), (55.0, {}), (100.0, {1: later})), checkpoint_s=20.0)
    steps = [each.event.step for each in ran.records if isinstance(each.event, ev.TrainerReady)]
    assert steps == [0, resumed]
    assert [job.state for job in ran.history.jobs] == [JobState.DONE]


@pytest.mark.parametrize(("gone", "resumed"), [("n1", 40), ("n2", 45)])
@pytest.mark.parametrize("at", [55.0, 56.0])
def test_nodes_of_a_job_that_could_be_rescaled_go_while_it_saves(gone: str, resumed: int, at: float) -> None:
    """Too few are left: it is suspended, by whoever is left."""
    profile = replace(COSTS, points=((1, 1, 1.0), (3, 1, 1.0)))
    job = SimJob(0.0, "wide", profile, 100, gpus_max=1, nodes=3, nodes_max=3, rescale="in-process")
    nodes = [NodeSpell("n1", 1), NodeSpell("n2", 1), NodeSpell("n3", 1, until_s=55.0)]
    nodes = [replace(node, until_s=at) if node.name == gone else node for node in nodes]
    nodes += [NodeSpell("n4", 1), NodeSpell("n5", 1)]
    kept = "n2" if gone == "n1" else "n1"
    first = Placement(tuple(Share(name, (0,)) for name in ("n1", "n2", "n3")))
    later = Placement(tuple(Share(name, (0,)) for name in (kept, "n4", "n5")))
    ran = run([job], nodes, Script((0.0, {1: first}), (55.0, {}), (100.0, {1: later})), checkpoint_s=20.0)
    assert [each.event.step for each in ran.records if isinstance(each.event, ev.Reformed)] == [0, resumed]
    assert [job.state for job in ran.history.jobs] == [JobState.DONE]


@pytest.mark.parametrize("at", [5.0, 100.0])
def test_one_of_two_nodes_goes(at: float) -> None:
    """While it starts and while it trains: what is left of it is ended, and it starts again elsewhere."""
    job = SimJob(0.0, "wide", COSTS, 300, gpus_max=1, nodes=2)
    nodes = (NodeSpell("n1", 1), NodeSpell("n2", 1, until_s=at), NodeSpell("n3", 1, from_s=50.0))
    ran = run([job], nodes, "marble", checkpoint_s=30.0)
    assert [job.state for job in ran.history.jobs] == [JobState.DONE]
    assert ran.history.jobs[0].attempts[-1].placement.nodes == ("n1", "n3")


def test_a_submit_at_the_moment_at_which_a_node_goes() -> None:
    jobs = (*jobs_of(100), *jobs_of(100, submit_s=50.0))
    ran = run(jobs, (NodeSpell("n1", 4, until_s=50.0), NodeSpell("n2", 4, from_s=50.0)))
    assert [job.state for job in ran.history.jobs] == [JobState.DONE] * 2


def test_restarts_of_the_daemon_change_no_end() -> None:
    jobs = tuple(SimJob(7.0 * number, f"j{number}", COSTS, 200 + 37 * number) for number in range(12))
    plain = run(jobs, TWO)
    restarted = run(jobs, TWO, restarts=(0.0, 3.0, 40.0, 41.0, 77.0, 150.0))
    assert ends(restarted) == ends(plain)
    assert sum(isinstance(each.event, ev.DaemonStarted) for each in restarted.records) == 7


# --- what policies are told ------------------------------------------------------------------------------------------


def test_a_predicted_total_nears_the_truth() -> None:
    job = SimJob(0.0, "j", COSTS, 1000, predicted=0.5)
    totals: list[int | None] = []

    def decide(view: View) -> Plan:
        totals.extend(each.total for each in view.jobs)
        return Plan(tuple(Target(each.id, on("n1", 0), "here") for each in view.jobs), wake_at=view.now + 100.0)

    ran = run([job], policy=Calls(decide), progress_s=50.0)
    assert totals[0] == math.ceil(1000 * math.exp(0.5))
    told = [total for total in totals if total is not None]
    assert all(after <= before for before, after in pairwise(told))
    assert 1000 <= told[-1] < 1010 * math.exp(0.5 * 0.1)
    assert ends(ran) == [1010.0]


def test_jobs_that_are_told_no_profile_and_another_one() -> None:
    seen: dict[int, Profile | None] = {}
    wrong = replace(COSTS, name="wrong")

    def decide(view: View) -> Plan:
        seen.update({each.id: each.profile for each in view.jobs})
        return Plan(tuple(Target(each.id, on("n1", each.id), "here") for each in view.jobs))

    jobs = (
        SimJob(0.0, "a", COSTS, 5, told=False),
        SimJob(0.0, "b", COSTS, 5, believed=wrong),
        SimJob(0.0, "c", COSTS, 5),
    )
    run(jobs, policy=Calls(decide))
    assert seen == {1: None, 2: wrong, 3: COSTS}


@pytest.mark.parametrize(("number", "total"), [(1, 496.0), (2, 608.0), (3, 501.0)])
def test_marbles_own_totals(number: int, total: float) -> None:
    profiles = load_profiles([conf_folder() / "profiles"])
    listed = yaml.safe_load((conf_folder() / "jobsets" / "marble.yaml").read_text())["sets"][number]["jobs"]
    jobs = []
    for entry in listed:
        profile = find_profile(profiles, entry["model"])
        assert profile is not None
        jobs.append(SimJob(0.0, entry["model"], profile, entry["steps"]))
    ran = run(jobs, cluster(1, 6))
    assert measure(ran.history).makespan_s == pytest.approx(total, rel=0.005)


# --- the same again --------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_journal() -> None:
    jobs = tuple(SimJob(11.0 * number, f"j{number}", COSTS, 300 + 60 * number) for number in range(8))
    nodes = (*cluster(1, 4), NodeSpell("n2", 2, from_s=100.0, until_s=700.0))

    def once(seed: int) -> str:
        return journal(run(jobs, nodes, seed=seed, jitter=0.3, mtbf_s=200.0, checkpoint_s=50.0, progress_s=20.0))

    assert once(1) == once(1)
    assert once(1) != once(2)


def test_jitter_moves_times_by_a_factor_around_one() -> None:
    jobs = jobs_of(*[10] * 60)
    places = {number: on(f"n{number}", 0) for number in range(1, 61)}
    ran = run(jobs, cluster(60, 1), Script((0.0, places)), jitter=0.1)
    starts = [happened(ran, ev.TrainerReady, number)[0] for number in range(1, 61)]
    assert len(set(starts)) == 60
    assert sum(starts) / 60 == pytest.approx(10.0, rel=0.05)
    assert all(6.0 < each < 16.0 for each in starts)


# --- policies that misbehave -----------------------------------------------------------------------------------------


def test_a_policy_that_raises() -> None:
    def decide(view: View) -> Plan:
        raise ZeroDivisionError("of nothing")

    ran = run(jobs_of(20), policy=Calls(decide))
    assert any("policy script failed (ZeroDivisionError): of nothing" in line for line in ran.problems)
    assert any("1 of 1 jobs never ended: j1" in line for line in ran.problems)


def test_a_policy_that_breaks_down_later_leaves_what_runs_alone() -> None:
    def decide(view: View) -> Plan:
        if view.now > 0:
            raise RuntimeError("tired")
        return Plan(tuple(Target(job.id, on("n1", 0) if job.id == 1 else None, "first") for job in view.jobs))

    ran = run(jobs_of(20, 20), policy=Calls(decide))
    assert ends(ran) == [30.0]  # the last good plan goes on
    assert any(
        "1 of 2 jobs never ended: j2; the last reason: " in line or "never ended: j2" in line for line in ran.problems
    )


def test_an_impossible_plan() -> None:
    def decide(view: View) -> Plan:
        return Plan(tuple(Target(job.id, on("n1", 0), "all on one") for job in view.jobs))

    ran = run(jobs_of(20, 20), policy=Calls(decide))
    assert any("broke a promise: GPU n1:0 is given to jobs 1 and 2" in line for line in ran.problems)
    assert len(ran.problems) == 2


def test_a_policy_that_turns_in_circles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "DECISIONS", 50)
    monkeypatch.setattr(engine, "DECISIONS_PER_JOB", 50)

    def decide(view: View) -> Plan:
        there = view.jobs[0].placement if view.jobs else None
        gpu = 1 if there is not None and there.shares[0].gpus == (0,) else 0
        return Plan(tuple(Target(job.id, on("n1", gpu), "round and round") for job in view.jobs), wake_at=view.now)

    ran = run(jobs_of(20), policy=Calls(decide))
    assert any("turns in circles" in line for line in ran.problems)
    assert len(ran.problems) == 3  # its plans alternate, it was stopped, and its job never ended
    assert any("job 1 on n1 x 1 (GPU " in line and "at one moment" in line for line in ran.problems)


@pytest.mark.parametrize("wake_at", [math.nan, -math.inf, math.inf, -5.0, 0.0])
def test_strange_times_to_be_asked_again(wake_at: float) -> None:
    def decide(view: View) -> Plan:
        return Plan(tuple(Target(job.id, on("n1", 0), "here") for job in view.jobs), wake_at=wake_at)

    assert ends(run(jobs_of(20), policy=Calls(decide))) == [30.0]


def test_only_the_last_time_to_be_asked_again_counts() -> None:
    asked: list[float] = []

    def decide(view: View) -> Plan:
        asked.append(view.now)
        return Plan(tuple(Target(job.id, on("n1", job.id % 4), "here") for job in view.jobs), wake_at=view.now + 30.0)

    jobs = tuple(SimJob(1.0 * number, f"j{number}", COSTS, 300 + number) for number in range(4))
    run(jobs, policy=Calls(decide))
    quiet = [at for at in asked if 20.0 < at < 300.0]
    assert len(quiet) == len(set(quiet)) < 12  # one chain of questions, not one for each decision


def test_the_end_that_was_asked_for() -> None:
    ran = run(jobs_of(20), until_s=12.0)
    assert "ended at 12 s, as asked" in ran.problems
    assert any("1 of 1 jobs never ended" in line for line in ran.problems)


def test_what_can_never_fit_is_refused() -> None:
    with pytest.raises(WorkloadError, match="job j1 can never fit: it needs 5 GPUs"):
        run(jobs_of(20, gpus_min=5))


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []

    simulate(
        Workload("w", jobs_of(5, 5), cluster(1, 1)), "marble", all_policies(), progress=lambda *each: told.append(each)
    )
    assert told == [(1, 2), (2, 2)]
