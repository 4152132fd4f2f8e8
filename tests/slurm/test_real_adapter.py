"""The adapter on a real Slurm: holes, pilots, allocations, trouble."""

import os
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcdl.batch.adapter import TIMEOUT_S, Completed, IdleNodes, PilotScript
from hpcdl.batch.command import run
from hpcdl.batch.system import BatchError
from hpcdl.core.model.pilot import BatchJob, BatchState, Hole, PilotSpec
from hpcdl.slurm.adapter import Slurm
from tests.slurm.cluster import SlurmCluster

QUEUES = ("normal", "scavenge", "cancelp", "nograce")


class There:
    """`run` with a cluster's environment; `json`: whether its sinfo and squeue know --json."""

    def __init__(self, cluster: SlurmCluster, *, json: bool = True) -> None:
        self.cluster = cluster
        self.json = json

    def __call__(
        self,
        argv: Sequence[str],
        timeout_s: float = TIMEOUT_S,
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        if "--json" in argv and not self.json:
            return Completed("", f"{argv[0]}: unrecognized option '--json'\n", 1)
        return run(argv, timeout_s, stdin=stdin, env={**self.cluster.env, **(env or {})})


def adapter(cluster: SlurmCluster, *options: str, json: bool = True) -> Slurm:
    return Slurm(There(cluster, json=json), options, {})


def holes(cluster: SlurmCluster, own: Collection[str] = (), *options: str) -> tuple[Hole, ...]:
    """The same by JSON and by text, where nothing changed in between."""
    now = time.time()
    found: list[tuple[Hole, ...]] = []

    def still() -> bool:
        found[:] = [adapter(cluster, *options, json=json).holes(now, own) for json in (True, False, True)]
        return found[0] == found[2]

    cluster.wait_for(still, what="holes that stay for a moment")
    assert found[0] == found[1]
    return found[0]


def in_queue(found: Collection[Hole], queue: str = "scavenge") -> list[tuple[tuple[str, ...], str]]:
    return [(hole.nodes, hole.why) for hole in found if hole.queue == queue]


def script(folder: Path, mark: str, *argv: str) -> PilotScript:
    return PilotScript(argv or ("sleep", "1000"), mark, "pilot", str(folder / "pilot.out"))


def until(cluster: SlurmCluster, system: Slurm, batch_id: str, holds: Callable[[BatchJob], bool]) -> BatchJob:
    """Polls until the job is as wanted."""
    seen: list[BatchJob] = []

    def look() -> bool:
        seen.append(system.poll([batch_id])[batch_id])
        return holds(seen[-1])

    cluster.wait_for(look, what=f"batch job {batch_id}")
    return seen[-1]


def busy_and_big(cluster: SlurmCluster) -> tuple[str, str]:
    """n1 and n2 are busy for ten minutes, and a job of four nodes is planned after that."""
    busy = cluster.submit("exec sleep 1000", "-N2", "-w", "n[1-2]", "--exclusive", "-t", "10")
    cluster.until_state(busy, "RUNNING")
    big = cluster.submit("exec sleep 1000", "-N4", "--exclusive", "-t", "30")
    cluster.wait_for(lambda: any(hole.until for hole in holes(cluster)), what="a plan for the big job")
    return busy, big


def test_what_it_can_do(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", slurm.env["PATH"])
    can = adapter(slurm).capabilities()
    assert can.kind == "slurm"
    assert can.version.split(".")[0].isdigit()
    assert can.queues == QUEUES
    assert can.preemption == "REQUEUE (partition_prio)"
    assert can.limits["KillWait"] == "5 sec"
    assert can.limits["scavenge GraceTime"] == "600 s"
    assert all(can.commands[name] for name in ("sinfo", "squeue", "scontrol", "sbatch", "srun", "scancel"))
    assert adapter(slurm, json=False).capabilities().json is False
    assert adapter(slurm).topology(["n1", "n4", "zz"]) == {"n1": ("top", "leaf1"), "n4": ("top", "leaf2")}


def test_an_idle_cluster_is_one_hole_a_queue(slurm: SlurmCluster) -> None:
    found = holes(slurm)
    assert [(hole.queue, hole.nodes, hole.gpus, hole.until) for hole in found] == [
        (queue, ("n1", "n2", "n3", "n4"), 4, None) for queue in QUEUES
    ]
    assert in_queue(holes(slurm, (), "--licenses=sim:2")) == [(("n1", "n2", "n3", "n4"), "")]
    assert holes(slurm, (), "--licenses=sim:3") == ()


def test_a_hole_before_a_planned_job_is_taken_by_a_pilot(slurm: SlurmCluster, tmp_path: Path) -> None:
    system = adapter(slurm)
    busy, big = busy_and_big(slurm)
    (hole,) = [hole for hole in holes(slurm) if hole.queue == "scavenge"]
    assert (hole.nodes, hole.gpus, hole.why) == (("n3", "n4"), 4, f"batch job {big} is expected on n[1-4]")
    end = system.poll([busy])[busy].until
    assert hole.until is not None
    assert end is not None
    assert abs(hole.until - end) < 5

    left_s = hole.until - time.time() - 60
    spec = PilotSpec(2, left_s, "scavenge", hole.gpus, hole.nodes)
    pilot = system.submit(spec, script(tmp_path, "hpcdl:t:p1"))
    job = until(slurm, system, pilot, lambda job: job.state is BatchState.RUNNING)
    assert (job.nodes, job.queue, job.mark) == (("n3", "n4"), "scavenge", "hpcdl:t:p1")
    assert job.until is not None
    assert job.until < hole.until
    assert holes(slurm, [pilot]) == ()
    assert [(job.mark, job.id) for job in system.marked("hpcdl:t:")] == [("hpcdl:t:p1", pilot)]

    own = system.submit(PilotSpec(1, 3000, "scavenge", 4), script(tmp_path, "hpcdl:t:p2"))
    assert system.poll([own])[own].state is BatchState.PENDING
    system.cancel([pilot, "99999"])
    until(slurm, system, pilot, lambda job: job.state is BatchState.ENDED)
    again = [(("n3", "n4"), f"batch job {big} is expected on n[1-4]")]
    slurm.wait_for(lambda: in_queue(holes(slurm, [own])) == again, what="the hole again, with a pilot of ours waiting")
    polled = system.poll([own, pilot, "99999"])
    assert [polled[each].state for each in (own, pilot, "99999")] == [
        BatchState.PENDING,
        BatchState.ENDED,
        BatchState.MISSING,
    ]
    confirmed = system.confirm([own, pilot, "99999"])
    assert [confirmed[each].state for each in (own, pilot, "99999")] == [
        BatchState.PENDING,
        BatchState.ENDED,
        BatchState.GONE,
    ]


def test_reservations_drained_nodes_and_suspended_jobs(slurm: SlurmCluster) -> None:
    slurm.drain("n1")
    reserve = ("scontrol", "create", "reservation", "duration=60", "users=root", "flags=maint,ignore_jobs")
    slurm.run(*reserve, "starttime=now+10minutes", "nodes=n2", "reservationname=later")
    slurm.run(*reserve, "starttime=now", "nodes=n3", "reservationname=mine")
    job = slurm.submit("exec sleep 1000", "-w", "n4", "--gres=gpu:1", "--mem=100")
    slurm.until_state(job, "RUNNING")
    slurm.run("scontrol", "suspend", job)
    seen = until(slurm, adapter(slurm), job, lambda job: job.state is BatchState.SUSPENDED)
    assert seen.reason == "SUSPENDED"
    expected = [(("n2",), "maintenance later begins on n2")]
    slurm.wait_for(lambda: in_queue(holes(slurm)) == expected, what="n2 alone")  # n4 idles, and its GPU is held
    slurm.wait_for(
        lambda: in_queue(holes(slurm, (), "--reservation=mine")) == [(("n3",), "the reservation mine ends")],
        what="our reservation's node",
    )


def test_a_preempted_pilot_says_so_while_it_runs_and_afterwards(slurm: SlurmCluster, tmp_path: Path) -> None:
    system = adapter(slurm)
    steps = "srun --overlap sh -c 'trap \"touch seen; exit 0\" TERM; touch up; while :; do sleep 0.1; done'"
    pilot = system.submit(
        PilotSpec(1, 1200, "scavenge", 4, ("n1",)),
        script(tmp_path, "hpcdl:t:p1", "/bin/sh", "-c", f"cd {tmp_path}; {steps}; sleep 1000"),
    )
    job = until(slurm, system, pilot, lambda job: job.state is BatchState.RUNNING)
    slurm.wait_for((tmp_path / "up").exists, what="its step")
    slurm.submit("exec sleep 1000", "-w", "n1", "--exclusive")
    preempted = until(slurm, system, pilot, lambda job: job.preempted)
    assert preempted.state in (BatchState.RUNNING, BatchState.ENDING)
    if preempted.state is BatchState.RUNNING:
        assert preempted.until is not None
        assert job.until is not None
        assert preempted.until < job.until
    slurm.wait_for((tmp_path / "seen").exists, what="the step's signal")
    system.cancel([pilot])
    ended = until(slurm, system, pilot, lambda job: job.state is BatchState.ENDED)
    assert ended.preempted


def test_signals_reach_the_steps_only(slurm: SlurmCluster, tmp_path: Path) -> None:
    system = adapter(slurm)
    inner = "trap 'touch step' USR1; touch up; while :; do sleep 0.1; done"
    outer = f"cd {tmp_path}; trap 'touch batch' USR1; srun --overlap sh -c \"{inner}\" & while :; do sleep 0.1; done"
    pilot = system.submit(PilotSpec(1, 1200, "normal", 4), script(tmp_path, "m", "/bin/sh", "-c", outer))
    slurm.wait_for((tmp_path / "up").exists, what="its step")
    system.signal(pilot, "USR1")
    slurm.wait_for((tmp_path / "step").exists, what="the step's signal")
    assert not (tmp_path / "batch").exists()
    system.signal(pilot, "STOP")
    stopped = until(slurm, system, pilot, lambda job: job.state is BatchState.SUSPENDED)
    assert stopped.reason == "STOPPED"


@pytest.mark.parametrize("gpus", ["--gres=gpu:4", "--gpus=8", "--gpus-per-task=1 --ntasks-per-node=4"])
def test_an_allocation_starts_an_agent_on_each_node(slurm: SlurmCluster, gpus: str) -> None:
    job = slurm.submit("env; echo whole; sleep 1000", "-N2", "-w", "n[1-2]", "--exclusive", *gpus.split(), "-t", "10")
    slurm.wait_for(lambda: slurm.output(job).endswith("whole\n"), what="its environment")
    environ = dict(line.split("=", 1) for line in slurm.output(job).splitlines() if "=" in line)
    found = adapter(slurm).allocation(environ)
    assert found is not None
    assert (found.id, found.nodes, found.gpus, found.queue, found.here) == (job, ("n1", "n2"), 4, "normal", "n1")
    assert found.until is not None
    assert found.started_at is not None
    assert found.until - found.started_at == 600
    for node in found.nodes:
        told = 'echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $SLURM_CPUS_ON_NODE"; exit 3'
        launched = adapter(slurm).launch(found, node, ["/bin/sh", "-c", told])
        theirs = {name: value for name, value in environ.items() if name.startswith("SLURM")}
        done = subprocess.run(
            launched,
            capture_output=True,
            text=True,
            timeout=180,
            env={**os.environ, **theirs, **slurm.env},
        )
        assert (done.stdout, done.returncode) == (f"{node} 0,1,2,3 8\n", 3), done.stderr
    assert adapter(slurm).poll([job])[job].state is BatchState.RUNNING


def test_an_allocation_without_gpus(slurm: SlurmCluster) -> None:
    job = slurm.submit("env; echo whole; sleep 1000", "-N1", "-n1")
    slurm.wait_for(lambda: slurm.output(job).endswith("whole\n"), what="its environment")
    environ = dict(line.split("=", 1) for line in slurm.output(job).splitlines() if "=" in line)
    found = adapter(slurm).allocation(environ)
    assert found is not None
    assert found.gpus == 0


def test_refusals_in_slurms_words(slurm: SlurmCluster, tmp_path: Path) -> None:
    system = adapter(slurm)
    for spec, said in (
        (PilotSpec(1, 600, "nosuch"), "Invalid partition name specified"),
        (PilotSpec(1, 600, "normal", on=("n9",)), "Invalid node name specified"),
        (PilotSpec(1, 600, "normal", gpus=9), "Requested node configuration is not available"),
    ):
        with pytest.raises(BatchError, match=said) as refused:
            system.submit(spec, script(tmp_path, "hpcdl:refused:p1"))
        assert not refused.value.away
        assert not refused.value.again
    assert system.marked("hpcdl:refused:") == ()


def test_while_the_controller_is_away_nothing_is_concluded(slurm: SlurmCluster, tmp_path: Path) -> None:
    system = adapter(slurm)
    pilot = system.submit(PilotSpec(1, 600, "normal", 4), script(tmp_path, "hpcdl:away:p1"))
    until(slurm, system, pilot, lambda job: job.state is BatchState.RUNNING)
    slurm.stop_slurmctld()
    with pytest.raises(BatchError) as raised:
        system.holes(time.time(), ())
    assert raised.value.away
    slurm.start_slurmctld()
    until(slurm, system, pilot, lambda job: job.state is BatchState.RUNNING)
    assert [job.mark for job in system.marked("hpcdl:away:")] == ["hpcdl:away:p1"]


def test_what_idles_is_seen_by_one_command(slurm: SlurmCluster) -> None:
    assert adapter(slurm).idle_nodes() == IdleNodes(frozenset({"n1", "n2", "n3", "n4"}), 4)
    job = slurm.submit("exec sleep 1000", "-N2", "-w", "n[1-2]", "--exclusive", "-t", "10")
    slurm.until_state(job, "RUNNING")
    seen = adapter(slurm).idle_nodes()
    assert seen == IdleNodes(frozenset({"n3", "n4"}), 4)
    there = There(slurm)

    def only_json(argv: Sequence[str], timeout_s: float = TIMEOUT_S, **more: Any) -> Completed:
        return there(argv, timeout_s, **more) if "--json" in argv else Completed("", "unrecognized option", 1)

    assert Slurm(only_json).idle_nodes() == seen
    slurm.drain("n4")
    slurm.wait_for(lambda: adapter(slurm).idle_nodes().names == {"n3"}, what="a drained node to idle no more")
