"""A resume behind what was saved is said, and one that would begin at step 0 is held."""

from dataclasses import replace

import pytest

from hpcdl.core.fold.fold import Draft
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause, Placement, Share
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.notice import BEHIND, LOST, NoticeKind
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.world import Setback, World, held_text
from hpcdl.core.rules.endings import Rules, conclusions
from hpcdl.core.rules.resumes import required_step, resumed_behind
from hpcdl.daemon.api.rows import RowBuilder
from hpcdl.daemon.api.why import explain
from tests.support.model_cluster import Cluster

SPEC = JobSpec(("train",), "resnet", steps=50, profile="plain", notify=("mailto:me@example.org",))
PLACED = Placement((Share("n1", (0,)),))


def suspended() -> tuple[Cluster, int, int]:
    """A job that was suspended with a checkpoint: its id, and the step."""
    model = Cluster({"n1": 1})
    (job,) = model.submit(SPEC)
    model.run(20.0)
    model.send(cmd.Hold(job))
    model.run(20.0)
    saved = model.job(job).progress.saved_step
    assert saved
    assert model.job(job).saved_by == 1
    return model, job, saved


def said(model: Cluster) -> list[ev.ResumedBehind]:
    return [each.event for each in model.journal.read(0, 10_000) if isinstance(each.event, ev.ResumedBehind)]


def damage(model: Cluster) -> list[tuple[str, str]]:
    return [(each.cause, each.text) for each in model.world.notices.values() if each.what is NoticeKind.DAMAGE]


def test_a_resume_behind_what_was_saved_is_said_once() -> None:
    model, job, saved = suspended()
    model.durable[job] = float(saved - 3)
    model.send(cmd.Release(job))
    model.run(7.0)
    assert said(model) == [ev.ResumedBehind(job, 2, saved - 3, saved, 1)]
    found = model.job(job)
    assert found.setback == Setback(2, saved - 3, saved, 1)
    assert found.progress.saved_step == saved - 3, "the next one that goes on there is no news"
    text = f"resumed at {saved - 3}; {saved} was saved by attempt 1"
    (line,) = [each for each in explain(model.world, found, {}, model.now).details if text in each]
    assert line.startswith(f"attempt 2 {text}: ")
    rows = RowBuilder(model.world, Profiles(), {}, model.now)
    assert rows.job(replace(found, progress=replace(found.progress, step=saved - 1)))["note"] == text
    assert rows.job(replace(found, progress=replace(found.progress, step=saved)))["note"] is None, "it is regained"
    ((cause, notice),) = damage(model)
    assert cause == BEHIND
    assert notice.startswith(
        f"job {job} (resnet) found an older checkpoint: it goes on from step {saved - 3}, and step"
    )
    model.check_replay()


def test_one_that_begins_at_step_0_is_said_and_what_was_saved_counts_no_more() -> None:
    """As where the file system of its checkpoint folder is not mounted, and a setting lets it begin anew."""
    model, job, saved = suspended()
    del model.durable[job]
    model.send(cmd.Release(job))
    model.run(12.0)
    assert said(model) == [ev.ResumedBehind(job, 2, 0, saved, 1)]
    running = model.job(job).running
    assert running is not None
    for _ in range(2):  # torchrun's own restarts: the loop is ready at step 0 again, within one attempt
        model._report(model.agents["n1"], ev.TrainerReady(job, running.number, 1, "n1", step=0))
        model.run(0.5)
    ((cause, notice),) = damage(model)
    assert cause == LOST
    wanted = f"job {job} (resnet) found no checkpoint: it begins at step 0, and step {saved} was saved by attempt 1: is"
    assert notice.startswith(wanted)
    model.check_replay()


@pytest.mark.parametrize("unsaved", [False, True])
def test_what_goes_on_from_what_was_saved_is_no_news(unsaved: bool) -> None:
    model, job, _ = suspended()
    model.send(cmd.Release(job))
    model.run(12.0)
    if unsaved:  # killed far beyond its checkpoint: what was not saved is no loss of a checkpoint
        model.kill(job)
        model.run(20.0)
        assert model.job(job).last_incarnation == 3
    assert said(model) == []
    assert damage(model) == []


def test_whoever_retries_from_the_start_knows_that_it_starts_over() -> None:
    model, job, _ = suspended()
    model.send(cmd.Cancel(job))
    model.run(5.0)
    del model.durable[job]
    model.send(cmd.Retry(job, from_start=True))
    assert required_step(model.job(job)) is None
    model.run(20.0)
    running = model.job(job).running
    assert running is not None
    assert running.progress is not None
    assert said(model) == []
    assert damage(model) == []


def test_ranks_that_form_their_first_membership_before_are_said() -> None:
    draft = Draft(World())
    for event in (
        ev.JobSubmitted(1, replace(SPEC, rescale="in-process"), "r"),
        ev.StartRequested(1, 1, ("n1",), PLACED),
        ev.RescaleRequested(1, 1, 1, ("n1",)),
    ):
        draft.add(event, 1.0)
    job = draft.world.jobs[1]
    draft.world.jobs[1] = replace(job, progress=replace(job.progress, step=9, saved_step=9))
    ready = ev.TrainerReady(1, 1, 1, "n1", step=0)
    draft.add(ev.Reformed(1, 1, 1, "n1", step=0, seconds=1.0), 2.0)
    assert resumed_behind(draft.world.jobs[1], ready) == ev.ResumedBehind(1, 1, 0, 9)
    draft.add(ready, 2.0)
    draft.add(ev.Reformed(1, 1, 1, "n1", step=4, seconds=1.0), 30.0)  # they go on with the state that they have
    assert resumed_behind(draft.world.jobs[1], ready) is None


def held(saved_by: int = 3) -> Draft:
    """A job with step 9 saved, whose attempt 4 found nothing, and ended for it."""
    draft = Draft(World())
    for event in (ev.JobSubmitted(1, SPEC, "r"), ev.StartRequested(1, 4, ("n1",), PLACED)):
        draft.add(event, 1.0)
    job = draft.world.jobs[1]
    draft.world.jobs[1] = replace(job, progress=replace(job.progress, step=9, saved_step=9), saved_by=saved_by)
    assert required_step(draft.world.jobs[1]) == 9
    detail = "no checkpoint was found in /ck"
    end = ev.Exited(1, 4, 1, "n1", code=65, hint=Cause.INFRASTRUCTURE, detail=detail, missing=9)
    draft.add(end, 2.0)
    draft.add(ev.GpusFreed(1, 4, 1, "n1"), 2.0)
    for ended in conclusions(draft.world, [1], 2.0, Rules()):
        draft.add(ended, 2.0)
    return draft


def test_a_job_that_would_begin_at_step_0_is_held_until_its_user_releases_it() -> None:
    draft = held()
    job = draft.world.jobs[1]
    assert job.held
    assert not job.live
    assert job.progress.saved_step == 9
    text = "held before step 0: no checkpoint was found in /ck, and step 9 was saved by attempt 3"
    assert held_text(job) == f"{text}: put its checkpoints back, or let it begin anew: hpcdl resume 1"
    assert required_step(job) == 9, "also where a policy were to start it"
    draft.add(ev.JobReleased(1), 3.0)
    assert required_step(draft.world.jobs[1]) is None, "its user let it"
    draft.add(ev.StartRequested(1, 5, ("n1",), PLACED), 4.0)
    before, ready = draft.world.jobs[1], ev.TrainerReady(1, 5, 1, "n1", step=0)
    behind = resumed_behind(before, ready)
    assert behind == ev.ResumedBehind(1, 5, 0, 9, 3)
    draft.add(ready, 5.0)
    draft.add(behind, 5.0)
    assert required_step(draft.world.jobs[1]) is None, "nothing is saved now"
    draft.add(ev.Saved(1, 5, 1, "n1", step=2), 6.0)
    assert required_step(draft.world.jobs[1]) == 2, "it was let once"


def test_a_job_whose_checkpoints_were_put_back_is_held_again_where_they_go_again() -> None:
    draft = held()
    draft.add(ev.JobReleased(1), 3.0)
    draft.add(ev.StartRequested(1, 5, ("n1",), PLACED), 4.0)
    draft.add(ev.TrainerReady(1, 5, 1, "n1", step=9), 5.0)
    assert required_step(draft.world.jobs[1]) == 9


def test_a_job_that_is_held_after_something_else_later_says_so() -> None:
    draft = held()
    draft.add(ev.JobReleased(1), 3.0)
    draft.add(ev.StartRequested(1, 5, ("n1",), PLACED), 4.0)
    draft.add(ev.Exited(1, 5, 1, "n1", code=1, hint=Cause.INFRASTRUCTURE, detail="no room"), 5.0)
    draft.add(ev.GpusFreed(1, 5, 1, "n1"), 5.0)
    (ended,) = conclusions(draft.world, [1], 5.0, Rules(poison_limit_infrastructure=1))
    draft.add(ended, 5.0)
    assert held_text(draft.world.jobs[1]).startswith("held after ")


def test_a_job_that_was_cancelled_meanwhile_is_not_held() -> None:
    draft = Draft(World())
    for event in (ev.JobSubmitted(1, SPEC, "r"), ev.StartRequested(1, 1, ("n1",), PLACED), ev.CancelRequested(1)):
        draft.add(event, 1.0)
    draft.add(ev.Exited(1, 1, 1, "n1", code=65, hint=Cause.INFRASTRUCTURE, detail="x", missing=9), 2.0)
    draft.add(ev.GpusFreed(1, 1, 1, "n1"), 2.0)
    (ended,) = conclusions(draft.world, [1], 2.0, Rules())
    assert isinstance(ended, ev.IncarnationEnded)
    assert (ended.hold, ended.missing) == ("", None)


def test_what_was_passed_over_is_named() -> None:
    draft = Draft(World())
    for event in (ev.JobSubmitted(1, SPEC, "r"), ev.StartRequested(1, 2, ("n1",), PLACED)):
        draft.add(event, 1.0)
    draft.add(ev.CheckpointDamaged(1, 2, 1, "n1", step=9, path="/c/damaged-9", why="w is missing", attempt=1), 2.0)
    passed = "step 9 of attempt 1: w is missing; it is kept as /c/damaged-9"
    line = f"a damaged checkpoint was passed over: {passed}"
    assert line in explain(draft.world, draft.world.jobs[1], {}, 2.0).details
    job = draft.world.jobs[1]
    draft.world.jobs[1] = replace(job, progress=replace(job.progress, saved_step=9))
    behind = resumed_behind(draft.world.jobs[1], ev.TrainerReady(1, 2, 1, "n1", step=5))
    assert behind == ev.ResumedBehind(1, 2, 5, 9, 0, (passed,))
    draft.add(behind, 3.0)
    draft.add(ev.Exited(1, 2, 1, "n1", signal="SIGKILL"), 4.0)
    draft.add(ev.GpusFreed(1, 2, 1, "n1"), 4.0)
    for ended in conclusions(draft.world, [1], 4.0, Rules()):
        draft.add(ended, 4.0)
    assert line in explain(draft.world, draft.world.jobs[1], {}, 5.0).details, "also once that attempt is over"
