"""`--time`: a job that has held GPUs for so long is suspended, and has FAILED then."""

from dataclasses import replace

from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause, Purpose
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.notice import NoticeKind
from hpcdl.core.model.world import JobState
from hpcdl.core.rules.time_limits import ran_s
from tests.support.model_cluster import Cluster
from tests.support.model_parts import Conduct

SPEC = JobSpec(("train",), "j", steps=100_000, profile="plain", time_s=100.0)


def running(spec: JobSpec = SPEC) -> Cluster:
    model = Cluster({"n1": 1})
    model.submit(spec)
    model.tick_every(1.0)
    model.run_until(lambda: model.job(1).running is not None and model.job(1).running.progress is not None)
    return model


def kinds(model: Cluster, kind: type[ev.Event]) -> int:
    return sum(isinstance(record.event, kind) for record in model.journal.records)


def purposes(model: Cluster) -> list[Purpose]:
    events = (record.event for record in model.journal.records)
    return [event.purpose for event in events if isinstance(event, ev.SuspendRequested)]


def test_it_saves_and_has_failed_and_its_user_may_go_on() -> None:
    model = running()
    began = model.job(1).running.holds_since
    model.run_until(lambda: model.job(1).finished)
    job = model.job(1)
    assert job.outcome is JobState.FAILED
    assert job.last.cause is Cause.SUSPENDED
    assert job.progress.saved_step is not None
    assert job.last.detail == (
        f"its time is over (--time 1 min 40 s), saved at step {job.progress.saved_step}: hpcdl retry 1 gives it as "
        "much again"
    )
    assert kinds(model, ev.TimeLimitReached) == 1
    assert purposes(model) == [Purpose.TIME]
    assert 100.0 <= job.ran_s <= model.now - began
    model.send(cmd.Retry(1))
    assert (model.job(1).ran_s, model.job(1).out_of_time) == (0.0, False)
    model.run_until(lambda: model.job(1).finished)
    assert kinds(model, ev.TimeLimitReached) == 2
    model.check_replay()


def test_all_attempts_count_together_and_waiting_does_not() -> None:
    model = running()
    model.run(50.0)
    model.send(cmd.Hold(1))
    model.run_until(lambda: model.job(1).running is None)
    before = ran_s(model.job(1), model.now)
    assert before >= 50.0
    model.run(500.0)
    assert ran_s(model.job(1), model.now) == before
    assert not model.job(1).finished
    model.send(cmd.Release(1))
    model.run_until(lambda: model.job(1).running is not None)
    began = model.now
    model.run_until(lambda: model.job(1).finished)
    assert model.now - began < 100.0
    assert model.job(1).outcome is JobState.FAILED
    model.check_replay()


def test_one_that_is_done_in_time_is_done() -> None:
    model = running(replace(SPEC, steps=20))
    model.run_until(lambda: model.job(1).finished)
    assert model.job(1).outcome is JobState.DONE
    assert kinds(model, ev.TimeLimitReached) == 0


def test_one_that_cannot_save_ends_at_the_end_of_its_grace_period() -> None:
    model = running(replace(SPEC, signal="none", grace_s=5.0))
    model.run_until(lambda: model.job(1).finished)
    assert model.job(1).outcome is JobState.FAILED
    assert "its time is over" in model.job(1).last.detail


def test_one_that_does_not_save_within_its_grace_period_was_not_preempted() -> None:
    model = running(replace(SPEC, notify=("mailto:jo@example.org",)))
    model.conduct[1] = Conduct(never_answers=True)
    model.run_until(lambda: model.job(1).finished)
    ended = [each.event for each in model.journal.records if isinstance(each.event, ev.IncarnationEnded)]
    assert [event.cause for event in ended] == [Cause.WALLTIME]
    assert [notice.what for notice in model.world.notices.values()] == [NoticeKind.FAILURE]
