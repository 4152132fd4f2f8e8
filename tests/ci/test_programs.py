"""What `.ci` says of the programs and rights that tests need."""

import os
import subprocess
from pathlib import Path

import pytest

CI = Path(__file__).resolve().parents[2] / ".ci"


def run(script: str, folder: Path, programs: dict[str, str], **more: str) -> tuple[int, str, str]:
    """Exit code and outputs, where these shell scripts take the place of programs."""
    for name, body in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    env = {name: value for name, value in os.environ.items() if not name.startswith("HPCDL_REQUIRE_")}
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run([CI / script], env=env | {"PATH": path} | more, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_the_version_of_slurm_is_said(tmp_path: Path) -> None:
    programs = dict.fromkeys(("munged", "slurmd", "sbatch", "srun", "squeue", "sinfo", "scontrol", "scancel"), "exit 1")
    programs["slurmctld"] = '[ "$*" = -V ] && echo slurm-wlm 24.11.5'
    assert run("slurm", tmp_path, programs) == (0, "hpcdl: the tests on a real Slurm run on Slurm 24.11.5\n", "")


@pytest.mark.parametrize(
    ("programs", "why"),
    [({"id": "echo 1000"}, "they need root"), ({"id": "echo 0", "unshare": "exit 1"}, "fails here")],
)
def test_bare_machines_need_rights(tmp_path: Path, programs: dict[str, str], why: str) -> None:
    code, out, err = run("bare", tmp_path, programs)
    assert (code, out.count("\n"), err) == (0, 1, "")
    assert out.startswith("hpcdl: the tests on bare machines will be skipped: ")
    assert why in out
    code, out, err = run("bare", tmp_path, programs, HPCDL_REQUIRE_BARE="1")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert why in err
