"""Lightning with what is shipped: the final weights are those of a run that nothing happened to."""

import shlex
from pathlib import Path

import pytest

from tests.frameworks.trained import ENDED, HERE, OLDER, PATIENCE_S, PYTHON, ROOT, Trained, check_stops

SCRIPT, TUNED = str(HERE / "lightning_fit.py"), str(HERE / "lightning_tuned.py")
HOLDS, EXACT = pytest.mark.holds, "suspend, resume bit-exact"


@pytest.mark.parametrize(
    "stops,saved,env",
    [
        ((3, 12, 16), (3, 12, 17), {}),  # 8 batches an epoch, at whose last one nothing is saved
        ((5, 18), (5, 18), {"LIGHTNING_RANKS": "2"}),
        pytest.param((5,), (5,), {"LIGHTNING_STREAM": "1"}, marks=pytest.mark.smoke),
    ],
    ids=["plain", "ranks", "stream"],
)
@HOLDS("Lightning", EXACT)
def test_bit_for_bit(trained: Trained, stops: tuple[int, ...], saved: tuple[int, ...], env: dict[str, str]) -> None:
    whole, _ = trained.run([SCRIPT], (), **env)
    parts, began = trained.run([SCRIPT], stops, **env)
    check_stops(began, saved, int(env.get("LIGHTNING_RANKS", "1")))
    assert parts == whole
    assert whole.startswith("24 ")
    if "LIGHTNING_RANKS" in env:  # whoever loses a rank that is killed is not to blame: no retry is spent
        killed, began = trained.run([SCRIPT], (), "--retries", "0", LIGHTNING_KILLED="7", **env)
        assert (killed, began) == (whole, [0, 5])


@pytest.mark.parametrize("tuned", ["tuner", "finder", "batch", "again"])
@HOLDS("Lightning", "Tuner, LearningRateFinder, BatchSizeFinder")
def test_what_is_tuned_first_is_tuned_once(trained: Trained, tuned: str) -> None:
    """By a Tuner or by callbacks: its own fits are none of the job's steps, and the fit goes on from where it was."""
    whole, _ = trained.run([TUNED], (), LIGHTNING_TUNED=tuned)
    parts, began = trained.run([TUNED], (3, 9), LIGHTNING_TUNED=tuned)
    check_stops(began, (3, 9))
    assert parts == whole


@pytest.mark.parametrize("ranks", ["1", "2"])
@HOLDS("Lightning", "a data loader's worker is killed")
def test_a_worker_that_is_killed_costs_no_retry(trained: Trained, ranks: str) -> None:
    """In each of the words that PyTorch has for it, by when it looks; another rank fails for want of this one."""
    whole, _ = trained.run([SCRIPT], (), LIGHTNING_WORKERS="some", LIGHTNING_RANKS=ranks)
    env = {"LIGHTNING_WORKERS": "killed", "LIGHTNING_RANKS": ranks}
    killed, began = trained.run([SCRIPT], (), "--retries", "0", **env)
    assert killed == whole
    assert len(began) == 2


@HOLDS("Lightning", "manual optimization")
def test_optimizers_that_the_script_steps_itself(trained: Trained) -> None:
    """Each counts: as many steps as there are batches are half of them, and a suspend after those ends nothing."""
    whole, _ = trained.run([SCRIPT], (), LIGHTNING_MANUAL="1")
    parts, began = trained.run([SCRIPT], (10, 30), LIGHTNING_MANUAL="1")
    check_stops(began, (10, 30))
    assert parts == whole
    assert whole.startswith("48 ")


@HOLDS("Lightning", "an older version")
def test_an_older_version_validates_once_at_a_step(trained: Trained) -> None:
    """It would do so again where it goes on, 18 steps being 4 batches into an epoch: EarlyStopping would come early."""
    env = {"PYTHONPATH": f"{OLDER / 'lightning-2.4.0'}:{ROOT}", "LIGHTNING_RANKS": "2"}
    whole, _ = trained.run([SCRIPT], (), **env)
    parts, began = trained.run([SCRIPT], (18,), **env)
    check_stops(began, (18,), ranks=2)
    assert parts == whole
    assert (whole.split()[0], whole.split()[2]) == ("24", "2.4.0")


@HOLDS("Lightning", "its own requeue")
@pytest.mark.parametrize("batch", [False, True], ids=["command", "script"])
def test_its_own_requeue_keeps_its_work(trained: Trained, tmp_path: Path, batch: bool) -> None:
    """Unchanged, as `--signal lightning` and as a batch script that asks for SIGUSR1: it goes on where it saved."""
    command = [PYTHON, str(HERE / "lightning_requeue.py"), str(tmp_path / "out")]
    if batch:
        lines = ["#!/bin/bash", "#SBATCH --gpus-per-node=1 --ntasks-per-node=1 --signal=SIGUSR1@60"]
        script = tmp_path / "job.sbatch"
        script.write_text("\n".join([*lines, f"srun {shlex.join(command)}", ""]))
        words = [str(script)]
    else:
        words = ["--signal", "lightning", "--resumes", str(tmp_path / "hpc_ckpt_*.ckpt"), "--", *command]
    job = int(trained.cluster.cli("submit", "--json", *words)["jobs"][0]["id"])
    trained.suspend(job, tmp_path, 13)
    assert (tmp_path / "hpc_ckpt_1.ckpt").exists(), trained.log(job)
    trained.cluster.cli("resume", str(job))
    trained.cluster.until_state(job, *ENDED, seconds=PATIENCE_S)
    assert trained.cluster.job(job)["state"] == "DONE", trained.log(job)
    assert (tmp_path / "began").read_text().split() == ["0", "13"]
    assert (tmp_path / "out").read_text() == "24"
