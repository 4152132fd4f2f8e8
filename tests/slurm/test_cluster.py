"""The cluster of the tests itself, and what our documentation says that Slurm does."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdl.slurm.nodes import nodes_of_json
from hpcdl.wire.readable import readable
from tests.slurm.cluster import SlurmCluster
from tests.slurm.configuration import NODES
from tests.slurm.keeper import carrying

ROOT = Path(__file__).parents[2]
NAMES = ("TERM", "USR1")


def step(then: str, *signals: str) -> str:
    """An srun whose step says which signals it gets, `step TERM`, and then does `then`."""
    traps = "; ".join(f'trap "echo step {name}; {then if name in signals else ":"}" {name}' for name in NAMES)
    return f"srun bash -c '{traps}; echo step up; while :; do sleep 0.1; done'"


def told(slurm: SlurmCluster, job: str) -> set[str]:
    """What the step of a job has said, once or more often."""
    return {line.removeprefix("step ") for line in slurm.output(job).split("\n") if line.startswith("step ")}


def up(slurm: SlurmCluster, script: str, *options: str) -> str:
    """Submits a script with a step, and waits for that."""
    job = slurm.submit(script, "--exclusive", *options)
    slurm.wait_for(lambda: told(slurm, job), what="step")
    return job


def test_a_job_of_two_nodes_has_their_gpus(slurm: SlurmCluster) -> None:
    script = "srun bash -c 'echo \"$SLURMD_NODENAME has $CUDA_VISIBLE_DEVICES of job $SLURM_JOB_ID\"'"
    job = slurm.submit(script, "-N2", "--exclusive", "--gres=gpu:4")
    slurm.until_state(job, "COMPLETED")
    nodes = slurm.nodes(job)
    assert len(nodes) == 2
    assert sorted(slurm.output(job).split("\n")[:-1]) == [f"{node} has 0,1,2,3 of job {job}" for node in nodes]
    inventory = nodes_of_json(slurm.run("sinfo", "--json").stdout)
    assert {node.name: node.gpus for node in inventory} == dict.fromkeys(NODES, 4)


def test_a_step_gets_the_gpus_that_it_asks_for(slurm: SlurmCluster) -> None:
    asked = ("", "--gres=gpu:1", "--gres=gpu:2", "--gres=none")
    steps = [f"srun --overlap -N1 -n1 {gres} bash -c 'echo \"<$CUDA_VISIBLE_DEVICES>\"'" for gres in asked]
    job = slurm.submit("\n".join(steps), "-N1", "--gres=gpu:2")
    slurm.until_state(job, "COMPLETED")
    assert slurm.output(job).split() == ["<0,1>", "<0>", "<0,1>", "<>"]


def test_preemption_tells_steps_at_once_and_the_node_is_free_when_they_end(slurm: SlurmCluster) -> None:
    job = up(slurm, step("exit 0", "TERM"), "-w", "n1", "-p", "cancelp")
    other = slurm.submit("exec sleep 100", "-w", "n1", "--exclusive")
    slurm.until_state(other, "RUNNING")  # the grace alone is longer than this waits
    assert told(slurm, job) == {"up", "TERM"}
    assert slurm.state(job) in ("COMPLETED", "PREEMPTED")  # of 22.05, where only the time of it tells, and of 24.11
    assert slurm.field(job, "PreemptTime").startswith("20")
    assert slurm.nodes(other) == ["n1"]


def test_the_users_signal_is_sent_at_a_preemption_where_the_site_says_so(
    make_slurm: Callable[..., SlurmCluster],
) -> None:
    slurm = make_slurm(user_signal=True)
    job = up(slurm, step("exit 0", "USR1"), "-w", "n2", "-p", "scavenge", "--signal=USR1@60")
    other = slurm.submit("exec sleep 100", "-w", "n2", "--exclusive")
    slurm.until_state(other, "RUNNING")
    assert told(slurm, job) == {"up", "USR1"}


def test_no_grace_is_no_grace(slurm: SlurmCluster) -> None:
    job = up(slurm, step(":"), "-w", "n3", "-p", "nograce")
    other = slurm.submit("exec sleep 100", "-w", "n3", "--exclusive")
    slurm.until_state(other, "RUNNING")  # KillWait is 5 s
    assert told(slurm, job) == {"up", "TERM"}
    assert slurm.state(job) == "PREEMPTED"


def test_a_killed_slurmd_comes_back_and_its_job_ran_on(slurm: SlurmCluster) -> None:
    job = slurm.submit("echo up; while [ ! -e go ]; do sleep 0.05; done; echo done", "-w", "n2")
    slurm.wait_for(lambda: "up" in slurm.output(job), what="job")
    slurm.kill_slurmd("n2")
    slurm.restart_slurmd("n2")
    (slurm.folder / "go").touch()
    slurm.until_state(job, "COMPLETED")
    (slurm.folder / "go").unlink()
    assert slurm.output(job) == "up\ndone\n"


def test_slurmctld_comes_back_with_its_jobs(slurm: SlurmCluster) -> None:
    job = slurm.submit("exec sleep 100", "-N2")
    slurm.until_state(job, "RUNNING")
    nodes = slurm.nodes(job)
    slurm.stop_slurmctld()
    slurm.start_slurmctld()
    assert (slurm.state(job), slurm.nodes(job)) == ("RUNNING", nodes)
    slurm.drain("n4", "to be repaired")
    assert slurm.node_states()["n4"].startswith("drain")


def test_two_beside_each_other_and_nothing_is_left_of_either(
    slurm: SlurmCluster, make_slurm: Callable[..., SlurmCluster]
) -> None:
    other = make_slurm(gpus=2)
    job = other.submit("srun sleep 1000", "-N4", "--gres=gpu:2")
    other.until_state(job, "RUNNING")
    other.wait_for(lambda: len(other.processes("n4")) >= 2, what="step on n4")
    assert slurm.run("squeue", "-h").stdout == ""
    other.stop()
    assert carrying(other.conf) == []
    assert not other.folder.exists()
    assert set(slurm.node_states().values()) == {"idle"}


def test_a_process_that_a_test_leaves_is_killed_and_named(make_slurm: Callable[..., SlurmCluster]) -> None:
    slurm = make_slurm()
    process = slurm.popen("sleep", "1000")
    try:
        with pytest.raises(AssertionError, match=r"ran on: .*sleep 1000"):
            slurm.reset(moment_s=0.2)
    finally:
        process.kill()
        process.wait(180)
    assert process.returncode == -signal.SIGKILL


def keeper_of(conf: str) -> int:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if conf in words and any(word.endswith("keeper.py") for word in words):
                    return int(entry.name)
    raise AssertionError(f"nobody keeps {conf}")


def test_the_end_of_its_process_ends_a_cluster(slurm_packages: None) -> None:
    code = """
        from tests.slurm.cluster import SlurmCluster
        slurm = SlurmCluster().start()
        slurm.until_state(slurm.submit("srun sleep 1000", "-N2"), "RUNNING")
        print(slurm.folder, flush=True)
        input()
    """
    argv = [sys.executable, "-c", "\n".join(line[8:] for line in code.split("\n"))]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        conf = str(folder / "etc" / "slurm.conf")
        assert folder.is_dir()
        assert len(carrying(conf)) > 6
        descriptor = os.pidfd_open(keeper_of(conf))
        process.kill()
    try:
        assert readable([descriptor], 180)
    finally:
        os.close(descriptor)
    assert carrying(conf) == []
    assert not folder.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a cluster as somebody else")
def test_all_of_it_as_an_ordinary_user(make_slurm: Callable[..., SlurmCluster]) -> None:
    mask = os.umask(0o002)  # as Debian's users have it
    try:
        slurm = make_slurm(user="nobody")
    finally:
        os.umask(mask)
    job = slurm.submit("srun id -un", "-N2", "--gres=gpu:4")
    slurm.until_state(job, "COMPLETED")
    assert slurm.output(job) == "nobody\nnobody\n"
    slurm.drain("n1")
    slurm.reset()
    assert slurm.node_states()["n1"] == "idle"
