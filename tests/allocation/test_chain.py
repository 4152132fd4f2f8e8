"""The next allocation of a chain: submitted once, however often its batch job runs, and wherever it was killed."""

import json
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import pytest

from hpcdl.allocation.chain import ASK_S, KEPT, ChainRecord, NextAllocation
from hpcdl.batch.adapter import Allocation, Completed
from hpcdl.batch.system import BatchError
from hpcdl.core.model.pilot import BatchJob, BatchState
from hpcdl.lsf.jobs import dependents_of
from tests.allocation.batchjob import Here
from tests.allocation.test_parts import SHOWN, Clock

THIS = Allocation("slurm", "41", ("n1",), 4)
HEADER = "JOBID|DEPENDENCY|NAME|JOBID|\n"
GONE, LIVES = BatchState.GONE, BatchState.PENDING


class Killed(BaseException):
    """SIGKILL."""


class World(Here):
    """A Slurm that takes what is submitted. `listed`: id to state, the same by both commands where `second` is not
    said."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "asked")
        self.home = folder
        self.clock = Clock()
        self.said: list[str] = []
        self.submitted: list[str] = []
        self.listed: dict[str, BatchState] = {"41": BatchState.RUNNING}
        self.second: dict[str, BatchState] = {}
        self.sbatch: Callable[[str], Completed] = lambda batch_id: Completed(f"{batch_id}\n", "", 0)
        self.squeue: Callable[[], Completed] = self._squeue

    def _squeue(self) -> Completed:
        waits = "".join(f"{each}|afterany:41(unfulfilled)|hpcdl|{each}|\n" for each in self.submitted)
        return Completed(f"{HEADER}41||hpcdl|41|\n77|afterany:41(unfulfilled)|mine|77|\n{waits}", "", 0)

    def command(
        self,
        argv: Sequence[str],
        timeout_s: float = 30.0,
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        if "sbatch" in argv:
            self.submitted.append(str(100 + len(self.submitted)))
            self.listed[self.submitted[-1]] = LIVES
            return self.sbatch(self.submitted[-1])
        return self.squeue() if "squeue" in argv else Completed(SHOWN.replace("JobId=41", f"JobId={argv[-1]}"), "", 0)

    def poll(self, ids: Collection[str]) -> dict[str, BatchJob]:
        return {each: BatchJob(each, self.listed.get(each, BatchState.MISSING)) for each in ids}

    def confirm(self, ids: Collection[str]) -> dict[str, BatchJob]:
        return {each: BatchJob(each, self.second.get(each, self.listed.get(each, GONE))) for each in ids}

    def run(self, looks: int = 1, allocation: Allocation = THIS, **environ: str) -> NextAllocation:
        """A run of the batch job that looks so often."""
        following = NextAllocation(
            self.home,
            self,
            allocation,
            3,
            lambda: "#!/bin/sh\n",
            self.command,
            environ,
            self.said.append,
            monotonic=self.clock,
        )
        for _ in range(looks):
            following.look()
            self.clock.at += ASK_S
        return following


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_second_run_finds_what_the_first_has_submitted(world: World) -> None:
    assert world.run().id == "100"
    assert stat.S_IMODE((world.home / "chain.json").stat().st_mode) == 0o600
    assert world.run(5).id == world.run(5, SLURM_RESTART_COUNT="1").id == "100"
    assert world.submitted == ["100"]
    assert world.said[:2] == [
        "batch job 100 is to go on after this one (2 more may follow)",
        "batch job 100 is to go on after this one already (2 more may follow)",
    ]


def test_what_followed_the_next_one_counts_too(world: World) -> None:
    world.run()
    world.run(allocation=Allocation("slurm", "100", ("n1",), 4))
    world.listed["100"] = BatchState.ENDED
    assert world.run(5).id == "101"
    assert world.submitted == ["100", "101"]


def test_where_the_next_one_is_over_another_follows(world: World) -> None:
    world.run()
    world.listed["100"] = BatchState.ENDED
    assert world.run(1).id == ""  # one look is not enough
    assert world.run(2).id == "101"


@pytest.mark.parametrize("second", [BatchState.PENDING, BatchState.UNKNOWN, BatchState.MISSING])
def test_silence_and_lies_conclude_nothing(world: World, second: BatchState) -> None:
    world.run()
    del world.listed["100"]
    world.second["100"] = second
    assert world.run(10).id == ""
    assert world.submitted == ["100"]
    assert len([line for line in world.said if "100 is still there is not known, so none is submitted" in line]) == 1
    world.listed["100"] = LIVES
    world.second.clear()
    assert world.run(1).id == "100"


@pytest.mark.parametrize("taken", [True, False])
def test_killed_between_the_submission_and_the_record(world: World, taken: bool) -> None:
    def killed(batch_id: str) -> Completed:
        if not taken:
            world.submitted.clear()
        raise Killed

    world.sbatch = killed
    with pytest.raises(Killed):
        world.run()
    world.sbatch = lambda batch_id: Completed(f"{batch_id}\n", "", 0)
    assert world.run(1).id == ("100" if taken else "")
    assert world.run(5).id == "100"
    assert world.submitted == ["100"]


@pytest.mark.parametrize(
    "answer", [Completed("", "", 0), Completed(HEADER, "", 0), Completed("", "slurm_load_jobs error: Unable", 1)]
)
def test_a_listing_without_this_batch_job_is_none(world: World, answer: Completed) -> None:
    world.squeue = lambda: answer
    assert world.run(10, SLURM_RESTART_COUNT="1").id == ""
    assert world.submitted == []
    assert len(world.said) == 1


def test_killed_there_and_the_next_one_has_begun_meanwhile(world: World) -> None:
    """Then it says itself whose next one it is."""
    ChainRecord(world.home).write("slurm:41:", "")
    world.run(allocation=Allocation("slurm", "60", ("n1",), 4), HPCDL_CHAIN_AFTER="slurm:41:")
    assert ChainRecord(world.home).after("slurm:41:") == ["60", "100"]


def test_a_reply_that_was_lost_is_looked_for(world: World) -> None:
    def lost(batch_id: str) -> Completed:
        raise BatchError("sbatch has not answered within 30 s", away=True)

    world.sbatch = lost
    assert world.run(2).id == "100"
    assert world.submitted == ["100"]


def test_a_refusal_is_said_once_and_another_run_asks_again(world: World) -> None:
    world.sbatch = lambda batch_id: Completed("", "sbatch: error: QOSMaxSubmitJobPerUserLimit\n", 1)
    assert world.run(5).id == ""
    assert len(world.said) == 1
    assert len(world.submitted) == 1
    world.sbatch = lambda batch_id: Completed(f"{batch_id}\n", "", 0)
    assert world.run(1).id == "101"


@pytest.mark.parametrize("content", ["", "[]", "{", '{"slurm:41:": 7}', "[" * 50_000])
def test_a_record_that_is_damaged_is_none(world: World, content: str) -> None:
    path = world.home / "chain.json"
    path.write_text(content)
    path.chmod(0o600)
    assert world.run(1).id == "100"
    assert json.loads(path.read_text()) == {"slurm:41:": "100"}


def test_a_record_that_cannot_be_written_submits_nothing(world: World) -> None:
    (world.home / "chain.json").mkdir()
    assert world.run(5).id == ""
    assert world.submitted == []
    assert len(world.said) == 1
    assert "cannot be remembered" in world.said[0]


def test_the_record_forgets_the_oldest(tmp_path: Path) -> None:
    record = ChainRecord(tmp_path)
    for number in range(KEPT + 5):
        record.write(f"slurm:{number}:", str(number + 1))
    assert list(record.read()) == [f"slurm:{number}:" for number in range(5, KEPT + 5)]
    record.write("slurm:9:", "5")  # a circle, which no batch system makes
    assert record.after("slurm:5:") == ["6", "7", "8", "9", "5"]


BJOBS = """
Job <205>, Job Name <hpcdl>, User <jo>, Project <default>, Status <RUN>, Queue <normal>, Command <#!/bin/bash>
Sun Nov 22 06:20:01: Submitted from host <login1>, CWD <$HOME>, Output File <hpcdl-
                     %J.out>;
------------------------------------------------------------------------------

Job <206>, Job Name <hpcdl>, User <jo>, Project <default>, Status <PEND>, Queue <normal>, Command <#!/bin/bash>
Sun Nov 22 06:20:03: Submitted from host <h1>, CWD <$HOME>, Depend
                     ency Condition <ended(205)>;
------------------------------------------------------------------------------

Job <207>, Job Name <post>, User <jo>, Project <default>, Status <PEND>, Queue <normal>, Command <#!/bin/bash>
Sun Nov 22 06:20:03: Submitted from host <h1>, CWD <$HOME>, Dependency Condition <ended(205)>;
"""


def test_what_lsf_lists_as_waiting() -> None:
    assert dependents_of("205", BJOBS) == ("206",)
    with pytest.raises(BatchError, match="does not list job 204"):
        dependents_of("204", BJOBS)
