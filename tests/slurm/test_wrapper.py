"""jobscripts/sbatch before a real sbatch: what it leaves to Slurm runs there as it would have without it."""

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcdl.agent.start_request import batch_script
from hpcdl.core.model.frozen import from_json
from hpcdl.core.model.job import BatchTasks
from tests.cli.fake import FakeDaemon, row
from tests.slurm.cluster import SlurmCluster

ROOT = Path(__file__).parents[2]


def test_jobs_go_where_they_belong(slurm: SlurmCluster, tmp_path: Path) -> None:
    tools, home = tmp_path / "tools", tmp_path / "home"
    tools.mkdir()
    home.mkdir(mode=0o700)
    (tools / "hpcdl").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hpcdl "$@"\n')
    (tools / "hpcdl").chmod(0o755)
    path = f"{ROOT / 'jobscripts'}:{tools}:{slurm.env.get('PATH', os.environ['PATH'])}"
    around = {"PATH": path, "HPCDL_HOME": str(home), "PYTHONPATH": str(ROOT)}
    fake = FakeDaemon(home).start()
    try:
        plain = slurm.submit('echo "<$1>" "$HPCDL_WRAPPED"', "-N1", "--job-name=plain", env=around)
        refused = slurm.run("sbatch", "--nonsense", env=around, check=False)
        wanted = slurm.run("sbatch", "--gres=gpu:1", "--wrap=true", env=around).stdout
        sizes = ("-N1", "--gres=gpu:2", "--ntasks-per-node=2", "--cpus-per-task=1", "--job-name=net")
        steps = slurm.submit(STEPS, *sizes, env=around | {"HPCDL_BYPASS": "1"})
        taken = slurm.run("sbatch", "--parsable", *sizes, f"--wrap={STEPS}", env=around).stdout
    finally:
        fake.close()
    without = slurm.submit("echo $CUDA_VISIBLE_DEVICES", "-N1", "--gres=gpu:1", env=around)  # no daemon any more
    for job in (plain, steps, without):
        slurm.until_state(job, "COMPLETED")
    assert (slurm.field(plain, "JobName"), slurm.output(plain)) == ("plain", "<> \n")
    assert slurm.output(without).count(",") == 0  # one GPU
    assert refused.returncode != 0
    assert "nonsense" in refused.stderr
    assert wanted == "Submitted batch job 1\n"
    posted = [body["jobs"][0] for method, _, body in fake.requests if method == "POST"]
    assert ([each["gpus_min"] for each in posted], taken) == ([1, 2], "2\n")
    assert from_json(BatchTasks, posted[1]["batch"]).tasks_per_node == 2
    assert ["SLURM_CONF", slurm.conf] in posted[1]["env"]  # for Slurm's commands in the job
    _same_variables(slurm.output(steps), _run_as_agents_do(tmp_path, posted[1]), slurm.field(steps, "NodeList"))


STEPS = "env | grep ^SLURM_; echo; srun env | grep ^SLURM_; echo; srun -n1 --gres=gpu:1 env | grep ^SLURM_"
LEFT = re.compile(
    "SLURM_(CONF|PRIO_PROCESS|NODE_ALIASES|WORKING_CLUSTER|STEP_LAUNCHER_PORT|SRUN_COMM_PORT|UMASK|CPU_BIND.*|DISTRIBUTION"
    "|JOB_QOS|JOB_ACCOUNT|MEM_PER_(NODE|CPU)|.*PACK_GROUP.*|.*_RESV_.*|JOB_(START|END)_TIME)"
)
"""What Slurm sets of its own daemons and limits; and when the job began and ends, for hpcdl's go on and on."""
LATER = {"SLURM_OOM_KILL_STEP", "SLURM_TRES_PER_TASK"}
"""What Slurm 22.05 does not set yet."""
EQUAL = [
    *("SLURM_JOB_NAME", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE"),
    *("SLURM_NODEID", "SLURM_TASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS"),
    *("SLURM_STEP_NUM_NODES", "SLURM_STEP_TASKS_PER_NODE", "SLURM_JOB_UID"),
]


def _run_as_agents_do(tmp_path: Path, job: dict[str, Any]) -> str:
    """What the script writes as a job of hpcdl on two GPUs."""
    with tempfile.TemporaryDirectory(prefix="hpcdl-") as folder, socket.socket(socket.AF_UNIX) as side:
        side.bind(f"{folder}/s")
        argv = batch_script(from_json(BatchTasks, job["batch"]), f"{folder}/steps", job["command"])
        around = {"HPCDL_SOCKET": f"{folder}/s", "HPCDL_JOB": "2", "HPCDL_JOB_NAME": job["name"], "HPCDL_NODE": "n1",
                  "HPCDL_NODES": "n1", "HPCDL_GPU_COUNT": "2", "CUDA_VISIBLE_DEVICES": "a,b", "USER": "me",
                  "PATH": os.environ["PATH"]}  # fmt: skip
        done = subprocess.run(argv, env=around, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def _same_variables(theirs: str, ours: str, node: str) -> None:
    """The script and its steps see variables of the same names, and of the same values where a job is the same."""
    assert node
    for real, mine in zip(theirs.split("\n\n"), ours.split("\n\n"), strict=True):
        found = [_values(text) for text in (real, mine)]
        names = [{name for name in each if not LEFT.fullmatch(name)} for each in found]
        assert names[0] - names[1] == set()
        assert names[1] - names[0] <= LATER
        assert [[each.get(name) for name in EQUAL] for each in found[1:]] == [[found[0].get(name) for name in EQUAL]]


def _values(text: str) -> dict[str, set[str]]:
    """The values of each variable, of all tasks."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        name, _, value = line.partition("=")
        found.setdefault(name, set()).add(value)
    return found


def test_ranks_of_mpi_are_slurms_where_that_is_its_default(
    make_slurm: Callable[..., SlurmCluster], tmp_path: Path
) -> None:
    slurm = make_slurm(more={"MpiDefault": "pmi2"})
    tools, home = tmp_path / "tools", tmp_path / "home"
    tools.mkdir()
    home.mkdir(mode=0o700)
    (tools / "hpcdl").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hpcdl "$@"\n')
    (tools / "hpcdl").chmod(0o755)
    (tmp_path / "train.py").write_text("import sys\n")
    path = f"{ROOT / 'jobscripts'}:{tools}:{slurm.env.get('PATH', os.environ['PATH'])}"
    around = {"PATH": path, "HPCDL_HOME": str(home), "PYTHONPATH": str(ROOT)}
    fake = FakeDaemon(home).start()
    try:
        unseen = slurm.run("sbatch", "--gres=gpu:1", "--wrap=srun -n2 $PROGRAM", env=around)
        told = slurm.run("sbatch", "--gres=gpu:1", "--wrap=srun -n2 --mpi=none $PROGRAM", env=around)
        seen = slurm.run(
            "sbatch", "--gres=gpu:1", f"--wrap=srun -n2 {sys.executable} {tmp_path / 'train.py'}", env=around
        )
    finally:
        fake.close()
    assert "wrap:2: srun starts no ranks of MPI inside a job: the default here is --mpi=pmi2" in unseen.stderr
    slurm.until_state(unseen.stdout.split()[-1], "FAILED", "COMPLETED")
    assert (told.stdout, seen.stdout) == ("Submitted batch job 1\n", "Submitted batch job 2\n")
    assert len([each for each in fake.requests if each[0] == "POST"]) == 2


def test_ids_of_two_worlds(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Slurm starts `afterany:` of a job that it does not know at once; and its own running job may be hpcdl's DONE."""
    tools, home = tmp_path / "tools", tmp_path / "home"
    tools.mkdir()
    home.mkdir(mode=0o700)
    (tools / "hpcdl").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hpcdl "$@"\n')
    (tools / "hpcdl").chmod(0o755)
    path = f"{ROOT / 'jobscripts'}:{tools}:{slurm.env.get('PATH', os.environ['PATH'])}"
    around = {"PATH": path, "HPCDL_HOME": str(home), "PYTHONPATH": str(ROOT)}
    both = int(slurm.submit("exec sleep 600", "-N1", "--job-name=both"))
    ours = both + 1000
    fake = FakeDaemon(home).start()
    fake.world.jobs = {both: row(both, state="DONE"), ours: row(ours, state="RUNNING", name="prep")}
    refused = {}
    try:
        for words in (
            [f"--dependency=afterany:{ours}"],
            ["-d", f"afternotok:{ours}"],
            [f"-dafterok:{both}"],
            [f"--dependency=afterok:{both}", "--gres=gpu:1"],
            [f"--dependency=aftercorr:{ours}", "--gres=gpu:1"],
            ["--dependency=singleton", "--job-name=prep"],
        ):
            refused[" ".join(words)] = slurm.run("sbatch", *words, "--wrap=true", env=around, check=False)
        waits = slurm.run("sbatch", f"--dependency=afterok:{ours}", "--gres=gpu:1", "--wrap=true", env=around)
        alone = ("--dependency=singleton", "--job-name=prep", "--gres=gpu:1", "--wrap=true")
        slurm.run("sbatch", *alone, env=around)
        theirs = slurm.submit("true", "-N1", f"--dependency=afterany:{both + 500}", env=around)
    finally:
        fake.close()
        slurm.run("scancel", str(both))
    for line, done in refused.items():
        assert (done.returncode, done.stdout) == (1, ""), line
        assert len(done.stderr.splitlines()) == 1, line
    said = [done.stderr for done in refused.values()]
    assert [f"hpcdl and Slurm both know job {both}" in each for each in said] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]
    assert waits.stdout == "Submitted batch job 3\n"
    sent = [body["jobs"][0] for method, _, body in fake.requests if method == "POST"]
    assert [(each["after"], each.get("singleton", False)) for each in sent] == [([ours], False), ([], True)]
    slurm.until_state(theirs, "COMPLETED")  # an id that hpcdl does not know is Slurm's affair
    assert int(theirs) == both + 1  # nothing else reached Slurm
