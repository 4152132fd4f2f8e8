"""`hpcdl retry --from-start`: a job that begins anew, and those that use its checkpoint folder after it."""

import pytest

from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import CommandRefused, Retried
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.world import beginning_of, folder_within
from hpcdl.daemon.api.rows import RowBuilder
from tests.support.model_cluster import Cluster

SPEC = JobSpec(("train",), "resnet", steps=4000, profile="plain", checkpoint_dir="/data/resnet")


def cancelled(*specs: JobSpec) -> Cluster:
    """Jobs of which the first has a checkpoint, and was cancelled."""
    model = Cluster({"n1": 2})
    model.tick_every(10.0)
    model.run(1.0)
    model.submit(*specs)
    model.run(100.0)
    model.send(cmd.Hold(1))
    model.run_until(lambda: model.job(1).progress.saved_step is not None and not model.job(1).live)
    model.send(cmd.Cancel(1))
    model.run(60.0)
    return model


def test_its_checkpoints_do_not_count_and_its_next_ones_are_elsewhere() -> None:
    model = cancelled(SPEC)
    saved = model.job(1).progress.saved_step
    model.send(cmd.Retry(1))
    assert (model.job(1).progress.step, model.job(1).beginning) == (saved, 0), "without it, it resumes"
    model.send(cmd.Cancel(1))
    model.run(60.0)
    for time in (1, 2):
        assert model.send(cmd.Retry(1, from_start=True)) == [Retried((1,), ())]
        job = model.job(1)
        assert (job.progress.step, job.progress.saved_step, job.beginning, job.progress.accuracy) == (
            None,
            None,
            time,
            (),
        )
        model.send(cmd.Cancel(1))
        model.run(60.0)
    retried = [each.event.beginning for each in model.journal.records if isinstance(each.event, ev.JobRetried)]
    assert retried == [0, 1, 2]
    detail = RowBuilder(model.world, model.profiles, {}, model.now).detail(model.job(1))
    assert folder_within(SPEC.checkpoint_dir or "", detail["beginning"]) == "/data/resnet/from-start-2"
    model.check_replay()


def test_who_uses_the_folder_next_goes_on_from_the_new_beginning() -> None:
    other = JobSpec(("train",), "other", steps=10, profile="plain")
    model = cancelled(SPEC, other)
    model.send(cmd.Retry(1, from_start=True))
    (after,) = model.submit(
        JobSpec(("train",), "next", steps=10, after=(1,), checkpoint_dir="/data/resnet", continue_from="1")
    )
    assert [beginning_of(model.world, model.job(each)) for each in (1, after, 2)] == [1, 1, 0]
    model.send(cmd.Cancel(1))
    model.run(60.0)
    model.send(cmd.Retry(1))
    model.send(cmd.Cancel(1))
    model.run(60.0)
    model.send(cmd.Retry(after, from_start=True), cmd.Retry(1, with_dependents=True), cmd.Cancel(after))
    model.run(60.0)
    model.send(cmd.Retry(after, from_start=True))
    assert beginning_of(model.world, model.job(1)) == 2
    assert folder_within("/data/resnet", 0) == "/data/resnet"


@pytest.mark.parametrize("outcome", ["QUEUED", "DONE"])
def test_only_what_has_failed_or_was_cancelled_begins_anew(outcome: str) -> None:
    model = Cluster({"n1": 2})
    model.run(1.0)
    model.submit(JobSpec(("train",), "short", steps=1, profile="plain"))
    if outcome == "DONE":
        model.run_to_end()
    (answer,) = model.send(cmd.Retry(1, from_start=True))
    assert isinstance(answer, CommandRefused)
    assert ("hpcdl cancel 1" if outcome == "QUEUED" else "submit it again") in str(answer)
