"""Why an incarnation ended, and what becomes of its job."""

from dataclasses import replace
from typing import Any

import pytest

from hpcdl.core.fold.fold import Draft
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import (
    Cause,
    DurableCheckpoint,
    Incarnation,
    IncarnationState,
    Part,
    Placement,
    Purpose,
    Share,
    StopRequest,
    TrainingStart,
)
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.transitions import UNTRAINED, state_of
from hpcdl.core.model.world import FailureHistory, Job, JobProgress, JobState, World, can_suspend, held_text
from hpcdl.core.rules.endings import Rules, cause_of, conclusions
from tests.support.model_cluster import Cluster

JOB = Job(1, JobSpec(("train",), "j"), 0.0, progress=JobProgress(50, None, 40))
ENDED = Part("n1", started=True, exited=True, freed=True, exited_at=1.0)
LOST = Part("n2", started=True, lost=True, detail="gone")
SUSPENDED = DurableCheckpoint(40, final=True)
PLACED = Placement((Share("n1", (0,)),))


def incarnation(*parts: Part, ending: Cause | None = None, **more: object) -> Incarnation:
    stop = None if ending is None else StopRequest(1.0, cause=ending)
    known = {"attached": True, "placement": PLACED, "stop": stop} | more
    return Incarnation(1, IncarnationState.EXITED, parts, **known)  # type: ignore[arg-type]


def asked_to_go(at: float, started_at: float | None) -> Incarnation:
    """Suspended before its trainer attached."""
    stop = StopRequest(at, purpose=Purpose.HOLD)
    return incarnation(part(signal="SIGTERM", ended_by="suspend"), attached=False, stop=stop, started_at=started_at)


def part(**how: object) -> Part:
    return replace(ENDED, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("inc", "cause"),
    [
        (incarnation(part(code=0)), Cause.DONE),
        (incarnation(part(code=0), attached=False), Cause.DONE),
        # Asked to suspend, it was complete before it saw that.
        (incarnation(part(code=0, ended_by="suspend", done=True, by_itself=True)), Cause.DONE),
        (incarnation(part(code=0, ended_by="suspend", done=True)), Cause.SUSPENDED),
        (incarnation(part(code=0, ended_by="suspend")), Cause.SUSPENDED),
        (incarnation(part(code=0, ended_by="suspend"), checkpoint=SUSPENDED), Cause.SUSPENDED),
        (incarnation(part(code=0, ended_by="absence"), checkpoint=SUSPENDED), Cause.SUSPENDED),
        # Saved, and then crashed on its way out.
        (incarnation(part(signal="SIGSEGV", ended_by="suspend"), checkpoint=SUSPENDED), Cause.SUSPENDED),
        (incarnation(part(code=0), LOST, checkpoint=SUSPENDED), Cause.SUSPENDED),
        # One that is not ours exits well at the signal of its preset: it saved what it could.
        (incarnation(part(code=0, ended_by="suspend"), attached=False), Cause.SUSPENDED),
        (incarnation(part(code=143, ended_by="suspend")), Cause.PREEMPTED),
        (incarnation(part(signal="SIGKILL", ended_by="suspend")), Cause.PREEMPTED),
        (incarnation(part(signal="SIGTERM", ended_by="end"), ending=Cause.PREEMPTED), Cause.PREEMPTED),
        # A program that catches SIGTERM and exits with 0 is not complete for that.
        (incarnation(part(code=0, ended_by="end"), ending=Cause.PREEMPTED), Cause.PREEMPTED),
        (incarnation(part(code=0, ended_by="end"), ending=Cause.CANCELLED), Cause.CANCELLED),
        (incarnation(part(code=0), ending=Cause.CANCELLED), Cause.CANCELLED),
        # Complete just before it was ended.
        (incarnation(part(code=0), ending=Cause.PREEMPTED), Cause.DONE),
        (incarnation(part(code=1)), Cause.USER_ERROR),
        (incarnation(part(signal="SIGSEGV")), Cause.USER_ERROR),
        (incarnation(part(signal="SIGKILL")), Cause.INFRASTRUCTURE),
        # A shell, or a program in Python, that passes on how what it ran ended.
        (incarnation(part(code=137)), Cause.INFRASTRUCTURE),
        (incarnation(part(code=247)), Cause.INFRASTRUCTURE),
        (incarnation(part(code=139)), Cause.USER_ERROR),
        (incarnation(part(code=137, hint=Cause.OUT_OF_MEMORY)), Cause.OUT_OF_MEMORY),
        (incarnation(part(code=137, ended_by="suspend")), Cause.PREEMPTED),
        (incarnation(part(signal="SIGKILL", hint=Cause.OUT_OF_MEMORY)), Cause.OUT_OF_MEMORY),
        (incarnation(part(signal="SIGUSR2", hint=Cause.PREEMPTED)), Cause.PREEMPTED),
        (incarnation(part(code=75)), Cause.INFRASTRUCTURE),
        (incarnation(part(code=75), attached=False), Cause.USER_ERROR),
        (incarnation(LOST), Cause.NODE_LOST),
        (incarnation(part(code=0), LOST), Cause.NODE_LOST),
        (incarnation(part(code=1), LOST, ending=Cause.INFRASTRUCTURE), Cause.NODE_LOST),
        # One part failed, and we ended the other.
        (
            incarnation(
                part(code=0), replace(ENDED, node="n2", signal="SIGTERM", ended_by="end"), ending=Cause.INFRASTRUCTURE
            ),
            Cause.INFRASTRUCTURE,
        ),
        # The one that failed unasked says why, not those that were ended for it.
        (
            incarnation(
                part(signal="SIGTERM", ended_by="end"), replace(ENDED, node="n2", code=3), ending=Cause.INFRASTRUCTURE
            ),
            Cause.USER_ERROR,
        ),
        (
            incarnation(
                part(signal="SIGTERM", ended_by="end"),
                replace(ENDED, node="n2", code=1, hint=Cause.OUT_OF_MEMORY),
                ending=Cause.INFRASTRUCTURE,
            ),
            Cause.OUT_OF_MEMORY,
        ),
        # A rank was killed, and its peers died of the broken connection.
        (incarnation(part(code=1), replace(ENDED, node="n2", signal="SIGKILL")), Cause.INFRASTRUCTURE),
        (incarnation(part(code=1), replace(ENDED, node="n2", signal="SIGTERM", ended_by="suspend")), Cause.PREEMPTED),
        (incarnation(part(code=0), replace(ENDED, node="n2", code=3)), Cause.USER_ERROR),
        (incarnation(part(code=0), replace(ENDED, node="n2", code=0)), Cause.DONE),
        (incarnation(part(detail="the node was started again")), Cause.USER_ERROR),
    ],
)
def test_causes(inc: Incarnation, cause: Cause) -> None:
    found, _ = cause_of(JOB, inc)
    assert found is cause


@pytest.mark.parametrize(
    ("inc", "untrained"),
    [
        (incarnation(part(signal="SIGTERM", ended_by="suspend")), True),
        (incarnation(part(code=143, ended_by="absence")), True),
        (incarnation(part(signal="SIGTERM", ended_by="suspend"), training_start=TrainingStart(5.0, 1.0)), False),
        (incarnation(part(signal="SIGTERM", ended_by="suspend"), attached=False), False),
        (asked_to_go(4.0, started_at=None), True),
        (asked_to_go(4.0, started_at=5.0), True),
        (asked_to_go(6.0, started_at=5.0), False),
        (incarnation(part(signal="SIGTERM", ended_by="suspend"), checkpoint=DurableCheckpoint(44)), False),
    ],
)
def test_what_had_not_begun_to_train_lost_nothing(inc: Incarnation, untrained: bool) -> None:
    cause, detail = cause_of(JOB, inc)
    assert cause is Cause.PREEMPTED  # which spends no retry
    assert (detail == UNTRAINED) is untrained


@pytest.mark.parametrize("preset", ["lightning", "hf", "submitit", "none"])
def test_a_framework_that_exits_well_when_asked_is_not_complete_for_that(preset: str) -> None:
    job = replace(JOB, spec=replace(JOB.spec, signal=preset))
    assert cause_of(job, incarnation(part(code=0, ended_by="suspend")))[0] is Cause.SUSPENDED
    assert cause_of(job, incarnation(part(code=0)))[0] is Cause.DONE


@pytest.mark.parametrize("preset", ["hf", "submitit", "SIGTERM", "SIGUSR1", "SIGUSR2"])
def test_of_a_program_with_a_handler_of_its_own_no_more_is_said_than_is_known(preset: str) -> None:
    asked = incarnation(part(code=124, ended_by="suspend"))
    job = replace(JOB, spec=replace(JOB.spec, signal=preset))
    assert cause_of(job, asked) == (Cause.PREEMPTED, "hpcdl saw no checkpoint of its program, exit code 124")
    known = replace(job, spec=replace(job.spec, resumes=""))
    assert cause_of(known, asked) == (Cause.SUSPENDED, "its program resumes by itself, exit code 124")


@pytest.mark.parametrize(("total", "cause"), [(50, Cause.DONE), (51, Cause.SUSPENDED)])
def test_who_is_not_at_its_end_is_not_complete_for_an_exit_with_0(total: int, cause: Cause) -> None:
    job = replace(JOB, progress=JobProgress(50, total, 40))
    assert cause_of(job, incarnation(part(code=0, ended_by="suspend"), attached=False))[0] is cause
    assert cause_of(job, incarnation(part(code=0)))[0] is Cause.DONE


def test_what_ended_by_itself_is_done_though_a_suspend_was_pending() -> None:
    """Of a trainer that attached, before any signal that ends it, and with nothing saved in answer."""
    itself = part(code=0, ended_by="suspend", by_itself=True)
    assert cause_of(JOB, incarnation(itself)) == (Cause.DONE, "")
    assert cause_of(JOB, incarnation(itself, replace(itself, node="n2")))[0] is Cause.DONE
    assert cause_of(JOB, incarnation(itself, part(node="n2", code=0, ended_by="suspend")))[0] is Cause.SUSPENDED
    assert cause_of(JOB, incarnation(itself, checkpoint=SUSPENDED))[0] is Cause.SUSPENDED
    assert cause_of(JOB, incarnation(replace(itself, ended_by="end"), ending=Cause.PREEMPTED))[0] is Cause.PREEMPTED
    for spec in (replace(JOB.spec, resumes=""), replace(JOB.spec, signal="SIGTERM")):
        assert cause_of(replace(JOB, spec=spec), incarnation(itself))[0] is Cause.SUSPENDED


def test_an_error_of_its_own_while_a_suspend_was_pending_is_one() -> None:
    failed = part(code=1, ended_by="suspend", by_itself=True, detail="ValueError: x")
    for job in (JOB, ALL_SAVED):
        assert cause_of(job, incarnation(failed)) == (Cause.USER_ERROR, "exit code 1: ValueError: x")
    others = [
        part(node="n2", code=0, ended_by="suspend", by_itself=True),
        part(node="n2", code=143, ended_by="suspend"),
    ]
    assert all(cause_of(JOB, incarnation(failed, other))[0] is Cause.USER_ERROR for other in others)


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ({"by_itself": False}, Cause.PREEMPTED),
        ({"ended_by": "leave"}, Cause.PREEMPTED),
        ({"code": 137}, Cause.PREEMPTED),
        ({"detail": "RuntimeError: Connection closed by peer"}, Cause.PREEMPTED),
        ({"hint": Cause.OUT_OF_MEMORY}, Cause.OUT_OF_MEMORY),
    ],
)
def test_what_a_suspend_made_of_it_is_none(how: dict[str, object], cause: Cause) -> None:
    failed = part(**{"code": 1, "ended_by": "suspend", "by_itself": True} | how)
    assert cause_of(JOB, incarnation(failed))[0] is cause
    for spec in (replace(JOB.spec, resumes=""), replace(JOB.spec, signal="SIGTERM")):
        assert cause_of(replace(JOB, spec=spec), incarnation(failed))[0] is not Cause.USER_ERROR
    assert cause_of(JOB, incarnation(failed, part(node="n2", signal="SIGKILL")))[0] is not Cause.USER_ERROR
    final = incarnation(failed, checkpoint=SUSPENDED)
    assert cause_of(JOB, final)[0] is not Cause.USER_ERROR


@pytest.mark.parametrize(("regex", "preset"), [("([0-9]+)", None), (None, "hf")])
def test_a_total_that_was_read_from_any_bar_ends_nothing(regex: str | None, preset: str | None) -> None:
    """`1/1` of a shard that is written, and an exit with 0 at a suspend."""
    asked = incarnation(part(code=0, ended_by="suspend"), attached=False)
    job = replace(JOB, progress=JobProgress(1, 1, 40), spec=replace(JOB.spec, progress_regex=regex, progress=preset))
    assert cause_of(job, asked)[0] is Cause.SUSPENDED
    said = replace(job, progress=JobProgress(300, 300, 40), spec=replace(job.spec, steps=300))
    assert cause_of(said, asked)[0] is Cause.DONE


ALL_SAVED = replace(JOB, progress=JobProgress(300, 300, 300))
AT_ITS_END = [(JOB, {"done": True}, None), (ALL_SAVED, {}, DurableCheckpoint(300))]
ENDS = [{"code": 143}, {"signal": "SIGKILL"}, {"signal": "SIGTERM"}, {"signal": "SIGSEGV"}, {"code": 137}, {"code": 1}]


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("asked", ["suspend", "absence", "end", None])
@pytest.mark.parametrize(("job", "said", "saved"), AT_ITS_END)
def test_once_its_script_has_come_to_its_end_it_is_done_whatever_ends_it(
    job: Job, said: dict[str, object], saved: DurableCheckpoint | None, asked: str | None, how: dict[str, object]
) -> None:
    ending = Cause.PREEMPTED if asked == "end" else None
    left = part(ended_by=asked, left=True, **how, **said)
    assert cause_of(job, incarnation(left, ending=ending, checkpoint=saved))[0] is Cause.DONE
    running = replace(left, left=False)
    assert cause_of(job, incarnation(running, ending=ending, checkpoint=saved))[0] is not Cause.DONE
    both = incarnation(left, replace(running, node="n2"), ending=ending, checkpoint=saved)
    assert cause_of(job, both)[0] is not Cause.DONE
    lost = incarnation(left, replace(LOST, done=True), ending=ending, checkpoint=saved)
    assert cause_of(job, lost)[0] is not Cause.DONE


@pytest.mark.parametrize(
    ("how", "cause", "detail"),
    [
        ({"signal": "SIGKILL"}, Cause.INFRASTRUCTURE,
         "killed from outside at its script's end, which starts over, ended by SIGKILL"),
        ({"code": 3, "detail": "ValueError: x"}, Cause.USER_ERROR, "exit code 3: ValueError: x"),
        ({"signal": "SIGSEGV"}, Cause.USER_ERROR, "ended by SIGSEGV"),
        ({"signal": "SIGTERM", "ended_by": "suspend"}, Cause.SUSPENDED,
         "its script's end was not over within the grace period, and starts over: ended by SIGTERM"),
        ({"code": 0, "ended_by": "suspend", "by_itself": True}, Cause.DONE, ""),
        ({"code": 0, "ended_by": "suspend"}, Cause.SUSPENDED,
         "its script's end was not over within the grace period, and starts over: exit code 0 after a signal"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("job", "said", "saved"), AT_ITS_END)
def test_what_follows_the_last_step_is_a_part_of_the_job(
    job: Job,
    said: dict[str, object],
    saved: DurableCheckpoint | None,
    how: dict[str, object],
    cause: Cause,
    detail: str,
) -> None:
    done = job if saved is not None else replace(job, progress=JobProgress(40, None, 40))
    assert cause_of(done, incarnation(part(**how, **said), checkpoint=saved)) == (cause, detail)


def test_a_suspend_at_the_last_step_is_one() -> None:
    """It saved all of its steps in answer, and went: the end of its script was not run."""
    final = DurableCheckpoint(300, final=True)
    assert cause_of(ALL_SAVED, incarnation(part(code=0, ended_by="suspend"), checkpoint=final))[0] is Cause.SUSPENDED


def test_an_end_without_a_checkpoint_is_not_one_that_only_starts_over() -> None:
    ended = incarnation(part(signal="SIGTERM", ended_by="suspend", done=True))
    assert cause_of(replace(JOB, progress=JobProgress(50, None, 40)), ended)[0] is Cause.PREEMPTED


@pytest.mark.parametrize("asked", [None, "suspend", "end"])
def test_the_writer_s_end_counts_and_not_that_another_rank_was_done(asked: str | None) -> None:
    """Ranks that do not wait for each other: one node's was done while the other's was killed as it saved step 40."""
    other = part(node="n2", code=0, done=True)
    killed = incarnation(part(signal="SIGKILL", ended_by=asked), other, ending=Cause.INFRASTRUCTURE)
    job = replace(JOB, progress=JobProgress(40, 134, 20))
    assert cause_of(job, killed)[0] is not Cause.DONE
    if asked != "end":
        left = incarnation(part(code=0, ended_by="suspend"), other)
        assert cause_of(job, left)[0] is Cause.SUSPENDED
    assert cause_of(job, incarnation(part(signal="SIGKILL", done=True, left=True), other))[0] is Cause.DONE


def test_an_error_of_its_own_after_the_last_step_is_one() -> None:
    assert cause_of(JOB, incarnation(part(code=1, done=True)))[0] is Cause.USER_ERROR
    assert cause_of(JOB, incarnation(part(code=0, done=True), ending=Cause.CANCELLED))[0] is Cause.CANCELLED
    # Done, and then trained on (another fit): what it saved at the suspend is where it goes on.
    assert (
        cause_of(JOB, incarnation(part(code=0, done=True, ended_by="suspend"), checkpoint=SUSPENDED))[0]
        is Cause.SUSPENDED
    )


@pytest.mark.parametrize(
    ("resumes", "how", "cause", "said"),
    [
        ("", {"code": 124}, Cause.SUSPENDED, "its program resumes by itself, exit code 124"),
        ("", {"code": 0}, Cause.SUSPENDED, "its program resumes by itself"),
        ("o/c-*", {"code": 124, "kept": "c-400"}, Cause.SUSPENDED, "its program saved c-400 by itself, exit code 124"),
        ("o/c-*", {"code": 0, "kept": "c-400"}, Cause.SUSPENDED, "its program saved c-400 by itself"),
        ("o/c-*", {"code": 1, "older": "c-200"}, Cause.PREEMPTED,
         "nothing new at o/c-* since it was asked, the newest is c-200, exit code 1"),
        ("o/c-*", {"signal": "SIGKILL"}, Cause.PREEMPTED, "nothing new at o/c-* since it was asked, ended by SIGKILL"),
    ],
)  # fmt: skip
def test_a_program_that_resumes_by_itself(resumes: str, how: dict[str, object], cause: Cause, said: str) -> None:
    job = replace(JOB, progress=JobProgress(50), spec=replace(JOB.spec, resumes=resumes, signal="hf"))
    ended = incarnation(part(ended_by="suspend", **how), attached=False)
    assert cause_of(job, ended) == (cause, said)
    assert can_suspend(job)
    assert cause_of(job, incarnation(part(code=1), attached=False))[0] is Cause.USER_ERROR


def run_once(
    draft: Draft, code: int, at: float, step: int | None = None, rules: Rules | None = None, repeats: int = 1
) -> Job:
    """One incarnation of job 1 on n1 that ends with this code; the job after that."""
    number = draft.world.jobs[1].last_incarnation + 1
    draft.add(ev.StartRequested(1, number, ("n1",), PLACED), at)
    draft.add(ev.Exited(1, number, 1, "n1", code=code, step=step, repeats=repeats), at)
    draft.add(ev.GpusFreed(1, number, 1, "n1"), at)
    while events := conclusions(draft.world, [1], at, rules or Rules()):
        for event in events:
            draft.add(event, at)
    return draft.world.jobs[1]


def draft_of(retries: int) -> Draft:
    draft = Draft(World())
    draft.add(ev.JobSubmitted(1, JobSpec(("train",), "j", retries=retries), "r"), 0.0)
    return draft


def test_user_errors_spend_the_retries() -> None:
    draft = draft_of(1)
    assert run_once(draft, 1, 1.0, step=3).outcome is None
    job = run_once(draft, 1, 2.0, step=4)
    assert (job.outcome, job.failures.retries_used, job.last.exit_code) == (JobState.FAILED, 2, 1)
    assert "retries spent" in job.last.detail


def test_ranks_that_failed_alike_again_and_again_are_as_many_failures_of_the_job() -> None:
    """torchrun started them anew: the job's own retries would only do that again."""
    draft = draft_of(99)
    assert run_once(draft, 2, 1.0, rules=Rules(poison_limit=4), repeats=3).outcome is None
    job = run_once(draft_of(99), 2, 1.0, rules=Rules(poison_limit=3), repeats=3)
    assert (job.outcome, job.last.detail) == (JobState.FAILED, "poison guard: 3 times the same: exit code 2")


def test_poison_guard_and_growing_pauses() -> None:
    draft = draft_of(99)
    pauses = []
    for _ in range(4):
        job = run_once(draft, 1, 100.0, step=7, rules=Rules(poison_limit=5))
        pauses.append(job.failures.retry_at - 100.0 if job.failures.retry_at else 0.0)
    assert pauses == [0.0, 1.0, 2.0, 4.0]
    job = run_once(draft, 1, 100.0, step=7, rules=Rules(poison_limit=5))
    assert job.outcome is JobState.FAILED
    assert job.last.detail == "poison guard: 5 times the same at step 7: exit code 1"


def test_another_step_or_code_is_another_failure() -> None:
    draft = draft_of(99)
    for step, code in ((7, 1), (7, 2), (8, 2), (7, 2), (7, 1)):
        job = run_once(draft, code, 1.0, step=step, rules=Rules(poison_limit=2))
        assert (job.outcome, job.failures.repeats) == (None, 1)


def killed(draft: Draft, step: int, saved: int | None = None, rules: Rules | None = None, **how: object) -> Job:
    """An attempt of job 1 that goes on at its last checkpoint, saves once more or not, and is killed at a step."""
    number, begun = draft.world.jobs[1].last_incarnation + 1, draft.world.jobs[1].progress.saved_step or 0
    draft.add(ev.StartRequested(1, number, ("n1",), PLACED), 1.0)
    draft.add(ev.TrainerReady(1, number, 1, "n1", step=begun), 1.0)
    draft.add(ev.Progressed(1, number, 1, "n1", step=step), 1.0)
    if saved is not None:
        draft.add(ev.Saved(1, number, 1, "n1", step=saved), 1.0)
    exited = {"signal": "SIGKILL"} | how
    draft.add(ev.Exited(1, number, 1, "n1", step=step, **exited), 1.0)  # type: ignore[arg-type]
    draft.add(ev.GpusFreed(1, number, 1, "n1"), 1.0)
    while events := conclusions(draft.world, [1], 1.0, rules or Rules()):
        for event in events:
            draft.add(event, 1.0)
    return draft.world.jobs[1]


def test_failures_that_differ_end_a_job_that_gets_no_further() -> None:
    """Killed at another step each time, it would be started again for ever."""
    draft, rules = draft_of(0), Rules(poison_limit_infrastructure=10)
    for step in range(5, 13):
        assert killed(draft, step, rules=rules).outcome is None
    assert killed(draft, 13, saved=10, rules=rules).fruitless == 1  # this attempt got further
    for step in range(14, 22):
        job = killed(draft, step, rules=rules)
        assert (job.outcome, job.failures.repeats) == (None, 1)
    assert (job.fruitless, job.failures.retry_at) == (9, 1.0 + 30.0)
    job = killed(draft, 22, rules=rules, signal="SIGTERM", hint=Cause.OUT_OF_MEMORY)
    assert (job.outcome, job.last.detail) == (
        JobState.FAILED,
        "poison guard: 10 failures without a checkpoint after step 10, at last: ended by SIGTERM",
    )
    draft.add(ev.JobRetried(1, 0, job.failures.total), 2.0)
    assert killed(draft, 23, rules=rules).fruitless == 1


def test_a_part_that_lost_a_peer_is_not_to_blame() -> None:
    """Its launcher may be the faster one to end."""
    lost = part(code=1, detail="RuntimeError: [gloo/x.cc:553] Connection closed by peer", exited_at=1.0)
    first = replace(ENDED, node="n2", code=1, detail="ValueError: bad sample", exited_at=2.0)
    for parts in ((lost, first), (first, lost)):
        assert cause_of(JOB, incarnation(*parts)) == (Cause.USER_ERROR, "exit code 1: ValueError: bad sample")


def test_a_memory_limit_of_its_own_is_not_tried_alike() -> None:
    """Where it got further, its memory leaks perhaps: it goes on from there. Else the next attempt ends there, too."""
    exceeded: Any = {"signal": None, "code": 1, "hint": Cause.OUT_OF_MEMORY, "permanent": True}
    draft = draft_of(0)
    exceeded["detail"] = "its processes took 130 MiB, more than its 100 MiB, of memory: give it more with --mem"
    job = killed(draft, 15, saved=10, **exceeded)
    assert (job.outcome, job.unfit_nodes) == (None, ())
    job = killed(draft, 15, **exceeded)
    assert (job.outcome, job.last.detail) == (JobState.FAILED, f"exit code 1: {exceeded['detail']}")
    draft = draft_of(0)
    assert killed(draft, 5, **exceeded).outcome is JobState.FAILED, "the first attempt"
    draft = draft_of(0)
    assert killed(draft, 5, **{**exceeded, "permanent": False}).outcome is None, "the node's, say"


def test_a_job_that_gets_further_may_be_killed_as_often_as_it_likes() -> None:
    draft = draft_of(0)
    for number in range(1, 300):
        job = killed(draft, number * 10 + 5, saved=number * 10)
        assert (job.outcome, job.fruitless) == (None, 1)
    assert job.failures.total == 299


def test_what_is_no_failure_neither_counts_nor_hides_those_before() -> None:
    draft, rules = draft_of(9), Rules(poison_limit_infrastructure=3)
    for how in ({}, {"signal": "SIGUSR2", "hint": Cause.PREEMPTED}, {"signal": None, "code": 3}, {}):
        job = killed(draft, 5, rules=rules, **how)
        assert job.outcome is None
    assert (job.fruitless, job.failures.repeats) == (2, 1)
    assert killed(draft, 5, rules=rules, signal="SIGBUS", hint=Cause.INFRASTRUCTURE).held_after


def test_what_is_no_fault_of_its_program_holds_a_job_and_never_ends_it() -> None:
    """Killed from outside, as often as it likes: the work is not lost, and its user is told once."""
    draft = draft_of(0)
    for step in range(49):
        assert killed(draft, step).held is False
    job = killed(draft, 50)
    assert (job.outcome, job.held, state_of(job)) == (None, True, JobState.SUSPENDED)
    why = "held after 50 failures without a checkpoint, at last: killed from outside, ended by SIGKILL"
    assert held_text(job) == f"{why}: hpcdl resume 1 tries again"
    draft.add(ev.JobReleased(1), 2.0)
    job = killed(draft, 50)
    assert (job.held, job.fruitless, job.failures.total, job.failures.retry_at) == (False, 1, 51, 0.0)


def test_failures_alike_of_a_program_that_saves_by_itself_hold_it_too() -> None:
    draft = Draft(World())
    draft.add(ev.JobSubmitted(1, JobSpec(("train",), "j", resumes="out-*"), "r"), 0.0)
    for _ in range(3):
        job = killed(draft, 5, rules=Rules(poison_limit_infrastructure=3))
    assert job.outcome is None
    why = "held after 3 failures alike that were not its program's, at last: killed from outside, ended by SIGKILL"
    assert held_text(job) == f"{why}: hpcdl resume 1 tries again"


def test_a_job_that_was_held_may_be_cancelled() -> None:
    draft, rules = draft_of(0), Rules(poison_limit_infrastructure=1)
    killed(draft, 5, rules=rules)
    draft.add(ev.CancelRequested(1), 2.0)
    for event in conclusions(draft.world, [1], 2.0, rules):
        draft.add(event, 2.0)
    assert draft.world.jobs[1].outcome is JobState.CANCELLED


@pytest.mark.parametrize(("more", "fruitless"), [({}, 9), ({"resumes": "out-*"}, 1), ({"signal": "hf"}, 1)])
def test_of_what_a_program_saves_by_itself_nothing_is_known(more: dict[str, object], fruitless: int) -> None:
    draft = Draft(World())
    draft.add(ev.JobSubmitted(1, replace(JobSpec(("train",), "j"), **more), "r"), 0.0)  # type: ignore[arg-type]
    for step in range(1, 10):
        job = killed(draft, step)
    assert job.fruitless == fruitless


def test_what_another_start_cannot_mend_ends_the_job_early() -> None:
    draft = draft_of(0)
    no: dict[str, Any] = {"signal": None, "hint": Cause.INFRASTRUCTURE, "detail": "no folder", "permanent": True}
    assert [killed(draft, 5, **no).outcome for _ in range(3)] == [None, None, JobState.FAILED]
    assert draft.world.jobs[1].last.detail == "poison guard: 3 times the same at step 5: no folder"
    assert draft.world.jobs[1].last.cause is Cause.INFRASTRUCTURE


def test_stale_claims_do_not_spend_retries() -> None:
    draft = draft_of(0)
    number = 1
    draft.add(ev.StartRequested(1, number, ("n1",), PLACED), 1.0)
    draft.add(ev.Exited(1, number, 1, "n1", code=75, attached=True), 1.0)
    draft.add(ev.GpusFreed(1, number, 1, "n1"), 1.0)
    for event in conclusions(draft.world, [1], 1.0, Rules()):
        draft.add(event, 1.0)
    job = draft.world.jobs[1]
    assert (job.outcome, job.failures.retries_used, job.last.cause) == (None, 0, Cause.INFRASTRUCTURE)


def test_a_job_resumes_from_its_last_checkpoint() -> None:
    draft = draft_of(1)
    draft.add(ev.StartRequested(1, 1, ("n1",), PLACED), 1.0)
    draft.add(ev.Saved(1, 1, 1, "n1", step=20), 1.0)
    draft.add(ev.Exited(1, 1, 1, "n1", code=1, step=33), 1.0)
    draft.add(ev.GpusFreed(1, 1, 1, "n1"), 1.0)
    for event in conclusions(draft.world, [1], 1.0, Rules()):
        draft.add(event, 1.0)
    assert draft.world.jobs[1].progress.step == 20


@pytest.mark.parametrize("code, outcome", [(127, JobState.FAILED), (126, JobState.FAILED), (1, None)])
def test_a_command_that_is_not_there_spends_no_retries(code: int, outcome: JobState | None) -> None:
    cluster = Cluster({"n1": 1})
    cluster.submit(JobSpec(("nosuch",), "j", retries=5, steps=50, profile="plain"))
    cluster.run(3.0)
    (incarnation,) = cluster.job(1).live
    report = ev.Exited(1, incarnation.number, 1, "n1", code=code)
    draft = Draft(cluster.world)
    draft.add(report, cluster.now)
    draft.add(ev.GpusFreed(1, incarnation.number, 1, "n1"), cluster.now)
    (ended,) = conclusions(draft.world, [1], cluster.now, Rules())
    assert isinstance(ended, ev.IncarnationEnded)
    assert (ended.cause, ended.final) == (Cause.USER_ERROR, outcome)


def test_a_retry_has_all_retries_and_forgets_no_failure() -> None:
    draft = draft_of(1)
    for at, failures in ((1.0, 2), (10.0, 4)):
        assert run_once(draft, 1, at, step=3).outcome is None
        job = run_once(draft, 1, at + 1, step=4)
        assert (job.outcome, job.failures.total, job.failures.retries_used) == (JobState.FAILED, failures, 2)
        draft.add(ev.JobRetried(1, failures=job.failures.total), at + 2)
        assert draft.world.jobs[1].failures == FailureHistory(failures)
    draft = draft_of(0)
    run_once(draft, 1, 1.0)
    draft.add(ev.decode("JobRetried", {"job": 1}), 2.0)
    assert draft.world.jobs[1].failures.total == 0, "the events of earlier versions mean what they meant"
