"""The step that has a batch job requeued where its first node is lost."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.allocation import standby as standby_module
from hpcdl.allocation.standby import LOOK_S, Standby
from hpcdl.batch.adapter import Allocation, Completed
from hpcdl.batch.system import BatchError
from hpcdl.lsf.system import SYSTEM as LSF
from hpcdl.slurm.jobs import has_lost_first
from hpcdl.slurm.system import SYSTEM as SLURM
from tests.allocation.test_parts import TWO, Clock, Scripted
from tests.support.waiting import until

KEPT = "JobId=7 JobName=hpcdl Requeue=1 Restarts=0 JobState=RUNNING Reason=None NodeList=n[2-4] BatchHost=n1 NumNodes=3"


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        (("", ""), True),
        (("RUNNING", "FAILED"), True),
        (("RUNNING", "COMPLETING"), True),
        (("RUNNING", "CANCELLED"), False),
        (("RUNNING", "TIMEOUT"), False),
        (("RUNNING", "COMPLETED"), False),
        (("RUNNING", "PENDING"), False),
        (("n[2-4]", "n[1-4]"), False),
        (("n[2-4]", "(null)"), False),
        (("BatchHost=n1", "BatchHost=(null)"), False),
        (("Requeue=1", "Requeue=0"), None),
    ],
)
def test_what_slurm_shows_of_a_batch_job_that_lost_its_first_node(change: tuple[str, str], lost: bool | None) -> None:
    assert has_lost_first("7", KEPT.replace(*change)) is lost


@pytest.mark.parametrize("text", ["", "slurm_load_jobs error", KEPT.replace("JobId=7", "JobId=8"), "JobId=7 Requeue=1"])
def test_an_answer_that_is_not_understood_concludes_nothing(text: str) -> None:
    with pytest.raises(BatchError):
        has_lost_first("7", text)


def test_it_is_requeued_only_then() -> None:
    ran: list[list[str]] = []
    shown = KEPT

    def run(
        argv: Sequence[str], timeout_s: float = 1.0, *, stdin: str = "", env: Mapping[str, str] | None = None
    ) -> Completed:
        ran.append(list(argv))
        return Completed(shown if "show" in argv else "", "", 0)

    assert SLURM.requeue_without_first(run, "7") is True
    assert ran[1:] == [["scontrol", "requeue", "7"]]
    ran.clear()
    shown = KEPT.replace("n[2-4]", "n[1-4]")
    assert SLURM.requeue_without_first(run, "7") is False
    assert len(ran) == 1
    assert LSF.requeue_without_first(run, "7") is None


def ended(standby: Standby) -> None:
    until(lambda: standby._process is None or standby._process.poll() is not None, "the end of the step")


def test_the_step_is_on_another_node_and_again_on_the_next_where_it_was_lost(tmp_path: Path) -> None:
    three = replace(TWO, nodes=("n1", "n2", "n3"))
    clock, system = Clock(), Scripted(tmp_path, n2="raise SystemExit(9)", n3="raise SystemExit(0)")
    standby = Standby(system, three, monotonic=clock)
    for _ in range(4):
        standby.look()
        ended(standby)
        standby.look()
        clock.at += LOOK_S
    assert system.launched == ["n2", "n3"]  # which has said that it is of no use


def test_one_that_does_not_hear_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby_module, "END_S", 0.1)
    system = Scripted(tmp_path, n2="import time; time.sleep(300)")
    standby = Standby(system, TWO)
    standby.look()
    assert standby._process is not None
    standby._process.send_signal(signal.SIGSTOP)
    standby.leave()
    standby.end()
    assert standby._process.returncode in (-signal.SIGKILL, -signal.SIGUSR1)  # both wait for it then


@pytest.mark.parametrize("allocation", [replace(TWO, nodes=("n1",)), replace(TWO, kind="lsf")])
def test_where_none_is_of_use_there_is_none(tmp_path: Path, allocation: Allocation) -> None:
    system = Scripted(tmp_path, n2="pass")
    Standby(system, allocation).look()
    assert system.launched == []


def test_it_ends_with_its_allocation(tmp_path: Path) -> None:
    system = Scripted(tmp_path, n2="import time; time.sleep(300)")
    standby = Standby(system, TWO)
    standby.look()
    standby.leave()
    standby.end()
    assert standby._process is not None
    assert standby._process.returncode == -signal.SIGUSR1
    standby.look()
    assert system.launched == ["n2"]
