"""`hpcdl doctor`, `holes` and `pilots` beside a real Slurm."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from hpcdl.batch.site import read_site
from tests.slurm.cluster import SlurmCluster


def hpcdl(slurm: SlurmCluster, home: Path, *words: str, code: int = 0, **env: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "hpcdl", "--home", str(home), *words, "--json"],
        env={**slurm.env, **env},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_doctor_tells_this_slurm_and_writes_its_site(slurm: SlurmCluster, tmp_path: Path) -> None:
    home = tmp_path / "home"
    told = hpcdl(slurm, home, "doctor")
    batch = told["batch"]
    assert batch["kind"] == "slurm"
    assert batch["answers"]
    assert batch["queues"] == ["normal", "scavenge", "cancelp", "nograce"]
    assert batch["preemption"].startswith("REQUEUE")
    assert "GraceTime 600 s" in next(check["detail"] for check in told["checks"] if check["name"] == "queues")
    site = read_site(Path(hpcdl(slurm, home, "doctor", "--site")["site"]["file"]))
    assert (site.kind, site.site.queues, site.site.pilots_without_preemption) == ("slurm", (), False)
    assert batch["not_preempted"] == {
        **dict.fromkeys(("scavenge", "cancelp", "nograce"), ""),
        "normal": "its PreemptMode is OFF",
    }
    path = tmp_path / "site.yaml"
    for queues, said in (("[normal]", "queue normal is not preemptable (its PreemptMode is OFF)"), ("[]", "no queues")):
        path.write_text(f"queues: {queues}\n")
        pilots = hpcdl(slurm, home, "doctor", HPCDL_SITE=str(path), HPCDL_PILOTS="2")
        (check,) = [check for check in pilots["checks"] if check["name"] == "pilots"]
        assert check["state"] == "WARN"
        assert said in check["detail"]
    half = hpcdl(slurm, home, "doctor", code=1, SLURM_JOB_ID="5")
    assert next(check["state"] for check in half["checks"] if check["name"] == "allocation") == "FAIL"


def test_doctor_in_a_batch_job_tells_its_allocation(slurm: SlurmCluster, tmp_path: Path) -> None:
    argv = f"{sys.executable} -m hpcdl --home {tmp_path / 'home'} doctor --json"
    job = slurm.submit(f"exec {argv}", "--nodes=2", "--gres=gpu:4", "--time=10", "--exclusive")
    slurm.until_state(job, "COMPLETED")
    allocation = json.loads(slurm.output(job))["batch"]["allocation"]
    assert allocation["id"] == job
    assert len(allocation["nodes"]) == 2
    assert allocation["gpus"] == 4
    assert allocation["until"] is not None


def test_holes_without_a_daemon(slurm: SlurmCluster, tmp_path: Path) -> None:
    told = hpcdl(slurm, tmp_path / "home", "holes")
    assert {hole["queue"] for hole in told["holes"]} == {"normal", "scavenge", "cancelp", "nograce"}
    assert all(hole["nodes"] == ["n1", "n2", "n3", "n4"] and hole["gpus"] == 4 for hole in told["holes"])
    assert told["batch"]["kind"] == "slurm"
