"""hpcdl on the emulated LSF: in allocations, across them, and when somebody else wants the nodes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lsf.cluster import LsfCluster, hosts_of
from tests.lsf.emulator.records import Queue
from tests.lsf.home import LsfHome
from tests.support.extent import one_of
from tests.system.batch import overlaps, site_file
from tests.system.cluster import kill

MakeLsf = Callable[..., LsfCluster]
MakeHome = Callable[..., LsfHome]

SCALE = 120.0
ENDLESS = 1_000_000


@pytest.fixture
def make_home(make_lsf: MakeLsf, tmp_path: Path) -> Iterator[MakeHome]:
    """Makes HPCDL_HOMEs; each is ended and checked after the test, before its cluster ends."""
    made: list[LsfHome] = []

    def make(lsf: LsfCluster, **settings: Any) -> LsfHome:
        made.append(LsfHome(lsf, tmp_path / f"home{len(made)}", **settings))
        return made[-1]

    yield make
    for home in made:
        home.stop()


@pytest.mark.long
def test_six_jobs_share_an_allocation_of_two_nodes(make_lsf: MakeLsf, make_home: MakeHome) -> None:
    """As on Summit: a launch node, -nnodes, jsrun."""
    home = make_home(make_lsf(launch_node="batch1", node_jobs=True, slots=42), policy="marble")
    batch_job = home.allocate("-W", "10")
    jobs = list(home.submit_sets(SCALE))
    home.until_done(*jobs)
    home.check_sets(jobs)
    seen = home.environments()
    assert {job for job, _ in seen} == {str(job) for job in jobs}
    for environment in seen.values():
        assert environment["HPCDL_NODE"] in ("h1", "h2")
        assert environment["HPCDL_ALLOCATION"] == batch_job
        assert environment["CUDA_VISIBLE_DEVICES"] == environment["HPCDL_GPUS"]
        assert 1 <= len(environment["HPCDL_GPUS"].split(",")) <= 4
        assert [name for name in environment if name.startswith(("LSB_", "LS_", "JSM_", "PMIX_", "OMPI_"))] == []


def test_the_run_limit_comes_in_the_middle_and_the_next_allocation_goes_on(
    make_lsf: MakeLsf, make_home: MakeHome, tmp_path: Path
) -> None:
    """The warning comes a minute of this LSF, 20 s, before the limit: earlier than hpcdl would leave by itself."""
    lsf = make_lsf(minute_s=20.0)
    home = make_home(lsf, leave_margin_s=1)
    record = tmp_path / "record"
    record.mkdir()
    first = home.allocate("-W", "100", "-wa", "URG", "-wt", "1")
    home.hold()
    trainer = ("--step-s", 0.05, "--save-every", 10_000, "--record", record)
    jobs = [home.submit(*trainer, gpus=gpus, steps=120, options=("--grace", "5")) for gpus in ("4", "4")]
    for job in jobs:
        home.until_step(job, 5)
    lsf.shorten(first, 21.0)
    assert lsf.reaches(first, "DONE", "EXIT").status == "DONE"
    assert home.tagged() == []
    home.until(lambda: home.ours() == [])  # supervisors may be on their way out
    home.release()
    second = home.allocate("-W", "100")
    home.until_done(*jobs)
    assert second != first
    for job in jobs:
        home.check_weights(job, 120)
        began = home.resumed(job)
        assert began[0] == 0
        assert 5 <= began[1] == home.saved(job)[0]
        assert len(began) == 2
        assert home.job(job)["cause"] == "done"
    assert not overlaps(record)


@pytest.mark.long
def test_the_daemon_is_killed_in_its_allocation_and_moves_to_the_next(make_lsf: MakeLsf, make_home: MakeHome) -> None:
    """Also while LSF does not answer, which harms no trainer and is told once."""
    lsf = make_lsf()
    home = make_home(lsf)
    first = home.allocate("-W", "10")
    jobs = [home.submit("--step-s", 0.05, "--save-every", 20, gpus="4", steps=ENDLESS) for _ in range(2)]
    for job in jobs:
        home.until_step(job, 30)
    lsf.faults("* away")
    pid = home.status()["daemon"]["pid"]
    kill(pid)
    home.until(lambda: home.status()["daemon"]["pid"] != pid)
    home.until(lambda: home.connected() == ["h1", "h2"])
    home.until(lambda: len(troubles(home)) == 1)
    lsf.faults()
    home.until(lambda: troubles(home) == [])
    for job in jobs:
        assert home.job(job)["incarnation"] == 1
        home.until_step(job, home.job(job)["step"] + 20)
    lsf.run("bkill", first)  # a job of two hosts: SIGKILL, and nothing before it
    assert lsf.reaches(first, "EXIT").code == 137
    second = home.allocate("-W", "10", "-m", "h3 h4")
    home.until(lambda: home.connected() == ["h3", "h4"])
    assert second != first
    for job in jobs:
        home.until(lambda job=job: len(home.resumed(job)) == 2)  # type: ignore[misc]
        began, again = home.resumed(job)
        assert began == 0
        assert again > 0
        assert again % 20 == 0
        home.until_step(job, again + 20)
        home.cli("cancel", str(job))
        home.until_state(job, "CANCELLED")
        home.check_checkpoints(job)


def trains_on(home: LsfHome, job: int, nodes: set[str]) -> None:
    """Waits until the job trains on these nodes, and no others."""
    home.until(lambda: set(home.placement(job)) == nodes)
    home.until_step(job, (home.job(job)["step"] or 0) + 20)
    assert set(home.placement(job)) == nodes


def troubles(home: LsfHome) -> Any:
    """What of LSF does not work, as `hpcdl pilots` tells it."""
    return home.cli("pilots", "--json")["batch"]["troubles"]


def add_scales(home: LsfHome) -> None:
    """The profile of elastic jobs: twice the nodes, twice as fast."""
    points = [{"nodes": nodes, "gpus": 4, "rate": 10.0 * nodes} for nodes in (1, 2, 4)]
    home.add_profile("scales", points=points, startup_s=1, save_s=1, resume_s=1, grow_s=1, shrink_s=1)


def killable() -> tuple[Queue, ...]:
    """A queue that fills holes, and one that takes hosts back from it."""
    return (
        Queue(name="urgent", priority=90, preempts=("killable",)),
        Queue(name="normal", priority=30),
        Queue(name="killable", priority=10, action="requeue", backfill=True),
    )


@pytest.mark.parametrize("how", one_of("kill", "notice", "requeue"))
def test_a_trainer_goes_on_when_its_pilots_are_preempted(
    make_lsf: MakeLsf, make_home: MakeHome, tmp_path: Path, how: str
) -> None:
    """`notice`: they get INT, TERM, KILL; `kill`: only KILL, as LSF does it to jobs of several slots; `requeue`: an
    LSF-like system has them wait and run again, with the same id.
    """
    style = "openlava" if how == "requeue" else "lsf"
    lsf = make_lsf(queues=killable(), style=style, sequential_signal=how == "notice", terminate_s=60.0)
    home = make_home(lsf, policy="bftrainer", pilots=3, site=str(tmp_path / "site.yaml"))
    site_file(tmp_path, kind="lsf", queues=["killable"], walltime_max_s=600)
    add_scales(home)
    home.allocate("-W", "30", nodes=1)
    job = home.elastic("1:4", ENDLESS, "--step-s", 0.02, "--save-every", 20)
    trains_on(home, job, {"h1", "h2", "h3", "h4"})
    pilots = {hosts_of(each)[0]: each.key for each in lsf.state().jobs if each.queue == "killable"}
    assert sorted(pilots) == ["h2", "h3", "h4"]
    urgent = lsf.submit("sleep 1000\n", "-q", "urgent", "-n", "8", LSFEMU_USER="eve")
    taken = hosts_of(lsf.reaches(urgent, "RUN"))
    assert set(taken) < set(pilots)
    trains_on(home, job, {"h1", "h2", "h3", "h4"} - set(taken))
    home.check_checkpoints(job)
    ended = [event["body"] for event in home.events(job) if event["kind"] == "IncarnationEnded"]
    ours = [lsf.job(pilots[node]) for node in taken]
    if how == "kill":
        # Where the daemon hears of it in time, those that are left save before they are started anew.
        assert {each["cause"] for each in ended} <= {"suspended", "node lost"}
        assert [(each.status, each.code) for each in ours] == [("EXIT", 137)] * 2
        # The last save that was asked for, or one of its own, whose report may have died with its agent.
        again = home.resumed(job)[-1]
        assert again in home.saved(job) or again % 20 == 0
    else:
        assert {each["cause"] for each in ended} == {"suspended"}
        final = [event["body"]["step"] for event in home.events(job) if event["body"].get("final") is True]
        assert home.resumed(job)[-1] == final[-1]  # nothing was lost
    assert home.job(job)["failures"] == 0

    def told() -> list[tuple[str, str, bool]]:
        rows = {row["batch_id"]: row for row in home.cli("pilots", "--all", "--json")["pilots"]}
        return [(row["state"], row["reason"], row["preempted"]) for row in (rows[each.key] for each in ours)]

    if how == "requeue":
        assert [(each.status, each.runs) for each in ours] == [("PEND", 1)] * 2
        waits = ("PENDING", "Not enough job slot(s): 4 hosts")
        home.until(lambda: [each[:2] for each in told()] == [waits] * 2)
        lsf.run("bkill", urgent, LSFEMU_USER="eve")
        trains_on(home, job, {"h1", "h2", "h3", "h4"})
        assert [lsf.job(each.key).runs for each in ours] == [2, 2]
    else:
        assert how == "kill" or [each.code for each in ours] == [0, 0]  # they ended by themselves, long before the KILL
        home.until(lambda: [(state, preempted) for state, _, preempted in told()] == [("ENDED", True)] * 2)
    home.cli("cancel", str(job))
    home.until_state(job, "CANCELLED")
    home.check_checkpoints(job)


@pytest.mark.long
def test_a_pilot_fills_the_hole_before_a_large_job(make_lsf: MakeLsf, make_home: MakeHome, tmp_path: Path) -> None:
    """A host is busy, a job of three waits for it: until then the other two train."""
    lsf = make_lsf()
    # One pilot: another would fill the host of the busy job, until when the large one was planned to start.
    home = make_home(lsf, policy="bftrainer", pilots=1, site=str(tmp_path / "site.yaml"))
    allowed = {"queues": ["normal"], "pilots_without_preemption": True}
    site_file(tmp_path, kind="lsf", margin_s=20, startup_s=5, **allowed)
    add_scales(home)
    home.allocate("-W", "30", nodes=1)
    busy = lsf.submit("sleep 1000\n", "-n", "4", "-W", "10", LSFEMU_USER="eve")
    lsf.reaches(busy, "RUN")
    big = lsf.submit("sleep 1000\n", "-n", "12", "-W", "10", LSFEMU_USER="eve")
    lsf.until(lambda: lsf.state().reservations, "the plan of the large job")
    (plan,) = lsf.state().reservations
    home.until(lambda: [hole["until"] is None for hole in home.cli("holes", "--json")["holes"]] == [False])
    job = home.elastic("1:4", ENDLESS, "--step-s", 0.02, "--save-every", ENDLESS)
    trains_on(home, job, {"h1", "h3", "h4"})
    home.until(lambda: [row["nodes"] for row in home.cli("pilots", "--json")["pilots"]] == [["h3", "h4"]])
    (row,) = home.cli("pilots", "--json")["pilots"]
    pilot = lsf.job(row["batch_id"])
    assert hosts_of(pilot) == ["h3", "h4"]
    assert pilot.started + pilot.limit_s <= plan.at
    assert lsf.job(big).status == "PEND"
    lsf.run("bkill", busy, LSFEMU_USER="eve")
    lsf.reaches(busy, "EXIT")
    lsf.run("bstop", pilot.key)  # SIGTSTP to all of a job of two hosts: whatever stops it, its trainers leave
    # By itself, or the daemon kills what is left of it: it sees who waits for the nodes, which are given back by then.
    assert lsf.reaches(pilot.key, "DONE", "EXIT").code in (0, 137)
    lsf.reaches(big, "RUN")
    trains_on(home, job, {"h1"})
    final = [event["body"]["step"] for event in home.events(job) if event["body"].get("final") is True]
    assert home.resumed(job)[-1] == final[-1]
    home.cli("cancel", str(job))
    home.until_state(job, "CANCELLED")
    home.check_checkpoints(job)


@pytest.mark.long
def test_pilots_are_given_back_to_those_who_wait(make_lsf: MakeLsf, make_home: MakeHome, tmp_path: Path) -> None:
    """In a queue that nobody preempts: none unless the site allows it, and then only until others want the hosts."""
    lsf = make_lsf(style="openlava")  # without bslots: what idles is used, until whenever
    home = make_home(lsf, policy="bftrainer", pilots=3, site=str(tmp_path / "site.yaml"))
    site_file(tmp_path, kind="lsf", queues=["normal"], walltime_max_s=1800, startup_s=5, pilots_without_preemption=True)
    add_scales(home)
    home.allocate("-W", "30", nodes=1)
    job = home.elastic("1:4", ENDLESS, "--step-s", 0.02, "--save-every", ENDLESS)
    trains_on(home, job, {"h1", "h2", "h3", "h4"})
    other = lsf.submit("sleep 1000\n", "-n", "4", "-W", "10", LSFEMU_USER="eve")
    (host,) = hosts_of(lsf.reaches(other, "RUN"))
    trains_on(home, job, {"h1", "h2", "h3", "h4"} - {host})

    def cancelled() -> list[str]:
        return sorted(row["cancelled"] for row in home.cli("pilots", "--all", "--json")["pilots"])

    home.until(lambda: cancelled() == ["", "", f"others wait for its nodes: batch job {other}"])
    home.cli("cancel", str(job))
    home.until_state(job, "CANCELLED")
    home.check_checkpoints(job)
