"""`hpcdl drill` with a real daemon: a job that survives it, one that does not, and a drill that is broken off."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.system.cluster import PATIENCE_S, Cluster

FORGETFUL = """
import time
import hpcdl.trainer as hpcdl
hpcdl.attach()
hpcdl.ready(0)
for step in range(1, 100000):
    time.sleep(0.01)
    hpcdl.progress(step, 100000)
    if hpcdl.should_suspend() or step % 20 == 0:
        with hpcdl.checkpoint(step) as folder:
            (folder / "state").write_text(str(step))
    if hpcdl.should_suspend():
        hpcdl.exit_suspended()
"""


def test_a_job_that_survives(kept_cluster: Cluster) -> None:
    cluster = kept_cluster
    job = cluster.submit("--save-every", 50, "--save-s", 0.4, "--step-s", 0.01, steps=100_000)
    cluster.until_step(job, 1)
    found = cluster.cli("drill", str(job), "--json", "--between", "--every", "50", "--grace", "0.5")["drill"]
    assert found["passed"], found
    assert (found["job"], found["detail"], found["interval_steps"], found["site_grace_s"]) == (job, "", 50, 0.5)
    suspended, *killed = found["rounds"]
    assert suspended["what"] == "suspend"
    assert suspended["resumed_step"] == suspended["durable_step"] == suspended["reached_step"]
    assert min(suspended[name] for name in ("save_s", "exit_s", "free_s", "resume_s", "first_step_s")) >= 0
    assert suspended["suspend_s"] >= 0.4
    in_a_save = next(each for each in killed if each["in_a_save"])
    assert in_a_save["durable_step"] <= in_a_save["resumed_step"] < in_a_save["reached_step"]
    assert 0 < in_a_save["lost_steps"] <= 50
    assert killed[-1]["what"] == "kill between saves"
    assert found["lost_steps"] == max(each["lost_steps"] for each in killed)
    assert found["grace_needed_s"] >= 1.3

    row = cluster.job(job)
    assert (row["failures"], row["retries_used"], row["held"]) == (0, 0, False)
    assert row["drill"]["passed"]
    assert row["drill"]["grace_needed_s"] == found["grace_needed_s"]
    assert "passed, needs a grace period of" in cluster.cli("show", str(job))
    causes = [event["body"]["cause"] for event in cluster.events(job) if event["kind"] == "IncarnationEnded"]
    assert set(causes[: len(found["rounds"])]) == {"suspended", "preempted"}
    cluster.until_step(job, killed[-1]["resumed_step"] + 60)
    cluster.cli("cancel", str(job))
    cluster.until_state(job, "CANCELLED")
    cluster.check_checkpoints(job)


def test_a_job_that_starts_over(kept_cluster: Cluster, tmp_path: Path) -> None:
    cluster = kept_cluster
    script = tmp_path / "forgetful.py"
    script.write_text(FORGETFUL)
    answer = cluster.cli("submit", "--json", "--gpus", "1", "--", sys.executable, str(script))
    job = int(answer["jobs"][0]["id"])
    cluster.until_step(job, 25)
    found = cluster.cli("drill", str(job), "--json", code=1)["drill"]
    assert not found["passed"]
    assert found["detail"].startswith("it would have gone on at step 0, though step ")
    assert [each["what"] for each in found["rounds"]] == ["suspend"]
    assert cluster.job(job)["drill"]["detail"] == found["detail"]


def test_a_drill_that_is_broken_off_leaves_a_job_that_goes_on(kept_cluster: Cluster) -> None:
    cluster = kept_cluster
    job = cluster.submit("--save-s", 1.0, "--save-every", 100_000, steps=100_000)
    cluster.until_step(job, 1)
    argv = [sys.executable, "-m", "hpcdl", "drill", str(job), "--rounds", "20"]
    drill = subprocess.Popen(argv, env=cluster.environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    cluster.until(lambda: "PreemptRequested" in cluster.kinds(job))
    drill.send_signal(signal.SIGINT)
    _, told = drill.communicate(timeout=PATIENCE_S)
    assert drill.returncode == 130
    assert told.decode().strip() == f"hpcdl: the preemption test was broken off: job {job} goes on by itself"
    begun = cluster.kinds(job).count("PreemptRequested")
    cluster.until(lambda: cluster.kinds(job).count("TrainerReady") == begun + 1)
    cluster.until_state(job, "RUNNING")
    row = cluster.job(job)
    assert (row["held"], row["failures"], cluster.kinds(job).count("PreemptRequested")) == (False, 0, begun)
    assert "killed by a preemption test" not in str(cluster.events(job))


def test_jobs_that_cannot_be_drilled(kept_cluster: Cluster) -> None:
    cluster = kept_cluster
    plain = cluster.cli("submit", "--json", "--gpus", "1", "--signal", "none", "--", "sleep", "600")["jobs"][0]["id"]
    waits = cluster.submit("--step-s", 0.01, gpus="4")
    cluster.until_state(plain, "RUNNING")

    def refused(job: int) -> str:
        argv = [sys.executable, "-m", "hpcdl", "drill", str(job)]
        done = subprocess.run(argv, capture_output=True, text=True, env=cluster.environment, timeout=PATIENCE_S)
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr

    assert "--signal none: nobody can ask it to checkpoint" in refused(plain)
    assert refused(waits) == f"hpcdl: job {waits} is QUEUED, not training: test it once it runs (hpcdl why {waits})\n"
    assert "there is no job 999: hpcdl ls" in refused(999)
    cluster.cli("cancel", str(waits))
    cluster.until_state(waits, "CANCELLED")
    assert f"job {waits} is CANCELLED: submit it again" in refused(waits)
