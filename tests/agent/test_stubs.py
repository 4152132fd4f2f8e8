"""The commands that stand before the batch system's in a trainer's PATH, and the threads that it is told of."""

import os
import subprocess
from pathlib import Path

import pytest

from hpcdl.agent.start_request import STUBS, thread_variables, with_stubs

NAMES = sorted({name for name in os.listdir(STUBS) if name != "hpcdl-stubs"})
CORES = len(os.sched_getaffinity(0))


@pytest.fixture
def real(tmp_path: Path) -> Path:
    folder = tmp_path / "real"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text('#!/bin/sh\necho "real $0 <$1> <$2>"\nexit 3\n')
        (folder / name).chmod(0o755)
    return folder


def run(path: str, *words: str, **around: str) -> "subprocess.CompletedProcess[str]":
    shell = ["/bin/sh", "-c", '"$@"', "sh", *words]
    return subprocess.run(shell, env={"PATH": path, **around}, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", NAMES)
def test_a_stub_says_why_not(name: str, real: Path) -> None:
    done = run(with_stubs(f"{real}:{os.defpath}"), name, "-N2", "hostname")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"hpcdl: {name} is not for jobs of hpcdl")


@pytest.mark.parametrize("variable", ["SLURM_JOB_ID", "LSB_JOBID"])
def test_in_a_batch_job_that_a_trainer_submitted_the_real_one_runs(variable: str, real: Path) -> None:
    """sbatch hands the trainer's PATH on."""
    path = with_stubs(f"/nonexistent:{STUBS}/:{real}:{os.defpath}")
    for name in NAMES:
        done = run(path, name, "a b", "", **{variable: "12"})
        assert (done.returncode, done.stdout, done.stderr) == (3, f"real {real / name} <a b> <>\n", "")
    (real / "srun").unlink()
    assert run(f"{STUBS}:{real}", STUBS + "/srun", **{variable: "12"}).returncode == 127


def test_the_stubs_are_in_path_once_and_first() -> None:
    assert with_stubs("/a:/b") == f"{STUBS}:/a:/b"
    assert with_stubs(f"/a:{STUBS}:/b") == f"{STUBS}:/a:/b"
    assert with_stubs(with_stubs("/a")) == with_stubs("/a")


@pytest.mark.parametrize(
    "command, gpus, of, ranks, said",
    [
        (("python", "x.py"), 4, 4, 1, CORES),
        (("python", "x.py"), 1, 2, 1, max(1, CORES // 2)),
        (("python", "x.py"), 1, 10_000, 1, 1),  # at least one
        (("python", "x.py"), 2, 2, 2, max(1, CORES // 2)),  # ranks that hpcdl starts
        (("python", "x.py"), 5, 4, 1, CORES),  # a GPU was lost meanwhile
        (("torchrun", "--nproc-per-node", "2", "x.py"), 2, 2, 1, max(1, CORES // 2)),
        (("python", "-m", "torch.distributed.run", "x.py"), 2, 2, 1, max(1, CORES // 2)),
        (("sh", "-c", "mpirun -np 2 python x.py"), 2, 2, 1, max(1, CORES // 2)),
        (("env", "A=1", "/bin/bash", "train.sh"), 2, 2, 1, max(1, CORES // 2)),
        (("bash", "plain.sh"), 2, 2, 1, CORES),
        (("bash", "missing.sh"), 2, 2, 1, CORES),
        (("bash", "pipe.sh"), 2, 2, 1, CORES),
    ],
)
def test_threads_by_the_share_of_the_node(
    command: tuple[str, ...], gpus: int, of: int, ranks: int, said: int, tmp_path: Path
) -> None:
    (tmp_path / "train.sh").write_text("#!/bin/bash\nexec torchrun --nproc-per-node 2 x.py\n")
    (tmp_path / "plain.sh").write_text("#!/bin/bash\npython x.py\n")
    os.mkfifo(tmp_path / "pipe.sh")  # opening it would wait for ever
    found = thread_variables(command, str(tmp_path), gpus=gpus, of=of, ranks=ranks)
    assert found == {"OMP_NUM_THREADS": str(said), "HPCDL_OMP_NUM_THREADS": str(said)}
