"""jobscripts/sbatch before a real sbatch: what it leaves to Slurm runs there as it would have without it."""

import os
import sys
from pathlib import Path

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
        steps = slurm.submit("srun -n1 bash -c 'echo $CUDA_VISIBLE_DEVICES'", "-N1", "--gres=gpu:2", env=around)
    finally:
        fake.close()
    without = slurm.submit("echo $CUDA_VISIBLE_DEVICES", "-N1", "--gres=gpu:1", env=around)  # no daemon any more
    for job in (plain, steps, without):
        slurm.until_state(job, "COMPLETED")
    assert (slurm.field(plain, "JobName"), slurm.output(plain)) == ("plain", "<> \n")
    assert [len(slurm.output(job).split(",")) for job in (steps, without)] == [2, 1]  # GPUs
    assert refused.returncode != 0
    assert "nonsense" in refused.stderr
    assert wanted == "Submitted batch job 1\n"
    assert [body["jobs"][0]["gpus_min"] for method, _, body in fake.requests if method == "POST"] == [1]


def test_ids_of_two_worlds(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Slurm starts `afterany:` of a job that it does not know at once; and its own running job may be hpcdl's DONE."""
    tools, home = tmp_path / "tools", tmp_path / "home"
    tools.mkdir()
    home.mkdir(mode=0o700)
    (tools / "hpcdl").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hpcdl "$@"\n')
    (tools / "hpcdl").chmod(0o755)
    path = f"{ROOT / 'jobscripts'}:{tools}:{slurm.env.get('PATH', os.environ['PATH'])}"
    around = {"PATH": path, "HPCDL_HOME": str(home), "PYTHONPATH": str(ROOT)}
    both = int(slurm.submit("sleep 600", "-N1", "--job-name=both"))
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
            [f"--dependency=afterany:{ours}", "--gres=gpu:1"],
            ["--dependency=singleton", "--job-name=prep"],
        ):
            refused[" ".join(words)] = slurm.run("sbatch", *words, "--wrap=true", env=around, check=False)
        waits = slurm.run("sbatch", f"--dependency=afterok:{ours}", "--gres=gpu:1", "--wrap=true", env=around)
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
    assert [body["jobs"][0]["after"] for method, _, body in fake.requests if method == "POST"] == [[ours]]
    slurm.until_state(theirs, "COMPLETED")  # an id that hpcdl does not know is Slurm's affair
    assert int(theirs) == both + 1  # nothing else reached Slurm
