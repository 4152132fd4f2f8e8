"""Which pilots are asked for, which are given up, and what is said about the rest."""

from dataclasses import replace

import pytest

from hpcdl.batch.limits import PilotLimits
from hpcdl.batch.pilots import (
    KEPT_S,
    LEFT_S,
    NO_AGENT,
    NO_QUEUES,
    OTHERS,
    PAUSE_S,
    PREEMPTS_S,
    choose,
    pays_s,
    walltime_s,
)
from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.core.model.pilot import BY_USER, BatchJob, BatchState, Hole, PendingBatchJob, Pilot, PilotChoice, PilotSpec
from hpcdl.core.model.plan import JobView, NodeView, Plan, View
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import JobState, Target

NOW = 10_000.0
CURVE = Profile(
    "net", ((1, 4, 100.0), (2, 4, 180.0), (4, 4, 300.0), (8, 4, 290.0)), startup_s=30.0, save_s=5.0, resume_s=20.0
)
SITE = PilotLimits(pilots_max=4, queues=("killable", "scavenge", "a"), margin_s=60.0, startup_s=30.0)
HOLE = Hole("killable", 2, ("n3", "n4"), 4, until=NOW + 600.0, why="batch job 9 on n[1-4]", preemptable=True)


def job(number: int = 1, nodes: int = 1, nodes_max: int = 1, **more: object) -> JobView:
    known: dict[str, object] = {
        "name": f"j{number}",
        "state": JobState.QUEUED,
        "gpus_min": 4,
        "gpus_max": 4,
        "nodes": nodes,
        "nodes_max": nodes_max,
        "step": 0,
        "total": 10**6,
        "profile": CURVE,
        "placement": None,
        "target": None,
        "leaving": False,
        "can_suspend": True,
        "blocked": "",
        "submitted_at": 0.0,
    }
    return JobView(id=number, **(known | more))  # type: ignore[arg-type]


def view(*jobs: JobView, nodes: tuple[str, ...] = (), since: float = 0.0) -> View:
    return View(NOW, tuple(NodeView(name, (0, 1, 2, 3), since=since) for name in nodes), jobs)


def plan(*jobs: JobView, **on: tuple[str, ...]) -> Plan:
    """Each job where `on` says (`j1`), the others nowhere."""
    placements = {
        each.id: Placement(tuple(Share(node, (0, 1, 2, 3)) for node in on[each.name])) if each.name in on else None
        for each in jobs
    }
    return Plan(tuple(Target(number, placement, "why") for number, placement in placements.items()))


def chosen(*jobs: JobView, holes: tuple[Hole, ...] = (HOLE,), site: PilotLimits = SITE, **more: object) -> PilotChoice:
    pilots: tuple[Pilot, ...] = more.pop("pilots", ())  # type: ignore[assignment]
    nodes: tuple[str, ...] = more.pop("nodes", ())  # type: ignore[assignment]
    away: tuple[str, ...] = more.pop("away", ())  # type: ignore[assignment]
    waiting: tuple[PendingBatchJob, ...] = more.pop("waiting", ())  # type: ignore[assignment]
    targets = plan(*jobs, **more)  # type: ignore[arg-type]
    return choose(view(*jobs, nodes=nodes), targets, pilots, holes, {*nodes, *away}, waiting, site=site)


def pilot(number: int = 1, **more: object) -> Pilot:
    known: dict[str, object] = {"spec": PilotSpec(2, 480.0, "killable", 4, ("n3", "n4")), "since": NOW - 10.0}
    return Pilot(number, asked_at=NOW - 20.0, **(known | more))  # type: ignore[arg-type]


def runs(number: int = 1, *nodes: str) -> Pilot:
    seen = BatchJob(f"7{number}", BatchState.RUNNING, nodes=nodes or ("n3", "n4"), started_at=NOW - 300.0)
    return pilot(number, batch_id=f"7{number}", job=seen)


def test_a_pilot_takes_exactly_the_hole() -> None:
    (asked,) = chosen(job(nodes_max=8)).ask
    assert asked == PilotSpec(2, 540.0, "killable", 4, ("n3", "n4"), "2 idle nodes, until batch job 9 on n[1-4]")


def test_no_more_than_jobs_could_use() -> None:
    assert [each.nodes for each in chosen(job()).ask] == [1]
    assert chosen().ask == ()
    assert chosen(job(blocked="held")).ask == ()
    wide = replace(HOLE, count=8, nodes=tuple(f"m{n}" for n in range(8)))
    assert [each.nodes for each in chosen(job(nodes_max=8), holes=(wide,)).ask] == [4], "8 nodes are slower than 4"
    assert [each.nodes for each in chosen(job(1), job(2), job(3), holes=(wide,)).ask] == [3]
    small = [job(number, gpus_min=1, gpus_max=1, profile=None) for number in range(1, 7)]
    assert [each.nodes for each in chosen(*small, holes=(wide,)).ask] == [2], "six GPUs are two nodes of four"


def test_an_elastic_trainer_that_runs_grows_into_the_hole() -> None:
    trainer = job(nodes_max=4, placement=Placement((Share("n1", (0, 1, 2, 3)),)), in_place=True)
    (asked,) = chosen(trainer, j1=("n1",), nodes=("n1",)).ask
    assert asked.on == ("n3", "n4")
    assert chosen(replace(trainer, nodes_max=1), j1=("n1",), nodes=("n1",)).ask == ()


def test_growth_that_cannot_pay_its_cost_back_asks_for_nothing() -> None:
    slow = replace(CURVE, grow_s=5000.0)
    trainer = job(nodes_max=4, placement=Placement((Share("n1", (0, 1, 2, 3)),)), in_place=True, profile=slow)
    choice = chosen(trainer, j1=("n1",), nodes=("n1",))
    assert choice.ask == ()
    assert choice.notes == ("n[3-4] in killable: no job could train on more nodes",)


def test_nodes_that_are_there_and_unused_come_first() -> None:
    assert chosen(job(), nodes=("n9",)).ask == ()
    assert len(chosen(job(1), job(2), nodes=("n9",)).ask) == 1


@pytest.mark.parametrize(
    ("until_s", "walltime"), [(600.0, 540.0), (239.0, 120.0), (10**6, 3600.0), (None, 3600.0), (59.0, 0.0)]
)
def test_the_walltime_is_within_the_hole_and_the_limits(until_s: float | None, walltime: float) -> None:
    hole = replace(HOLE, until=None if until_s is None else NOW + until_s, walltime_s=3600.0)
    assert walltime_s(hole, NOW, SITE) == walltime
    assert walltime_s(hole, NOW, replace(SITE, walltime_max_s=300.0)) == min(walltime, 300.0)


def test_a_hole_that_is_too_short_is_left_and_it_is_said_why() -> None:
    choice = chosen(job(), holes=(replace(HOLE, until=NOW + 170.0),))
    assert choice.ask == ()
    (note,) = choice.notes
    assert note.startswith("n[3-4] in killable: a pilot of 1 min 00 s is shorter than the 2 min 00 s that pay")
    assert note.endswith("(start-up 30 s, margin 1 min 00 s)")
    assert pays_s(replace(SITE, startup_s=300.0), 300.0) == 600.0


def test_a_measured_start_up_replaces_the_assumed_one() -> None:
    seen = BatchJob("71", BatchState.RUNNING, nodes=("n1",), started_at=NOW - 600.0)
    living = pilot(1, batch_id="71", job=seen)
    short = (replace(HOLE, until=NOW + 240.0),)

    def notes(after_s: float) -> tuple[str, ...]:
        late = view(job(1), job(2), nodes=("n1",), since=NOW - 600.0 + after_s)
        return choose(late, plan(job(1), job(2)), (living,), short, {"n1"}, site=SITE).notes

    assert "start-up 1 min 50 s" in notes(110.0)[0], "its agent came 110 s after it started: 180 s do not pay"
    assert "start-up" not in " ".join(notes(20.0))
    assert "start-up 2 min 00 s" in notes(590.0)[0], "it was lost, and came again"


def test_without_a_known_end_each_node_has_a_pilot_of_its_own() -> None:
    idle = Hole("scavenge", 4, ("n1", "n2", "n3", "n4"), 4, walltime_s=7200.0, preemptable=True)
    asked = chosen(job(nodes_max=8), holes=(idle,)).ask
    assert [each.on for each in asked] == [("n1",), ("n2",), ("n3",), ("n4",)]
    asked = chosen(job(nodes_max=8), holes=(idle,), site=replace(SITE, pilots_max=2)).ask
    assert [each.nodes for each in asked] == [2, 2]
    assert {each.walltime_s for each in asked} == {7200.0}


def test_the_sites_limits_hold() -> None:
    eager = job(nodes_max=8)
    assert [each.nodes for each in chosen(eager, site=replace(SITE, nodes_max=1)).ask] == [1, 1]
    assert [each.nodes for each in chosen(eager, site=replace(SITE, nodes_total=1)).ask] == [1]
    assert chosen(eager, site=replace(SITE, queues=("other",))).ask == ()
    assert [each.on for each in chosen(eager, site=replace(SITE, without=frozenset({"n3"}))).ask] == [("n4",)]
    assert [each.nodes for each in chosen(eager, holes=(replace(HOLE, nodes_max=1),)).ask] == [1, 1]
    full = chosen(eager, job(2, nodes_max=8), pilots=tuple(runs(n, f"m{n}") for n in range(1, 5)))
    assert full.ask == ()
    assert "the site allows 4 pilots, and there are as many" in full.notes


def test_a_hole_is_asked_for_once() -> None:
    eager = job(nodes_max=8)
    assert chosen(eager, pilots=(pilot(),)).ask == ()
    assert chosen(eager, pilots=(runs(),)).ask == ()
    nameless = Hole("killable", 2, until=NOW + 600.0, preemptable=True)
    assert chosen(eager, holes=(nameless,), pilots=(pilot(),)).ask == ()
    assert [each.on for each in chosen(eager, holes=(nameless,)).ask] == [()]


def test_longer_holes_first() -> None:
    short = Hole("a", 1, ("m1",), 4, until=NOW + 400.0, preemptable=True)
    long = Hole("a", 1, ("m2",), 4, until=NOW + 4000.0, preemptable=True)
    (asked,) = chosen(job(), holes=(short, long)).ask
    assert asked.on == ("m2",)


def test_a_pilot_that_waits_too_long_is_given_up() -> None:
    waits = pilot(batch_id="71", since=NOW - 130.0)
    choice = chosen(job(nodes_max=8), pilots=(waits,))
    assert choice.cancel == ((1, "it has waited for 2 min 10 s: its backfill hole is gone"),)
    early = chosen(job(nodes_max=8), pilots=(replace(waits, since=NOW - 30.0),))
    assert (early.cancel, early.wake_at) == ((), NOW + 90.0)


def test_a_pilot_without_agents_is_given_up() -> None:
    late = chosen(job(), pilots=(replace(runs(), since=NOW - 125.0),))
    assert late.cancel == ((1, f"{NO_AGENT} in 2 min 05 s"),)
    assert chosen(job(), pilots=(replace(runs(), since=NOW - 125.0),), nodes=("n4",), j1=("n4",)).cancel == ()
    away = chosen(job(), pilots=(replace(runs(), since=NOW - 9999.0),), away=("n3",))
    assert away.cancel == (), "after a daemon's restart they call again"
    early = chosen(job(), pilots=(runs(),))
    assert (early.cancel, early.wake_at) == ((), NOW + 110.0)


def test_pilots_without_work_are_given_back() -> None:
    idle = chosen(pilots=(runs(),), nodes=("n3", "n4"))
    assert idle.cancel == ((1, "nothing is left to train on it"),)
    assert chosen(pilots=(runs(),)).cancel == (), "its agents have not come yet"
    busy = chosen(job(), pilots=(runs(),), nodes=("n3", "n4"), j1=("n3",))
    assert busy.cancel == ()
    pause = job(blocked="a pause after a failure", retry_at=NOW + 5.0)
    assert chosen(pause, pilots=(runs(),), nodes=("n3", "n4")).cancel == ()
    assert chosen(pilots=(pilot(batch_id="71"),)).cancel == ((1, "no job could train on it any more"),)
    assert chosen(pilots=(replace(runs(), cancelled="yes"),), nodes=("n3", "n4")).cancel == ()


def test_after_refusals_there_are_pauses_that_grow() -> None:
    no = pilot(1, since=NOW - 10.0, how="Invalid account", refused=True)
    choice = chosen(job(), pilots=(no,))
    assert (choice.ask, choice.wake_at) == ((), NOW - 10.0 + PAUSE_S)
    assert choice.notes == ("the batch system refused the last pilot (Invalid account): the next one is tried in 50 s",)
    again = chosen(job(), pilots=(replace(no, since=NOW - 1000.0), replace(no, id=2)))
    assert again.wake_at == NOW - 10.0 + 2 * PAUSE_S
    taken = replace(runs(3, "m1"), how="ended")
    assert chosen(job(), pilots=(no, replace(no, id=2), taken)).ask, "one that was taken ends the pauses"
    assert chosen(job(), pilots=(replace(no, since=NOW - 100.0),)).ask


def test_a_pilot_that_was_never_submitted_was_not_refused() -> None:
    left_out = pilot(1, since=NOW - 10.0, how="not submitted: the site allows 2 pilots", refused=True)
    left_out = replace(left_out, cancelled="the site allows 2 pilots")
    assert chosen(job(), holes=(HOLE,), pilots=(left_out,)).ask
    assert chosen(job(), holes=(HOLE,), pilots=(replace(left_out, id=2), replace(left_out, id=1))).notes == ()


def test_after_its_user_cancelled_a_pilot_there_is_a_pause() -> None:
    gone = pilot(1, since=NOW - 30.0, how="CANCELLED", cancelled=BY_USER)
    choice = chosen(job(), pilots=(gone,))
    assert choice.ask == ()
    assert choice.notes == ("a pilot was cancelled by hand: the next one is tried in 9 min 30 s",)
    assert choice.wake_at == NOW + 570.0
    assert chosen(job(), pilots=(replace(gone, since=NOW - 601.0),)).ask


def test_an_admin_who_ends_one_has_his_peace() -> None:
    ended = BatchJob("71", BatchState.ENDED, nodes=("n3", "n4"), started_at=NOW - 300.0, by_hand=True)
    gone = pilot(batch_id="71", job=ended, how="CANCELLED", since=NOW - 30.0)
    assert chosen(job(), pilots=(gone,)).ask == ()
    assert chosen(job(), pilots=(replace(gone, since=NOW - 601.0),)).ask
    assert chosen(job(), pilots=(replace(gone, cancelled="nothing is left to train on it"),)).ask, "that was us"
    assert chosen(job(), pilots=(replace(gone, job=replace(ended, by_hand=False, preempted=True)),)).ask


def test_a_node_that_is_too_small_for_what_waits_is_no_node_for_it() -> None:
    small = View(NOW, (NodeView("login", (0,), since=0.0),), (job(),))
    assert choose(small, plan(job()), (), (HOLE,), {"login"}, site=SITE).ask
    large = View(NOW, (NodeView("n1", (0, 1, 2, 3), since=0.0),), (job(),))
    assert not choose(large, plan(job()), (), (HOLE,), {"n1"}, site=SITE).ask


def test_after_a_pilot_without_agents_there_is_a_pause() -> None:
    gone = replace(runs(), cancelled=f"{NO_AGENT} in 2 min 05 s", how="CANCELLED", since=NOW - 5.0)
    after = chosen(job(), pilots=(gone,))
    assert (after.ask, after.wake_at) == ((), NOW - 5.0 + PAUSE_S)
    said = f"the last pilot was of no use ({NO_AGENT} in 2 min 05 s): the next one is tried in 55 s"
    assert after.notes == (said,)
    again = chosen(job(), pilots=(gone, replace(gone, id=2)))
    assert again.wake_at == NOW - 5.0 + 2 * PAUSE_S


@pytest.mark.parametrize(
    ("job_more", "more", "paused"),
    [
        ({}, {}, True),
        ({"code": 137}, {}, False),  # a signal: it was ended
        ({"code": 0}, {}, False),
        ({"preempted": True}, {}, False),
        ({"started_at": NOW - 300.0}, {}, False),
        ({}, {"cancelled": "nothing is left to train on it"}, False),
    ],
)
def test_after_a_pilot_that_fails_at_once_there_is_a_pause(
    job_more: dict[str, object], more: dict[str, object], paused: bool
) -> None:
    known: dict[str, object] = {"code": 1, "started_at": NOW - 12.0, "nodes": ("n3", "n4")}
    ended = BatchJob("71", BatchState.ENDED, **(known | job_more))  # type: ignore[arg-type]
    failed = pilot(1, batch_id="71", job=ended, how="FAILED, exit code 1", **more)
    choice = chosen(job(), pilots=(failed,))
    assert bool(choice.ask) is not paused
    if paused:
        said = (
            "the last pilot failed at once (FAILED, exit code 1; see logs/pilots/p1.log): the next one is tried in 50 s"
        )
        assert choice.notes == (said,)
        again = chosen(job(), pilots=(failed, replace(failed, id=2)))
        assert again.wake_at == NOW - 10.0 + 2 * PAUSE_S


def test_pilots_that_wait_in_vain_have_pauses_from_the_second_on() -> None:
    waited = BatchJob("71", BatchState.PENDING, reason="PartitionTimeLimit")
    vain = pilot(1, batch_id="71", job=waited, cancelled="it has waited", how="cancelled", since=NOW - 10.0)
    assert chosen(job(), pilots=(vain,)).ask, "its hole may have been taken"
    choice = chosen(job(), pilots=(vain, replace(vain, id=2, batch_id="72")))
    assert choice.ask == ()
    assert choice.notes == ("the last pilots waited in vain (PartitionTimeLimit): the next one is tried in 50 s",)
    ran = replace(runs(3, "m1"), how="ended")
    assert chosen(job(), pilots=(vain, replace(vain, id=2), ran)).ask


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"pilots_max": -1}, "pilots_max"),
        ({"walltime_min_s": 0.0}, "walltimes"),
        ({"walltime_min_s": 700.0, "walltime_max_s": 600.0}, "walltimes"),
        ({"walltime_step_s": 0.0}, "walltime_step_s"),
        ({"margin_s": -1.0}, "margin_s"),
        ({"useful": 1.0}, "useful"),
    ],
)
def test_limits_that_make_no_sense(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PilotLimits(**wrong)  # type: ignore[arg-type]


# --- guests -----------------------------------------------------------------------------------------------------------

OFF = replace(HOLE, queue="normal", preemptable=False, why_not="its PreemptMode is OFF")
ANY = replace(SITE, queues=("normal", "killable"), pilots_without_preemption=True)


def test_without_named_queues_there_are_no_pilots_and_the_reason_is_said() -> None:
    found = chosen(job(nodes_max=8), site=replace(SITE, queues=()))
    assert (found.ask, found.notes) == ((), (NO_QUEUES,))
    assert chosen(job(nodes_max=8), site=replace(ANY, queues=())).ask == ()


def test_a_queue_that_is_not_preemptable_is_used_only_where_the_site_says_so() -> None:
    named = replace(SITE, queues=("normal",))
    found = chosen(job(nodes_max=8), holes=(OFF, replace(OFF, nodes=("m1", "m2"))), site=named)
    assert found.ask == ()
    (note,) = found.notes
    assert note == (
        "queue normal is not preemptable (its PreemptMode is OFF): name a preemptable one under queues in the site's "
        "file, or set pilots_without_preemption: true there"
    )
    assert [each.queue for each in chosen(job(nodes_max=8), holes=(OFF,), site=ANY).ask] == ["normal"]


def others(number: int = 1, *nodes: str, count: int = 1, since: float = NOW, preempts: str = "") -> PendingBatchJob:
    return PendingBatchJob(str(900 + number), count, nodes, "normal", frozenset({preempts} - {""}), since)


ELASTIC = job(nodes_max=8)
TWO = (
    replace(runs(1, "n3"), spec=PilotSpec(1, 480.0, "normal", 4, ("n3",))),
    replace(runs(2, "n4"), spec=PilotSpec(1, 480.0, "normal", 4, ("n4",))),
)


def given_back(
    *waiting: PendingBatchJob, pilots: tuple[Pilot, ...] = TWO, holes: tuple[Hole, ...] = ()
) -> dict[int, str]:
    found = chosen(ELASTIC, holes=holes, site=ANY, pilots=pilots, nodes=("n3", "n4"), waiting=waiting, j1=("n3", "n4"))
    return dict(found.cancel)


def test_a_pilot_is_given_back_to_those_who_wait_for_its_node() -> None:
    assert given_back() == {}
    assert given_back(others(1, "n3")) == {1: f"{OTHERS}: batch job 901"}
    assert set(given_back(others(1, "n3", "n4", count=2))) == {1, 2}
    assert set(given_back(others(1, "n3", "n4"), others(2, "n3", "n4"))) == {1, 2}
    assert set(given_back(others(1, "n3", "n4"))) == {2}, "one of them, and the newest"


def test_who_could_not_start_even_so_is_not_waited_for() -> None:
    assert given_back(others(1, "n1", "n2", "n3", "n4", count=4)) == {}
    assert given_back(others(1, "n8")) == {}
    assert given_back(others(1)) == {}
    idle = replace(OFF, count=1, nodes=("n1",))
    assert given_back(others(1, "n1", "n3"), holes=(idle,)) == {}, "it starts on n1"
    assert set(given_back(others(1, "n1", "n3"), others(2, "n1", "n3"), holes=(idle,))) == {1}
    assert given_back(others(1, "n1", "n3"), pilots=(replace(TWO[0], cancelled="because"), TWO[1])) == {}


def test_whom_the_batch_system_helps_is_waited_for_a_moment() -> None:
    assert given_back(others(1, "n3", preempts="normal", since=NOW - PREEMPTS_S + 1)) == {}
    assert set(given_back(others(1, "n3", preempts="normal", since=NOW - PREEMPTS_S))) == {1}
    assert set(given_back(others(1, "n3", preempts="other"))) == {1}


def test_what_was_given_back_is_not_asked_for_again_at_once() -> None:
    def after(seconds: float, *waiting: PendingBatchJob) -> tuple[PilotSpec, ...]:
        ended = BatchJob("71", BatchState.ENDED, nodes=("n3", "n4"), started_at=NOW - 900.0)
        gone = pilot(
            1, batch_id="71", job=ended, how="ended", since=NOW - seconds, cancelled=f"{OTHERS}: batch job 901"
        )
        return chosen(ELASTIC, holes=(OFF,), site=ANY, pilots=(gone,), waiting=waiting).ask

    long_ago = NOW - 2 * LEFT_S
    assert after(KEPT_S - 1) == ()
    assert after(KEPT_S + 1) != ()
    assert after(KEPT_S + 1, others(1, "n3", "n4", count=9, since=long_ago)) == ()
    assert after(LEFT_S + 1, others(1, "n3", "n4", count=9, since=long_ago)) != ()


def test_who_did_not_start_on_what_was_given_back_is_not_helped_again() -> None:
    ended = BatchJob("73", BatchState.ENDED, nodes=("n3",), started_at=NOW - 5000.0)
    for seconds, found in ((LEFT_S - 1, {1}), (LEFT_S, set())):
        known = {"job": ended, "how": "ended", "since": NOW - seconds, "cancelled": f"{OTHERS}: batch job 901"}
        before = pilot(3, batch_id="73", **known)
        assert set(given_back(others(1, "n3"), pilots=(*TWO, before))) == found
        assert set(given_back(others(2, "n3"), pilots=(*TWO, before))) == {1}


def test_idle_nodes_are_left_to_who_could_start_there() -> None:
    found = chosen(ELASTIC, holes=(OFF,), site=ANY, waiting=(others(1, "n3"),))
    assert [each.on for each in found.ask] == [("n4",)]
    assert "n3 in normal: left to batch job 901" in found.notes
    assert len(chosen(ELASTIC, holes=(OFF,), site=ANY, waiting=(others(1, "n3", since=NOW - LEFT_S),)).ask[0].on) == 2
    guest = chosen(ELASTIC, holes=(HOLE,), waiting=(others(1, "n3", preempts="killable"),))
    assert guest.ask[0].on == ("n3", "n4"), "it is not in their way there"


def test_pilots_that_were_found_again_do_not_add_to_the_sites_limit() -> None:
    one = replace(SITE, pilots_max=1)
    found = chosen(ELASTIC, holes=(), site=one, pilots=TWO, nodes=("n3", "n4"), j1=("n3",))
    assert found.cancel == ((2, "the site allows 1 pilot"),)
