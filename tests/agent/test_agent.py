"""Real agents, supervisors and trainers, and a daemon that only listens."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcdl.agent import run_folder
from hpcdl.agent.start_request import with_stubs
from hpcdl.agent.supervisor import processes
from hpcdl.wire import messages as msg
from tests.agent.daemon import Agents, Daemon, spec_of
from tests.agent.start_requests import begin, checkpoints, supervisor_of
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)


def test_from_start_to_exit(daemon: Daemon, agents: Agents, home: Path) -> None:
    agents.start()
    number = begin(daemon)
    freed = daemon.wait("GpusFreed", 1)
    assert daemon.kinds(1) == ["Started", "Attached", "TrainerReady", "Saved", "TrainingDone", "Exited", "GpusFreed"]
    assert number in daemon.taken
    exited = daemon.wait("Exited", 1)
    assert (exited.code, exited.signal, exited.attached, exited.hint, exited.step) == (0, None, True, None, 5)
    assert (freed.node, freed.membership) == ("n1", 1)
    assert daemon.of("Saved", 1)[-1].step == 5
    inventory = daemon.inventories[0]
    assert [(gpu.index, gpu.state) for gpu in inventory.gpus] == [(0, "ok"), (1, "ok")]
    assert inventory.emulated
    assert inventory.cpus >= 1
    assert not processes.tagged(daemon.instance)
    assert (agents.run / "1.1").is_dir()
    daemon.say(msg.ForgetMessage(1, 1))
    until(lambda: not (agents.run / "1.1").exists(), "the run folder to go")
    number = begin(daemon, incarnation=1)
    until(lambda: number in daemon.taken, "the second start to be taken")


def test_the_environment_of_a_trainer(daemon: Daemon, agents: Agents, home: Path) -> None:
    agents.start()
    script = "import json,os;print(json.dumps(dict(os.environ)))"
    own = (("MINE", "1"), ("SLURM_PROCID", "3"), ("SLURM_CONF", "/site/slurm.conf"))
    begin(daemon, gpus=(0, 1), command=(sys.executable, "-c", script), env=own)
    daemon.wait("GpusFreed", 1)
    seen = json.loads((home / "logs" / "1" / "1.n1.log").read_text())
    uuids = [gpu.uuid for gpu in daemon.inventories[0].gpus]
    assert seen["HPCDL_TAG"] == f"{daemon.instance}:1:1:n1"
    assert seen["CUDA_VISIBLE_DEVICES"] == seen["HPCDL_GPUS"] == ",".join(uuids)
    assert seen["NVIDIA_VISIBLE_DEVICES"] == ",".join(uuids)
    assert (seen["HPCDL_GPU_COUNT"], seen["HPCDL_NODES"], seen["HPCDL_NODE_RANK"]) == ("2", "n1", "0")
    assert (seen["HPCDL_JOB"], seen["HPCDL_NODE"], seen["HPCDL_STEPS"], seen["MINE"]) == ("1", "n1", "5", "1")
    assert seen["HPCDL_EMULATED"] == str(agents.run / "emulated")
    assert seen["HPCDL_CHECKPOINT_DIR"] == checkpoints(home, 1)
    assert [name for name in seen if name.startswith("SLURM")] == ["SLURM_CONF"]  # its commands need that
    assert seen["HPCDL_HOME"] == str(home)
    assert seen["PATH"] == with_stubs(os.environ["PATH"])
    assert seen["OMP_NUM_THREADS"] == str(len(os.sched_getaffinity(0)))  # the job has all GPUs of the node


def test_threads_are_divided_among_the_ranks_and_by_the_gpus(daemon: Daemon, agents: Agents, home: Path) -> None:
    agents.start()
    cores = len(os.sched_getaffinity(0))
    command = (sys.executable, "-c", "import os; os.write(1, os.environ['OMP_NUM_THREADS'].encode() + b'\\n')")
    begin(daemon, 1, gpus=(0, 1), command=command, rescale="in-process")
    daemon.wait("GpusFreed", 1)
    begin(daemon, 2, gpus=(1,), command=command)
    daemon.wait("GpusFreed", 2)
    begin(daemon, 3, gpus=(1,), command=command, env=(("OMP_NUM_THREADS", "77"),))
    daemon.wait("GpusFreed", 3)
    printed = [(home / "logs" / str(job) / "1.n1.log").read_text().split() for job in (1, 2, 3)]
    half = str(max(1, cores // 2))
    assert printed == [[half, half], [half], ["77"]]


def test_srun_in_a_trainer_is_refused(daemon: Daemon, agents: Agents, home: Path, tmp_path: Path) -> None:
    """Without SLURM_JOB_ID the real one gets an allocation of its own, on other nodes."""
    real = tmp_path / "real"
    real.mkdir()
    for name in ("srun", "salloc", "jsrun", "blaunch"):
        (real / name).write_text("#!/bin/sh\necho ran elsewhere\n")
        (real / name).chmod(0o755)
    agents.start()
    script = 'for each in srun salloc jsrun blaunch; do $each -N1 hostname; echo "$each: $?"; done; sh -c srun; exit 7'
    path = f"{real}:{os.environ['PATH']}"
    begin(daemon, command=("/bin/sh", "-c", script), env=(("PATH", path), ("SLURM_JOB_ID", "3")))
    assert daemon.wait("Exited", 1).code == 7
    daemon.wait("GpusFreed", 1)
    lines = (home / "logs" / "1" / "1.n1.log").read_text().splitlines()
    assert [line for line in lines if not line.startswith("hpcdl: ")] == [
        "srun: 1", "salloc: 1", "jsrun: 1", "blaunch: 1"
    ]  # fmt: skip
    said = [line for line in lines if line.startswith("hpcdl: ")]
    assert len(said) == 5
    assert said[0].startswith("hpcdl: srun is not for jobs of hpcdl")


def test_suspend_then_the_gpus_are_free(daemon: Daemon, agents: Agents) -> None:
    agents.start()
    begin(daemon, steps=100_000)
    daemon.wait("TrainerReady", 1)
    until(lambda: daemon.of("Progressed", 1), "progress")
    until(lambda: daemon.heartbeats and daemon.heartbeats[-1].trainers, "a heartbeat with the trainer")
    line = daemon.heartbeats[-1].trainers[0]
    assert (line.job, line.incarnation, line.pid) == (1, 1, daemon.wait("Started", 1).pid)
    assert line.supervisor == supervisor_of(agents, 1)["pid"]
    daemon.ask("suspend", 1, grace_s=30.0)
    daemon.ask("suspend", 1, grace_s=30.0)
    daemon.wait("GpusFreed", 1)
    exited = daemon.wait("Exited", 1)
    assert (exited.code, exited.ended_by) == (0, "suspend")
    assert daemon.of("Saved", 1)[-1].final
    assert daemon.kinds(1)[-2:] == ["Exited", "GpusFreed"]
    begin(daemon, incarnation=2, steps=100_000)
    ready = daemon.wait("TrainerReady", 1, 2)
    assert ready.step == daemon.of("Saved", 1)[-1].step
    daemon.ask("end", 1, 2, grace_s=5.0)
    assert daemon.wait("Exited", 1, 2).ended_by == "end"
    daemon.wait("GpusFreed", 1, 2)


def test_a_second_agent_of_a_node_is_refused(daemon: Daemon, agents: Agents) -> None:
    first = agents.start()
    until(lambda: daemon.inventories, "the first one's call")
    second = agents.start()
    assert second.wait(180) == 3
    assert second.stdout is not None
    said = second.stdout.read()
    assert said.count("\n") == 1
    assert str(first.pid) in said
    assert first.poll() is None


def test_a_start_that_is_repeated_starts_nothing(daemon: Daemon, agents: Agents) -> None:
    agents.start()
    until(lambda: daemon.inventories, "the call")
    numbers = [begin(daemon, steps=100_000) for _ in range(3)]
    daemon.wait("TrainerReady", 1)
    until(lambda: set(numbers) <= set(daemon.taken), "all to be taken")
    assert len([each for each in processes.tagged(daemon.instance) if each.tag.endswith(":1:1:n1")]) == 1
    daemon.ask("end", 1, grace_s=5.0)
    daemon.wait("GpusFreed", 1)
    assert daemon.kinds(1).count("Started") == 1


def test_the_gate(daemon: Daemon, agents: Agents, home: Path) -> None:
    script = home / "script.py"
    script.write_text("import os\nprint(os.environ['HPCDL_GPUS'])\n")
    agents.start()
    command = (sys.executable, "-m", "hpcdl.trainer.gate", str(script))
    daemon.ask("start", 1, spec=spec_of(command=command, gate=True), checkpoint_dir=checkpoints(home, 1))
    daemon.wait("AtGate", 1)
    assert not daemon.of("Exited", 1)
    daemon.ask("open", 1, gpus=(1,))
    daemon.wait("GpusFreed", 1)
    exited = daemon.wait("Exited", 1)
    assert (exited.code, exited.hint) == (0, None)
    assert daemon.inventories[0].gpus[1].uuid in (home / "logs" / "1" / "1.n1.log").read_text()


def test_a_command_that_is_not_there(daemon: Daemon, agents: Agents) -> None:
    agents.start()
    begin(daemon, command=("/nowhere/at/all",))
    daemon.wait("GpusFreed", 1)
    exited = daemon.wait("Exited", 1)
    assert (exited.code, exited.hint) == (127, None)
    assert "not found" in exited.detail


def test_a_working_directory_that_this_node_lacks(daemon: Daemon, agents: Agents, home: Path) -> None:
    agents.start()
    folder = str(home / "not" / "mounted")
    daemon.ask("start", 1, gpus=(0,), spec=spec_of(cwd=folder), checkpoint_dir=checkpoints(home, 1))
    daemon.wait("GpusFreed", 1)
    exited = daemon.wait("Exited", 1)
    assert (exited.code, exited.hint, exited.permanent, exited.node_fault) == (127, "infrastructure", True, True)


@pytest.mark.parametrize("named", [True, False])
def test_a_checkpoint_folder_that_cannot_be_made(daemon: Daemon, agents: Agents, home: Path, named: bool) -> None:
    """One that its user named may be a mistake of theirs; one in the home is none of the job's."""
    agents.start()
    (home / "file").write_text("")
    folder = str(home / "file" / "checkpoints")
    spec = spec_of(checkpoint_dir=folder) if named else spec_of()
    daemon.ask("start", 1, gpus=(0,), spec=spec, checkpoint_dir=folder)
    daemon.wait("GpusFreed", 1)
    exited = daemon.wait("Exited", 1)
    assert (exited.hint, exited.permanent, exited.node_fault) == ("infrastructure", named, True)
    assert exited.detail == f"the checkpoint folder {folder} cannot be made: Not a directory"


def test_a_checkpoint_folder_that_is_a_link_to_nowhere(tmp_path: Path) -> None:
    """To a file system that is not mounted, say: `File exists` would tell nobody what to look for."""
    folder = tmp_path / "checkpoints"
    folder.symlink_to(tmp_path / "scratch")
    with pytest.raises(FileExistsError) as caught:
        os.makedirs(folder, exist_ok=True)
    told = str(run_folder.CheckpointFolderError(str(folder), caught.value))
    assert told.endswith(f"cannot be made: it is a link to {tmp_path / 'scratch'}, where no folder is")


@pytest.mark.parametrize(
    ("code", "node_fault", "permanent"),
    [(errno.ENOSPC, False, False), (errno.EACCES, True, True), (errno.ESTALE, True, False), (errno.EIO, True, False)],
)
def test_why_a_checkpoint_folder_cannot_be_made(code: int, node_fault: bool, permanent: bool) -> None:
    """A full disk may pass, a stale mount is its node's, and what no other attempt changes may be the user's."""
    error = run_folder.CheckpointFolderError("/c", OSError(code, "x"))
    assert (error.node_fault, error.permanent) == (node_fault, permanent)


def test_after_a_bye_the_agent_ends(daemon: Daemon, agents: Agents) -> None:
    agent = agents.start()
    begin(daemon)
    daemon.wait("GpusFreed", 1)
    daemon.say(msg.ByeMessage(True, "stopped"))
    assert agent.wait(180) == 0


def test_orphans_are_swept(daemon: Daemon, agents: Agents) -> None:
    tagged = {"HPCDL_TAG": f"{daemon.instance}:5:1:n1"}
    other = {"HPCDL_TAG": f"{daemon.instance}:5:1:n2"}
    orphan = subprocess.Popen(["sleep", "1000"], env=os.environ | tagged)
    neighbour = subprocess.Popen(["sleep", "1000"], env=os.environ | other)
    try:
        agents.start()
        assert orphan.wait(180) == -signal.SIGKILL
        until(lambda: daemon.inventories, "the call")
        assert neighbour.poll() is None
    finally:
        for each in (orphan, neighbour):
            each.kill()
            each.wait()


def test_an_idle_agent_uses_next_to_no_cpu(daemon: Daemon, agents: Agents) -> None:
    daemon.interval_s = 10.0
    agent = agents.start()
    until(lambda: daemon.heartbeats, "the call")

    def ticks() -> int:
        fields = Path(f"/proc/{agent.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    def used() -> int:
        before, began = ticks(), time.monotonic()
        until(lambda: time.monotonic() - began > 3.0, "three seconds")
        return ticks() - before

    # On a slow machine it still starts.
    assert any(used() <= 15 for _ in range(20)), "three seconds with less than 15 hundredths of a second"


def test_progress_is_reported_more_often_at_first(daemon: Daemon, agents: Agents) -> None:
    """What was found: of a trial of some seconds there was one report, so nobody could say when its warm-up ended."""
    daemon.interval_s = 600.0
    agents.start()
    begin(daemon, steps=100_000)
    until(lambda: len(daemon.of("Progressed", 1)) >= 5, "five reports within an interval")
    steps = [each.step for each in daemon.of("Progressed", 1)]
    assert steps == sorted(set(steps)), "each is news"
    daemon.ask("suspend", 1, grace_s=30.0)
    daemon.wait("GpusFreed", 1)
