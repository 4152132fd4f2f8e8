"""jobscripts/sbatch before a real sbatch: what it leaves to Slurm runs there as it would have without it."""

import os
import sys
from pathlib import Path

from tests.cli.fake import FakeDaemon
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
