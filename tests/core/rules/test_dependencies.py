"""What jobs wait for: the end, failure or start of others, batch jobs, and earlier jobs of their name."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcdl.core.controller.view_builder import Views
from hpcdl.core.fold.fold import copied, fold
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.arrays import Array
from hpcdl.core.model.commands import CommandRefused
from hpcdl.core.model.dependency import KINDS, Condition
from hpcdl.core.model.frozen import from_json, to_json
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.pilot import BatchJob, BatchState
from hpcdl.core.model.transitions import state_of
from hpcdl.core.model.world import BatchEnd, JobState, World
from hpcdl.core.rules.batch_poll import awaited_batch_jobs
from hpcdl.core.rules.dependencies import never_why, waiting_why
from hpcdl.core.rules.intake import Settings
from tests.support.model_cluster import Cluster
from tests.support.model_parts import Conduct
from tests.support.seeds import seeds


def spec(**changes: object) -> JobSpec:
    return JobSpec(**({"command": ("x",), "name": "j", "steps": 20} | changes))  # type: ignore[arg-type]


def on(kind: str, *jobs: int) -> tuple[tuple[Condition, ...], ...]:
    """All of them."""
    return tuple((Condition(kind, job),) for job in jobs)


def cluster(gpus: int = 4) -> Cluster:
    return Cluster({"n1": gpus})


def why(model: Cluster, number: int) -> str:
    return waiting_why(model.world, model.job(number))


def test_a_job_starts_once_another_has_failed() -> None:
    model = cluster()
    model.submit(spec(), spec())
    model.conduct[1] = Conduct(fails=[1])
    model.submit(spec(conditions=on("failed", 1)), spec(conditions=on("failed", 2)))
    model.run(1.0)
    assert why(model, 3) == "waiting for job 1 to fail"
    model.run_to_end()
    assert [model.job(each).outcome for each in (1, 2, 3, 4)] == ["FAILED", "DONE", "DONE", "CANCELLED"]
    assert model.job(3).first_start_at >= model.job(1).finished_at
    assert model.job(4).last.detail == "job 2 is DONE, and it waited for job 2 to fail"


def test_a_job_starts_once_another_has_ended_however_that_was() -> None:
    model = cluster()
    model.submit(spec(), spec())
    model.conduct[1] = Conduct(fails=[1])
    (last,) = model.submit(spec(conditions=on("ended", 1, 2)))
    model.run_to_end()
    assert model.job(last).outcome is JobState.DONE
    assert model.job(last).first_start_at >= max(model.job(1).finished_at, model.job(2).finished_at)


def test_a_job_starts_once_another_has_started() -> None:
    model = cluster(gpus=2)
    model.submit(spec(steps=400))
    model.send(cmd.Hold(1))
    (second,) = model.submit(spec(conditions=on("started", 1)))
    model.run(5.0)
    held = model.job(1).first_start_at is None
    assert why(model, second) == ("waiting for job 1 to start" if held else "")
    model.send(cmd.Release(1))
    model.run_until(lambda: model.job(second).first_start_at is not None)
    assert model.job(1).outcome is None
    assert model.job(second).first_start_at >= model.job(1).first_start_at


def test_one_of_several_conditions_suffices() -> None:
    model = cluster()
    model.submit(spec(), spec(steps=200))
    model.conduct[1] = Conduct(fails=[1])
    either = ((Condition("done", 1), Condition("done", 2)),)
    first, never = model.submit(
        spec(conditions=either), spec(conditions=((*on("done", 1)[0], Condition("failed", 2)),))
    )
    model.run(1.0)
    assert why(model, first) == "waiting for job 1 to be DONE or job 2 to be DONE"
    model.run_until(lambda: model.job(1).finished)
    assert why(model, first) == "waiting for job 2 to be DONE"
    model.run_to_end()
    assert model.job(first).outcome is JobState.DONE
    assert model.job(never).last.detail == (
        "job 1 is FAILED, job 2 is DONE, and it waited for job 1 to be DONE or job 2 to fail"
    )


def test_what_a_job_waits_for_is_named_by_ranges() -> None:
    model = cluster(gpus=1)
    model.submit(*(spec(steps=200) for _ in range(5)))
    sweep, some = model.submit(spec(after=(1, 2, 3, 4, 5)), spec(after=(2, 3, 5)))
    model.run(1.0)
    assert why(model, sweep) == "waiting for jobs 1-5 to be DONE"
    assert why(model, some) == "waiting for jobs 2-3, 5 to be DONE"


def test_what_can_never_come_ends_a_job_at_its_submit_and_refuses_its_retry() -> None:
    model = cluster()
    model.submit(spec())
    model.run_to_end()
    (late,) = model.submit(spec(conditions=on("failed", 1)))
    assert model.job(late).outcome is JobState.CANCELLED
    (answer,) = model.send(cmd.Retry(late))
    assert isinstance(answer, CommandRefused)
    assert str(answer).startswith(f"job {late} would never start: job 1 is DONE")


def test_a_job_that_has_begun_waits_for_nobody_again() -> None:
    model = cluster()
    model.submit(spec())
    model.conduct[1] = Conduct(fails=[1])
    (cleanup,) = model.submit(spec(steps=400, conditions=on("failed", 1)))
    model.run_until(lambda: state_of(model.job(cleanup)) is JobState.RUNNING)
    model.send(cmd.Retry(1))
    model.run_until(lambda: model.job(1).finished)
    assert model.job(1).outcome is JobState.DONE
    assert (model.job(cleanup).suspends, model.job(cleanup).outcome) == (0, None)
    model.run_to_end()
    assert model.job(cleanup).outcome is JobState.DONE


def test_dependents_of_any_kind_are_retried_with_what_they_waited_for() -> None:
    model = cluster()
    model.submit(spec())
    model.conduct[1] = Conduct(fails=[1])
    (second,) = model.submit(spec(conditions=on("done", 1)))
    model.run_to_end()
    assert model.job(second).outcome is JobState.CANCELLED
    (answer,) = model.send(cmd.Retry(1, with_dependents=True))
    assert answer == cmd.Retried((1, second), ())
    model.run_to_end()
    assert model.job(second).outcome is JobState.DONE


def test_jobs_of_one_submit_wait_for_each_other_by_place() -> None:
    model = cluster()
    entries = (cmd.Entry(spec()), cmd.Entry(spec(), conditions=(("failed", 0),)), cmd.Entry(spec(), after=(0,)))
    ((_, second, third),) = model.send(cmd.Submit(entries, "r"))
    assert model.job(second).spec.conditions == on("failed", 1)
    assert model.job(third).spec.after == (1,)
    (answer,) = model.send(cmd.Submit((cmd.Entry(spec(), conditions=(("ended", 0),)),), "s"))
    assert isinstance(answer, CommandRefused)


# --- singletons -------------------------------------------------------------------------------------------------------


def test_singletons_of_a_name_run_one_after_the_other() -> None:
    model = cluster()
    model.submit(spec(name="chain"), spec(name="other"))
    model.submit(*[spec(name="chain", singleton=True)] * 3)
    model.conduct[3] = Conduct(fails=[1])
    model.run(1.0)
    view = Views().build(model.world, model.controller.profiles, model.now)
    assert view.by_id[4].blocked == "waiting for job 1 to end: one job named chain at a time"
    model.run_to_end()
    ran = [model.job(number) for number in (1, 3, 4, 5)]
    assert [job.outcome for job in ran] == ["DONE", "FAILED", "DONE", "DONE"]
    for before, after in pairwise(ran):
        assert after.first_start_at >= before.finished_at
    assert model.job(2).first_start_at < ran[0].finished_at


def test_members_of_an_array_are_singletons_by_the_name_of_their_submit() -> None:
    model = cluster()
    (first,) = model.submit(spec(name="nightly"))
    entry = cmd.Entry(spec(name="nightly", singleton=True), array=Array(((1, 2, 1),), (("lr", ("0.1", "0.2")),)))
    (members,) = model.send(cmd.Submit((entry,), "array"))
    (last,) = model.submit(spec(name="nightly", singleton=True))
    (other,) = model.submit(spec(name="nightly[1", singleton=True))
    model.run(1.0)
    view = Views().build(model.world, model.controller.profiles, model.now)
    assert view.by_id[members[0]].blocked == f"waiting for job {first} to end: one job named nightly at a time"
    model.run_to_end()
    ran = [model.job(number) for number in (first, *members, last)]
    for before, after in pairwise(ran):
        assert after.first_start_at >= before.finished_at
    assert model.job(other).first_start_at < ran[0].finished_at


def test_a_singleton_that_is_retried_waits_for_a_later_one_that_runs() -> None:
    model = cluster()
    model.submit(*[spec(steps=400, singleton=True)] * 2)
    model.conduct[1] = Conduct(fails=[1])
    model.run_until(lambda: state_of(model.job(2)) is JobState.RUNNING)
    model.send(cmd.Retry(1))
    model.run(5.0)
    assert (state_of(model.job(1)), state_of(model.job(2))) == (JobState.QUEUED, JobState.RUNNING)
    model.run_to_end()
    assert [model.job(each).outcome for each in (1, 2)] == ["DONE", "DONE"]
    assert model.job(2).suspends == 0


def test_singletons_may_share_a_checkpoint_folder() -> None:
    model = cluster()
    chain = spec(singleton=True, checkpoint_dir="/c", continue_from="any")
    model.submit(chain)
    assert model.submit(chain) == (2,)
    (answer,) = model.send(cmd.Submit((replace(chain, name="another"),), "r"))
    assert isinstance(answer, CommandRefused)


# --- batch jobs -------------------------------------------------------------------------------------------------------

TWELVE = (Condition("done", batch="slurm:12"),)


def batch_cluster() -> Cluster:
    return Cluster({"n1": 4}, settings=Settings(batch_system="slurm"))


def poll(model: Cluster, *jobs: BatchJob, system: str = "slurm") -> None:
    assert model.send(cmd.BatchSeen(jobs, asked_at=model.now, system=system)) == [None]


def ended(code: int = 0, **changes: object) -> BatchJob:
    return replace(BatchJob("12", BatchState.ENDED, reason="COMPLETED", code=code), **changes)  # type: ignore[arg-type]


def test_a_job_starts_once_a_batch_job_is_done() -> None:
    model = batch_cluster()
    model.submit(spec(conditions=(TWELVE,)))
    for state in (BatchState.PENDING, BatchState.RUNNING, BatchState.MISSING, BatchState.UNKNOWN):
        poll(model, BatchJob("12", state))
        assert why(model, 1) == "waiting for batch job slurm:12 to be DONE"
    poll(model, ended(), system="lsf")
    assert why(model, 1), "of another batch system"
    poll(model, ended())
    assert why(model, 1) == ""
    model.run_to_end()
    assert model.job(1).outcome is JobState.DONE


@pytest.mark.parametrize(
    "end",
    [ended(1), ended(None), ended(failed=True), ended(by_hand=True), ended(preempted=True)],  # type: ignore[arg-type]
)
def test_a_batch_job_that_failed_ends_the_jobs_that_wanted_it_done(end: BatchJob) -> None:
    model = batch_cluster()
    ids = model.submit(
        spec(conditions=(TWELVE,)),
        spec(conditions=((Condition("failed", batch="slurm:12"),),)),
        spec(conditions=((Condition("ended", batch="slurm:12"),),)),
    )
    poll(model, end)
    model.run_to_end()
    assert [model.job(each).outcome for each in ids] == ["CANCELLED", "DONE", "DONE"]
    assert model.job(1).last.detail.startswith("batch job slurm:12 is over (")


def test_only_several_polls_say_that_a_batch_job_is_gone_and_nobody_knows_how_it_ended() -> None:
    model = batch_cluster()
    kinds = ("done", "failed", "ended")
    model.submit(*(spec(conditions=((Condition(kind, batch="slurm:12"),),)) for kind in kinds))
    gone = BatchJob("12", BatchState.GONE)
    for _ in range(2):
        poll(model, gone)
    poll(model, BatchJob("12", BatchState.UNKNOWN))
    for _ in range(2):
        poll(model, gone)
    assert [why(model, each) != "" for each in (1, 2, 3)] == [True] * 3
    poll(model, gone)
    model.run_to_end()
    assert [model.job(each).outcome for each in (1, 2, 3)] == ["CANCELLED", "CANCELLED", "DONE"]


def test_a_submit_asks_again_of_a_batch_job_whose_end_is_known() -> None:
    model = batch_cluster()
    done, over = spec(conditions=(TWELVE,)), spec(conditions=((Condition("ended", batch="slurm:12"),),))
    model.submit(done)
    poll(model, ended(1))
    assert model.job(1).outcome is JobState.CANCELLED
    assert awaited_batch_jobs(model.world, "slurm") == set()
    model.run(1.0)
    model.submit(done, over)
    assert awaited_batch_jobs(model.world, "slurm") == {"12"}
    poll(model, BatchJob("12", BatchState.MISSING))
    assert [model.job(each).outcome for each in (2, 3)] == [None, None]
    poll(model, BatchJob("12", BatchState.RUNNING))
    assert model.world.batch_ends == {}
    model.run(1.0)
    assert "slurm:12" in why(model, 2)
    assert "slurm:12" in why(model, 3)
    poll(model, ended())
    assert awaited_batch_jobs(model.world, "slurm") == set()
    model.run_to_end()
    assert [model.job(each).outcome for each in (1, 2, 3)] == ["CANCELLED", "DONE", "DONE"]


def test_a_retry_asks_again_of_a_batch_job_whose_end_is_known() -> None:
    model = batch_cluster()
    model.submit(spec(conditions=(TWELVE,)))
    poll(model, ended(1))
    model.run(1.0)
    assert model.send(cmd.Retry(1)) == [cmd.Retried((1,), ())]
    assert awaited_batch_jobs(model.world, "slurm") == {"12"}
    poll(model, ended(1))
    assert model.job(1).outcome is JobState.CANCELLED, "it has failed still"
    model.run(1.0)
    model.send(cmd.Retry(1))
    poll(model, ended())
    model.run_to_end()
    assert model.job(1).outcome is JobState.DONE


def test_an_end_that_an_earlier_version_recorded_still_counts() -> None:
    model = batch_cluster()
    model.submit(spec(conditions=(TWELVE,)))
    model.send(cmd.Hold(1))
    poll(model, ended())
    text = to_json(model.world.batch_ends["slurm:12"])
    assert from_json(BatchEnd, {key: text[key] for key in ("done", "how")}) == BatchEnd(True, "COMPLETED")
    model.world.batch_ends["slurm:12"] = BatchEnd(True, "COMPLETED")
    assert why(model, 1) == ""
    assert awaited_batch_jobs(model.world, "slurm") == set()


def test_a_daemon_without_that_batch_system_refuses_to_wait_for_it() -> None:
    for model, there in ((cluster(), "it has no batch system"), (batch_cluster(), "its batch system is slurm")):
        (answer,) = model.send(cmd.Submit((spec(conditions=((Condition("done", batch="lsf:3"),),)),), "r"))
        assert str(answer) == f"the daemon cannot wait for lsf:3: {there}"


@pytest.mark.parametrize("given", [("done", 0, ""), ("done", 1, "slurm:1"), ("over", 1, ""), ("done", 0, "slurm:x"),
                                   ("started", 0, "slurm:1"), ("done", -1, "")])  # fmt: skip
def test_conditions_that_make_no_sense_cannot_be_written(given: tuple[str, int, str]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Condition(*given)


# --- any order of ends ------------------------------------------------------------------------------------------------


@st.composite
def pipelines(draw: st.DrawFn) -> list[JobSpec]:
    """Jobs of which each waits for some of those before it."""
    found: list[JobSpec] = []
    for number in range(1, draw(st.integers(2, 7)) + 1):
        earlier = st.integers(1, number - 1) if number > 1 else st.nothing()
        group = st.lists(st.builds(Condition, st.sampled_from(KINDS), earlier), min_size=1, max_size=3).map(tuple)
        groups = draw(st.lists(group, max_size=2)) if number > 1 else []
        after = draw(st.lists(earlier, max_size=1, unique=True)) if number > 1 else []
        name, single = draw(st.sampled_from("ab")), draw(st.booleans())
        steps = draw(st.sampled_from((1, 20, 60)))
        found.append(spec(name=name, steps=steps, after=tuple(after), conditions=tuple(groups), singleton=single))
    return found


def held_now(world: World) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for number, _ in world.holders.values():
        found.setdefault(world.jobs[number].spec.name, set()).add(number)
    return found


@settings(max_examples=seeds(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs=pipelines(), fails=st.sets(st.integers(1, 7)), cancels=st.sets(st.integers(1, 7), max_size=2))
def test_every_pipeline_ends_and_nobody_starts_too_early(
    jobs: list[JobSpec], fails: set[int], cancels: set[int]
) -> None:
    model = cluster(gpus=3)
    model.conduct |= {number: Conduct(fails=[1]) for number in fails}
    for job in jobs:
        model.submit(job)
    model.run(2.0)
    for number in sorted(cancels & set(model.world.jobs)):
        model.send(cmd.Cancel(number))
    for _ in range(400):
        if not model.world.active:
            break
        model.run(1.0)
        for numbers in held_now(model.world).values():
            first = min(numbers)
            assert not any(model.job(each).spec.singleton for each in numbers - {first}), "two at a time"
    assert not model.world.active
    for last in model.world.jobs.values():
        started = last.first_start_at
        if started is None:
            assert last.outcome is JobState.CANCELLED
            assert last.cancelling or never_why(model.world, last) == last.last.detail
            continue
        for each in last.spec.after:
            assert model.job(each).outcome is JobState.DONE
            assert model.job(each).finished_at <= started
        for group in last.spec.conditions:
            assert any(_came(model, each, started) for each in group)
    records = model.journal.read(limit=10**6)
    half = len(records) // 2
    assert fold(fold(World(), records[:half]), records[half:]) == fold(World(), records)
    assert from_json(World, to_json(model.world)).awaited.keys() <= copied(model.world).awaited.keys()


def _came(model: Cluster, condition: Condition, at: float) -> bool:
    job = model.job(condition.job)
    if condition.kind == "started":
        return (job.first_start_at or job.finished_at) <= at
    outcomes = {"done": ("DONE",), "failed": ("FAILED", "CANCELLED"), "ended": ("DONE", "FAILED", "CANCELLED")}
    return job.outcome in outcomes[condition.kind] and job.finished_at <= at
