"""What is handed to sbatch, scancel and srun, and what they answer."""

import subprocess
from pathlib import Path

import pytest

from hpcdl.batch.adapter import Allocation, PilotScript
from hpcdl.batch.system import BatchError
from hpcdl.core.model.pilot import PilotSpec
from hpcdl.slurm.submit import launch_argv, refusal, signal_argv, submit_argv, submit_script, submitted

RECORDINGS = Path(__file__).parents[1] / "recordings" / "slurm"
SCRIPT = PilotScript(("hpcdl", "pilot"), "hpcdl:a:p3", "hpcdl-p3", "/scratch/p3.out", ("--account=acc",), 60.0)


def test_a_pilot_in_full() -> None:
    argv = submit_argv(PilotSpec(2, 659.0, "scavenge", 4, ("n3", "n4")), SCRIPT)
    assert argv[0] == "sbatch"
    assert set(argv) >= {
        "--parsable",
        "--comment=hpcdl:a:p3",
        "--job-name=hpcdl-p3",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--exclusive",
        "--mem=0",
        "--time=10",
        "--output=/scratch/p3.out",
        "--open-mode=append",
        "--no-requeue",
        "--no-kill",
        "--signal=TERM@60",
        "--partition=scavenge",
        "--gres=gpu:4",
        "--nodelist=n3,n4",
    }
    assert argv[-1] == "--account=acc"


def test_what_is_not_asked_for_is_left_to_slurm() -> None:
    argv = submit_argv(PilotSpec(1, 120.0), SCRIPT)
    assert not [each for each in argv if each.startswith(("--partition", "--gres", "--nodelist"))]
    assert not [each for each in submit_argv(PilotSpec(1, 600.0, gpus=0), SCRIPT) if each.startswith("--gres")]


def test_a_signal_that_would_come_at_the_start_is_not_asked_for() -> None:
    assert "--signal=TERM@60" not in submit_argv(PilotSpec(1, 120.0), SCRIPT)
    assert "--signal=TERM@60" in submit_argv(PilotSpec(1, 180.0), SCRIPT)


def test_below_a_minute_is_refused_before_slurm_rounds_it_up() -> None:
    with pytest.raises(BatchError, match="59 s is below one"):
        submit_argv(PilotSpec(1, 59.0), SCRIPT)


def test_variables_of_the_batch_job_we_are_in_are_kept_back() -> None:
    argv = submit_argv(PilotSpec(1, 120.0), SCRIPT, ["SLURM_STEP_ID", "SLURM_JOB_ID"])
    assert argv[:6] == ["env", "-u", "SLURM_JOB_ID", "-u", "SLURM_STEP_ID", "sbatch"]


def test_the_script_hands_every_argument_over_as_it_is() -> None:
    words = ("printf", "%s\\n", "a b", "$HOME `id` ; rm", "it's", "")
    script = PilotScript(words, "m", "n", "o")
    text = submit_script(script)
    assert text.startswith("#!/bin/sh\nexec ")
    done = subprocess.run(["/bin/sh"], input=text, capture_output=True, text=True, timeout=120)
    assert done.stdout == "a b\n$HOME `id` ; rm\nit's\n\n"


@pytest.mark.parametrize(
    ("out", "batch_id"),
    [
        ("18\n", "18"),
        ("18;cluster-1\n", "18"),
        ("Submitted batch job 18\n", "18"),
        ("Submitted batch job 18 on cluster two\n", "18"),
        ("2026\n*** 42 jobs are waiting ***\n18\n", "18"),
    ],
)
def test_the_id_among_whatever_a_site_prints(out: str, batch_id: str) -> None:
    assert submitted(out) == batch_id


def test_a_recorded_banner() -> None:
    assert submitted((RECORDINGS / "submit-banner.txt").read_text()) == "18"


@pytest.mark.parametrize("out", ["", "welcome\nto 3 nodes\n"])
def test_no_id_at_all(out: str) -> None:
    with pytest.raises(BatchError, match="printed no job id") as raised:
        submitted(out)
    assert raised.value.again
    assert not raised.value.away


@pytest.mark.parametrize(
    ("said", "again"),
    [
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", True),
        ("QOSMaxSubmitJobPerUserLimit", True),
        ("AssocMaxSubmitJobLimit", True),
        ("Slurm temporarily unable to accept job, sleeping and retrying", True),
        ("Resource temporarily unavailable", True),
        ("Requested time limit is invalid (missing or exceeds some limit)", False),
        ("Requested node configuration is not available", False),
        ("Invalid account or account/partition combination specified", False),
        ("Node count specification invalid", False),
        ("QOSMaxWallDurationPerJobLimit", False),
    ],
)
def test_refusals_that_pass_and_those_that_do_not(said: str, again: bool) -> None:
    error = refusal(f"sbatch: error: Batch job submission failed: {said}\n")
    assert str(error) == f"sbatch: Batch job submission failed: {said}"
    assert (error.again, error.away) == (again, False)


def test_the_limit_that_was_reached_is_named() -> None:
    error = refusal(
        "sbatch: error: QOSMaxSubmitJobPerUserLimit\n"
        "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size"
        " and/or time limits)\n"
    )
    assert "QOSMaxSubmitJobPerUserLimit" in str(error)
    assert error.again


def test_recorded_refusals() -> None:
    assert str(refusal((RECORDINGS / "22.05-error-partition.txt").read_text())).endswith(
        "Invalid partition name specified"
    )
    assert refusal((RECORDINGS / "22.05-error-sbatch-away.txt").read_text()).away
    assert "unrecognized option '--bogus'" in str(refusal((RECORDINGS / "22.05-error-option.txt").read_text()))


def test_a_step_has_the_whole_node() -> None:
    allocation = Allocation("slurm", "40", ("n1", "n2"), 4)
    argv = launch_argv(allocation, "n2", ["agent", "--x"])
    assert argv[0] == "env"
    assert "srun" in argv
    assert argv[argv.index("SLURM_GPUS") - 1] == "-u"  # sbatch --gpus=8 would ask for eight on this node
    assert argv[-3:] == ["--", "agent", "--x"]
    assert set(argv) >= {"--jobid=40", "--overlap", "--nodelist=n2", "--mem=0", "--gres=gpu:4", "--kill-on-bad-exit=0"}
    without = launch_argv(Allocation("slurm", "40", ("n1",), 0), "n1", ["agent"])
    assert not [each for each in without if each.startswith("--gres")]


def test_signals_go_to_the_steps() -> None:
    assert signal_argv("40", "USR1") == ["scancel", "--signal=USR1", "40"]
