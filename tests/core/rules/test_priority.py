"""`hpcdl priority`: another priority of a job that waits or runs."""

import pytest

from hpcdl.core.fold.fold import fold
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import CommandRefused
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.transitions import IllegalEvent
from hpcdl.core.model.world import JobState, World
from tests.support.model_cluster import Cluster

SPEC = JobSpec(("train",), "j", gpus_max=1, steps=50, profile="plain")


@pytest.fixture
def model() -> Cluster:
    """Three jobs for the one GPU: the first one runs."""
    found = Cluster({"n1": 1})
    found.run(1.0)
    found.submit(SPEC, SPEC, SPEC)
    found.run(1.0)
    assert found.world.jobs[1].live
    return found


def starts(model: Cluster) -> list[int]:
    """The jobs in the order of their first starts."""
    found = {record.event.job: None for record in model.journal.records if isinstance(record.event, ev.StartRequested)}
    return list(found)


def test_the_next_to_start_is_that_of_the_highest_priority(model: Cluster) -> None:
    assert model.send(cmd.SetPriority(3, 5)) == [None]
    assert model.world.jobs[3].spec.priority == 5
    model.run_to_end()
    assert starts(model) == [1, 3, 2]


def test_without_it_they_start_in_their_order(model: Cluster) -> None:
    model.send(cmd.SetPriority(3, 5))
    model.send(cmd.SetPriority(3, 0))
    model.run_to_end()
    assert starts(model) == [1, 2, 3]


def test_a_replay_of_any_prefix_and_the_rest_is_the_same_world(model: Cluster) -> None:
    model.send(cmd.SetPriority(3, 5), cmd.SetPriority(1, -7))
    model.restart_daemon()
    model.send(cmd.SetPriority(3, 6))
    assert [job.spec.priority for job in model.world.jobs.values()] == [-7, 0, 6]
    model.run_to_end()
    records = list(model.journal.records)
    changes = [at for at, record in enumerate(records) if isinstance(record.event, ev.PriorityChanged)]
    assert len(changes) == 3
    for at in changes:
        for cut in (at, at + 1):
            assert fold(fold(World(), records[:cut]), records[cut:]) == model.world


def test_what_is_refused_is_no_event(model: Cluster) -> None:
    model.send(cmd.Cancel(2))
    assert model.world.jobs[2].outcome is JobState.CANCELLED
    seq = model.world.seq
    answers = model.send(
        cmd.SetPriority(9, 1), cmd.SetPriority(2, 1), cmd.SetPriority(3, 1001), cmd.SetPriority(3, None),
        cmd.SetPriority(3, 0),
    )  # fmt: skip
    assert [answer.code for answer in answers if isinstance(answer, CommandRefused)] == [
        "unknown-job", "finished", "priority", "priority",
    ]  # fmt: skip
    assert answers[-1] is None, "it has that one already"
    assert model.world.seq == seq


@pytest.mark.parametrize("job", [2, 9])
def test_of_a_job_that_is_over_or_not_there_it_is_illegal(model: Cluster, job: int) -> None:
    model.send(cmd.Cancel(2))
    with pytest.raises(IllegalEvent):
        fold(model.world, [ev.Recorded(model.world.seq + 1, 2.0, 1, ev.PriorityChanged(job, 5))])
