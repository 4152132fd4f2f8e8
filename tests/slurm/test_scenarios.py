"""hpcdl on a real Slurm: in allocations, across them, in the holes, and when somebody else wants the nodes."""

import os
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import SlurmCluster, no_cgroups
from tests.slurm.configuration import NODES
from tests.slurm.home import Home
from tests.support.extent import one_of
from tests.system.batch import overlaps, site_file
from tests.system.cluster import kill

MakeHome = Callable[..., Home]

pytestmark = pytest.mark.timeout(300)

STEPS = 1_000_000
"""More than a test lasts."""


@pytest.fixture
def make_home(slurm: SlurmCluster, tmp_path: Path) -> Iterator[MakeHome]:
    """Makes HPCDL_HOMEs; each is ended and checked after the test, before the cluster is put back."""
    made: list[Home] = []

    def make(cluster: SlurmCluster = slurm, **settings: Any) -> Home:
        made.append(Home(cluster, tmp_path / f"home{len(made)}", **settings))
        return made[-1]

    yield make
    for home in made:
        home.stop()


def starts(home: Home, job: int) -> list[tuple[str, int]]:
    """The role and the number of GPUs that the job had, one a start."""
    rows = [event["body"]["placement"] for event in home.events(job) if event["kind"] == "StartRequested"]
    return [(row["role"], sum(len(share["gpus"]) for share in row["shares"])) for row in rows]


def end_in(slurm: SlurmCluster, batch_job: str, seconds: float) -> None:
    """Its walltime ends so soon from now on; it had more left."""
    end = datetime.now().astimezone() + timedelta(seconds=seconds)
    slurm.run("scontrol", "update", f"JobId={batch_job}", f"EndTime={end:%Y-%m-%dT%H:%M:%S}")


def test_six_jobs_share_an_allocation_of_two_nodes(slurm: SlurmCluster, make_home: MakeHome) -> None:
    home = make_home(policy="marble")
    batch_job = home.allocate("-N2", "-t", "10")
    nodes = slurm.nodes(batch_job)
    jobs = list(home.submit_sets(60.0))
    home.until_done(*jobs)
    home.check_sets(jobs)
    began = [starts(home, job) for job in jobs]
    promoted = [each for each in began if each[0][0] == "secondary" and each[-1][0] == "primary"]
    # Packed beside another, suspended, and started again on more GPUs; none where starts are slow
    # (core/rules/exemption.py).
    assert all(each[0][1] < each[-1][1] for each in promoted)
    seen = home.environments()
    assert {job for job, _ in seen} == {str(job) for job in jobs}
    for environment in seen.values():
        assert environment["HPCDL_NODE"] in nodes
        assert environment["HPCDL_ALLOCATION"] == batch_job
        assert environment["CUDA_VISIBLE_DEVICES"] == environment["HPCDL_GPUS"]
        assert 1 <= len(environment["HPCDL_GPUS"].split(",")) <= 4
        assert {name for name in environment if name.startswith(("SLURM", "SBATCH", "SRUN"))} <= {"SLURM_CONF"}


def test_jobs_wait_for_batch_jobs_of_which_slurm_is_asked(slurm: SlurmCluster, make_home: MakeHome) -> None:
    home = make_home(batch_interval_s=1)
    home.start_outside(2)
    good, bad = slurm.submit("sleep 5", "-N1"), slurm.submit("sleep 5; exit 3", "-N1")
    asked = {
        "done": f"--after=slurm:{good}",
        "never": f"--after=slurm:{bad}",
        "either": f"--after=slurm:{bad}?slurm:{good}",
        "failed": f"--after-failed=slurm:{bad}",
        "unknown": "--after=slurm:999999",
    }
    jobs = {name: home.submit(options=(option,), steps=1) for name, option in asked.items()}
    home.until_done(jobs["done"], jobs["either"], jobs["failed"])
    home.until_state(jobs["never"], "CANCELLED")
    assert home.job(jobs["never"])["detail"].startswith(f"batch job slurm:{bad} is over (FAILED")
    home.until_state(jobs["unknown"], "CANCELLED")
    ends = {e["body"]["batch"]: e["body"]["done"] for e in home.events() if e["kind"] == "BatchDependencyEnded"}
    assert ends == {f"slurm:{good}": True, f"slurm:{bad}": False, "slurm:999999": None}


def test_the_walltime_ends_in_the_middle_and_the_next_allocation_goes_on(
    slurm: SlurmCluster, make_home: MakeHome, tmp_path: Path
) -> None:
    home = make_home(leave_margin_s=120)
    record = tmp_path / "record"
    record.mkdir()
    # Slurm sends the script's own signal up to a minute too early: one that nobody hears in its place.
    first = home.allocate("-N2", "-t", "30", "--signal=B:CONT@1")
    home.hold()  # none is done before that
    trainer = ("--step-s", 0.05, "--save-every", 10_000, "--record", record)
    grace = ("--grace", "5")  # so long a save that was not measured yet may take
    jobs = [home.submit(*trainer, gpus=gpus, steps=120, options=grace) for gpus in ("4", "2", "2")]
    for job in jobs:
        home.until_step(job, 20)
    end_in(slurm, first, 126)  # the middle, however long they took to come there
    slurm.until_state(first, "COMPLETED")
    assert home.tagged() == []
    home.until(lambda: home.ours() == [])  # supervisors may be on their way out
    home.release()
    second = home.allocate("-N2", "-t", "5")
    assert second != first
    home.until_done(*jobs)
    for job in jobs:
        home.check_weights(job, 120)
        began = home.resumed(job)
        assert began[0] == 0
        assert 20 <= began[1] == home.saved(job)[0]
        assert len(began) == 2
        assert home.job(job)["cause"] == "done"
    assert not overlaps(record)


@pytest.mark.long
def test_what_happens_to_slurm_happens_to_no_trainer(slurm: SlurmCluster, make_home: MakeHome) -> None:
    """slurmd killed, slurmctld away and back, a node drained, the allocation's steps stopped: training goes on."""
    home = make_home()
    batch_job = home.allocate("-w", "n[1-2]", "-t", "10")
    jobs = [home.submit("--step-s", 0.05, gpus="4", steps=STEPS) for _ in range(2)]
    for job in jobs:
        home.until_step(job, 10)
    slurm.restart_slurmd("n2")
    slurm.stop_slurmctld()
    step = home.job(jobs[0])["step"]
    home.until(lambda: "squeue" in trouble(home))
    home.until_step(jobs[0], step + 20)
    slurm.start_slurmctld()
    home.until(lambda: not trouble(home))
    slurm.drain("n2", "a fan")
    slurm.run("scancel", "--signal=STOP", batch_job)
    slurm.until_state(batch_job, "STOPPED")
    slurm.run("scancel", "--signal=CONT", batch_job)
    for job in jobs:
        home.until_step(job, home.job(job)["step"] + 25)
        home.check_checkpoints(job)
        assert home.resumed(job) == [0]
        assert home.job(job)["incarnation"] == 1


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="only an administrator of Slurm may suspend a job")
def test_a_suspended_allocation_gives_its_nodes_back_and_the_next_goes_on(
    slurm: SlurmCluster, make_home: MakeHome
) -> None:
    home = make_home()
    first = home.allocate("-N1", "-t", "10")
    home.hold()
    job = home.submit("--step-s", 0.05, "--save-every", 10_000, gpus="4", steps=120)
    home.until_step(job, 20)
    slurm.run("scontrol", "suspend", first)  # SIGTSTP, and SIGSTOP 2 s later
    slurm.until_state(first, "SUSPENDED")
    slurm.run("scontrol", "resume", first)
    slurm.until_state(first, "COMPLETED")
    assert home.tagged() == []
    home.release()
    home.allocate("-N1", "-t", "10")
    home.until_done(job)
    home.check_weights(job, 120)
    assert len(home.resumed(job)) == 2
    assert home.resumed(job)[1] >= 20


def trouble(home: Home) -> str:
    """What of the batch system does not work, as `hpcdl pilots` tells it."""
    return " ".join(home.cli("pilots", "--json")["batch"]["troubles"])


def test_the_daemon_is_killed_in_its_allocation_and_moves_to_the_next(slurm: SlurmCluster, make_home: MakeHome) -> None:
    home = make_home()
    home.allocate("-w", "n[1-2]", "-t", "10")
    jobs = [home.submit("--step-s", 0.05, "--save-every", 20, gpus="4", steps=STEPS) for _ in range(2)]
    for job in jobs:
        home.until_step(job, 30)
    pid = home.status()["daemon"]["pid"]
    kill(pid)
    home.until(lambda: home.status()["daemon"]["pid"] != pid)
    home.until(lambda: home.connected() == ["n1", "n2"])
    for job in jobs:
        assert home.job(job)["incarnation"] == 1
        home.until_step(job, home.job(job)["step"] + 20)
    hit = next(job for job in jobs if home.placement(job) == ["n1"])
    slurm.kill_node("n1")  # with the daemon
    slurm.down("n1", "power")
    second = home.allocate("-N2", "-t", "10")
    assert slurm.nodes(second) == ["n3", "n4"]
    assert home.daemon_node() == "n3"
    home.until(lambda: len(home.resumed(hit)) == 2)
    for job in jobs:
        home.until_step(job, home.job(job)["step"] + 25)
        home.check_checkpoints(job)
    again = home.resumed(hit)[1]
    assert again > 0
    assert again % 20 == 0
    assert len(home.resumed(jobs[1 - jobs.index(hit)])) == 1  # what ran on the other node ran on


def trains(home: Home, job: int) -> bool:
    """Whether the job runs, and is not on its way from or to other nodes."""
    return bool(home.job(job)["state"] == "RUNNING")


def unique(steps: list[int]) -> list[int]:
    """Without repeats: a start may be broken off before its first step."""
    return list(dict.fromkeys(steps))


def no_more_holes(slurm: SlurmCluster, but: set[str]) -> None:
    """Nobody begins on these nodes any more, so that no other pilot takes the place of the one that goes."""
    for node in set(NODES) - but:
        slurm.drain(node)


def check_starts(home: Home, job: int, patient: bool) -> None:
    """It began on one node, went on with its pilot's, and went on without that from where it was. Unless Slurm is
    `patient`, its SIGKILL may have come before the save: then a node was lost, and it went on from the save before."""

    def lost() -> bool:
        ends = [event["body"]["cause"] for event in home.events(job) if event["kind"] == "IncarnationEnded"]
        return not patient and "node lost" in ends

    home.until(lambda: lost() or len(unique(home.resumed(job))) == 3)  # it runs before its output is in its log
    alone, both, *again = unique(home.resumed(job))
    assert alone == 0 < both
    if again or patient:
        assert len(again) == 1
        assert both < again[0]
    else:
        assert lost()
    assert {both, *again} <= set(home.saved(job))


def with_pilots(make_home: MakeHome, folder: Path, queue: str, pilots: int, **settings: Any) -> Home:
    """A home whose daemon may submit so many pilots to one partition, with an elastic job's profile."""
    site = site_file(folder, queues=[queue], walltime_min_s=60, startup_s=5)
    home = make_home(policy="bftrainer", pilots=pilots, site=str(site), **settings)
    points = [{"nodes": nodes, "gpus": 4, "rate": 10.0 * nodes} for nodes in (1, 4)]
    home.add_profile("scales", points=points, startup_s=1, save_s=1, resume_s=1, grow_s=1, shrink_s=1)
    return home


@pytest.mark.parametrize("partition", one_of("nograce", "scavenge", "cancelp"))
def test_a_preempted_pilot_gives_its_node_back_and_the_trainer_goes_on(
    slurm: SlurmCluster, make_home: MakeHome, tmp_path: Path, partition: str
) -> None:
    home = with_pilots(make_home, tmp_path, partition, 1)
    home.allocate("-w", "n1", "-N1", "-t", "20")
    job = home.elastic("1:2", STEPS, "--step-s", 0.05, "--save-every", STEPS)
    home.until(lambda: len(home.placement(job)) == 2 and trains(home, job))
    (node,) = set(home.placement(job)) - {"n1"}
    no_more_holes(slurm, {"n1", node})
    home.until_step(job, home.job(job)["step"] + 10)
    other = slurm.submit("exec sleep 1000", "-w", node, "--exclusive")
    slurm.until_state(other, "RUNNING")
    home.until(lambda: home.placement(job) == ["n1"] and trains(home, job))
    check_starts(home, job, patient=partition != "nograce")
    assert all(kind != "JobEnded" for kind in home.kinds(job))
    home.cli("cancel", str(job))


@pytest.mark.long
def test_a_pilot_that_is_preempted_as_it_begins_gives_its_node_back(
    slurm: SlurmCluster, make_home: MakeHome, tmp_path: Path
) -> None:
    """Its agents have not begun, or cannot hear yet."""
    home = with_pilots(make_home, tmp_path, "scavenge", 1, node_name="login")
    home.start_outside(4)
    home.elastic("1:2", STEPS, "--step-s", 0.05, "--save-every", STEPS)
    home.until(lambda: pilot_nodes(home) != [])
    other = slurm.submit("exec sleep 1000", "-w", pilot_nodes(home)[0], "--exclusive")
    slurm.until_state(other, "RUNNING")  # the grace is longer than this waits

    def first() -> dict[str, Any]:
        row: dict[str, Any] = home.cli("pilots", "1", "--all", "--json")["pilots"][0]
        return row

    home.until(lambda: first()["state"] == "ENDED")
    assert first()["preempted"]
    home.cli("cancel", "1")


@pytest.mark.long
@pytest.mark.skipif(bool(no_cgroups()), reason=no_cgroups())
def test_a_step_that_is_killed_with_all_in_it_costs_what_was_not_saved(
    make_slurm: Callable[..., SlurmCluster], make_home: MakeHome, tmp_path: Path
) -> None:
    """No grace, and cgroups: SIGKILL comes while the trainer saves. It goes on elsewhere, from the save before."""
    slurm = make_slurm(cgroups=True, kill_wait_s=2)
    home = with_pilots(make_home, tmp_path, "nograce", 1, cluster=slurm, node_name="login")
    home.cli("daemon", "start", "--json")
    job = home.submit("--step-s", 0.05, "--save-every", 20, "--save-s", 6, gpus="4", steps=STEPS)
    home.until(lambda: home.saved(job) != [])
    (node,) = home.placement(job)
    home.until_step(job, home.saved(job)[0] + 1)
    other = slurm.submit("exec sleep 1000", "-w", node, "--exclusive")
    slurm.until_state(other, "RUNNING")
    home.until(lambda: len(home.resumed(job)) == 2)
    assert home.placement(job) != [node]
    began, again = home.resumed(job)
    assert began == 0
    assert again > 0
    assert again % 20 == 0
    home.check_checkpoints(job)
    home.cli("cancel", str(job))


@pytest.mark.long
def test_an_administrator_cancels_a_pilot_and_the_trainer_goes_on(
    slurm: SlurmCluster, make_home: MakeHome, tmp_path: Path
) -> None:
    home = with_pilots(make_home, tmp_path, "scavenge", 1, node_name="login")
    home.start_outside(4)
    job = home.elastic("1:2", STEPS, "--step-s", 0.05, "--save-every", STEPS)
    home.until(lambda: len(home.placement(job)) == 2 and trains(home, job))
    home.until_step(job, home.job(job)["step"] + 10)
    (pilot,) = home.cli("pilots", "--json")["pilots"]
    no_more_holes(slurm, set())
    slurm.run("scancel", pilot["batch_id"])
    home.until(lambda: home.placement(job) == ["login"] and trains(home, job))
    home.until(lambda: home.cli("pilots", "--json", "p1")["pilots"][0]["state"] == "ENDED")
    (ended,) = home.cli("pilots", "--json", "p1")["pilots"]
    assert "CANCELLED" in ended["how"] + ended["reason"]
    check_starts(home, job, patient=False)
    home.cli("cancel", str(job))


def pilot_nodes(home: Home) -> list[str]:
    """The nodes of all pilots that run."""
    return sorted(node for pilot in home.cli("pilots", "--json")["pilots"] for node in pilot["nodes"])


@pytest.mark.long
def test_pilots_fill_the_hole_before_a_large_job(slurm: SlurmCluster, make_home: MakeHome, tmp_path: Path) -> None:
    """Two nodes are busy, a job of four waits for them: until then the other two train, as BFTrainer's program says."""
    go = slurm.folder / "go"
    busy = slurm.submit(f"while [ ! -e {go} ]; do sleep 0.05; done", "-w", "n[1-2]", "--exclusive", "-t", "5")
    slurm.until_state(busy, "RUNNING")
    big = slurm.submit("exec sleep 1000", "-N4", "--exclusive", "-t", "10")
    slurm.wait_for(lambda: "planned" in slurm.node_states().values(), what="a plan for the large job")
    program = {"milp_solver": "highs", "milp_time_limit": 60}
    home = with_pilots(make_home, tmp_path, "scavenge", 2, node_name="login", **program)
    home.start_outside(4)
    job = home.elastic("1:3", STEPS, "--step-s", 0.05, "--save-every", STEPS)
    home.until(lambda: home.placement(job) == ["login", "n3", "n4"] and trains(home, job))
    home.until_step(job, home.job(job)["step"] + 10)
    assert slurm.state(big) == "PENDING"
    home.until(lambda: pilot_nodes(home) == ["n3", "n4"])
    (pilot,) = home.cli("pilots", "--json")["pilots"]
    assert pilot["until"] <= slurm_moment(slurm, big)
    go.touch()
    slurm.until_state(busy, "COMPLETED")
    go.unlink()
    slurm.until_state(big, "RUNNING")
    home.until(lambda: home.placement(job) == ["login"] and trains(home, job))
    home.until(lambda: home.cli("why", str(job), "--json")["solver"] == "highs over nodes: proven optimal")
    assert "TroubleSeen" not in {event["kind"] for event in home.events()}
    home.cli("cancel", str(job))


@pytest.mark.long
def test_pilots_are_guests(slurm: SlurmCluster, make_home: MakeHome, tmp_path: Path) -> None:
    """None in a partition that nobody preempts; where the site allows it, they are given back to those who wait."""
    home = with_pilots(make_home, tmp_path, "normal", 2, node_name="login")
    home.start_outside(4)
    job = home.elastic("1:4", STEPS, "--step-s", 0.05, "--save-every", STEPS)
    home.until(lambda: any("queue normal is not preemptable (its PreemptMode is OFF)" in each for each in notes(home)))
    assert home.cli("pilots", "--all", "--json")["pilots"] == []
    home.stop_daemon()
    site_file(tmp_path, queues=["normal"], walltime_min_s=60, startup_s=5, pilots_without_preemption=True)
    home.start_outside(4)
    home.until(lambda: len(home.placement(job)) == 4 and trains(home, job))
    home.until(lambda: pilot_nodes(home) == ["n1", "n2", "n3", "n4"])
    home.until_step(job, home.job(job)["step"] + 10)
    others = [slurm.submit("exec sleep 1000", "-N1", "--exclusive", "-t", "10") for _ in range(4)]
    for other in others:
        slurm.until_state(other, "RUNNING")
    assert sorted(node for other in others for node in slurm.nodes(other)) == ["n1", "n2", "n3", "n4"]
    home.until(lambda: home.placement(job) == ["login"] and trains(home, job))
    rows = home.cli("pilots", "--all", "--json")["pilots"]
    assert {"others wait for its nodes" in row["cancelled"] for row in rows} == {True}
    assert len(rows) == 2, "none was asked for again while they waited"
    assert len(home.saved(job)) >= 2, "it saved before its nodes went"
    home.cli("cancel", str(job))


def notes(home: Home) -> list[str]:
    """Why there are no more pilots."""
    found: list[str] = home.cli("pilots", "--json")["notes"]
    return found


def slurm_moment(slurm: SlurmCluster, job: str) -> float:
    """When Slurm expects a waiting job to start, seconds since the epoch."""
    return datetime.fromisoformat(slurm.field(job, "StartTime")).astimezone().timestamp()
