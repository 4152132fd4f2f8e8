"""Conclusions from facts: why an incarnation ended, and what becomes of its job.

Agents and batch systems report; only this concludes. Decided by the world and the time alone; what is concluded is
recorded, so that a replay needs none of these rules.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import structs

from hpcdl.core.model.events import Event, IncarnationEnded, JobEnded, LeftBehind
from hpcdl.core.model.incarnation import (
    OUTSIDE_CODES,
    Cause,
    Incarnation,
    IncarnationState,
    Part,
    killed_from_outside,
)
from hpcdl.core.model.notice import POISON
from hpcdl.core.model.transitions import FAILURES, UNTRAINED
from hpcdl.core.model.world import Job, JobState, World, cancelled_text, has_own_handler
from hpcdl.core.rules import lost_peers, time_limits
from hpcdl.core.rules.dependencies import never_why
from hpcdl.core.rules.resumes import missing_text
from hpcdl.core.rules.unfit_nodes import fails_everywhere, unfit_nodes

NOT_RUN = (126, 127)
"""Exit codes, of shells and of our starts, of a command that may not be run or is not there."""

STALE_EXIT = 75
"""A trainer that saw a newer claim in its checkpoint folder exits with this code."""


CUT_OFF = "its script's end was not over within the grace period, and starts over"


@dataclass(frozen=True, slots=True)
class Rules:
    """How failures are treated. Counted are those that are the same at the same step, and those that are no error of
    its program's and between which it got no further, the same or not."""

    poison_limit: int = 3  # so many that are the same end the job
    poison_limit_infrastructure: int = 50  # so many do where they differ; where none is its program's, it is held
    pause_s: float = 1.0  # seconds that the next start waits from the second on, doubled each time
    pause_max_s: float = 30.0  # the longest of these pauses, seconds


def conclusions(world: World, jobs: Iterable[int], now: float, rules: Rules) -> list[Event]:
    """The ends of incarnations and jobs that follow from the world, for these jobs; to be recorded with their causes.

    One round only: what these events cause in turn (a dependent job is cancelled) is found by folding them and calling
    again.
    """
    found: list[Event] = []
    for number in jobs:
        job = world.jobs.get(number)
        if job is None or job.finished:
            continue
        if job.live:
            found.extend(
                LeftBehind(job.id, inc.number, nodes) for inc in job.live if (nodes := _left_behind(world, inc))
            )
            ended = [inc for inc in job.live if inc.state is IncarnationState.EXITED]
            found.extend(_incarnation_ended(world, job, incarnation, now, rules) for incarnation in ended)
        else:
            found.extend(_job_ended(world, job))
    return found


def _left_behind(world: World, incarnation: Incarnation) -> tuple[str, ...]:
    """The nodes that alone keep an incarnation alive: it was to leave them, and their agents are silent."""
    left = tuple(part for part in incarnation.parts if not part.gone)
    for part in left:
        node = world.nodes.get(part.node)
        if not part.leaving or (node is not None and node.connected):
            return ()
    return tuple(part.node for part in left)


def _job_ended(world: World, job: Job) -> list[Event]:
    if job.verdict is not None:
        return [JobEnded(job.id, job.verdict.state, job.verdict.detail)]
    if job.cancelling:
        return [JobEnded(job.id, JobState.CANCELLED, cancelled_text(job))]
    if job.out_of_time:
        return [JobEnded(job.id, JobState.FAILED, time_limits.over_text(job))]
    never = never_why(world, job)
    return [JobEnded(job.id, JobState.CANCELLED, never)] if never else []


def cause_of(job: Job, incarnation: Incarnation) -> tuple[Cause, str]:
    """Why an incarnation that is EXITED ended, and the detail for people."""
    # How those ended that had been asked to leave, or had not joined yet, says nothing of the job.
    parts = tuple(part for part in incarnation.training if not part.leaving) or incarnation.parts
    codes = {part.code for part in parts if not part.lost}
    clean = codes <= {0} and not any(part.signal for part in parts)
    lost = next((part for part in parts if part.lost), None)
    if incarnation.ending is Cause.CANCELLED:
        return Cause.CANCELLED, cancelled_text(job)
    done, total = job.progress, job.progress.total if job.spec.total_is_known else None
    at_end = total is not None and done.step is not None and done.step >= total
    saved_all = at_end and total is not None and done.saved_step is not None and done.saved_step >= total
    suspended = incarnation.checkpoint if incarnation.checkpoint is not None and incarnation.checkpoint.final else None
    said_done = any(part.done for part in parts) and all(map(_finished, parts))
    in_end = suspended is None and (saved_all or said_done)
    if in_end and all(_came_to_its_end(part, incarnation.attached) for part in parts):
        worst = next((part for part in parts if part.code or part.signal), None)
        return Cause.DONE, "" if worst is None else f"its script had come to its end, {_how(worst)}"
    if suspended is not None and (clean or lost is not None or incarnation.ending is None):
        return Cause.SUSPENDED, f"saved at step {suspended.step}"
    if lost is not None:
        return Cause.NODE_LOST, f"node {lost.node}: {lost.detail}{_at_end(in_end)}"
    hinted = next((part for part in parts if part.hint is not None), None)
    # The rest of a job whose part on one node was taken away is ended for lack of it: still nobody's fault.
    taken = hinted is not None and hinted.hint is Cause.PREEMPTED and incarnation.ending is Cause.INFRASTRUCTURE
    if hinted is not None and hinted.hint is not None and (incarnation.ending is None or taken):
        return hinted.hint, f"{_how(hinted)}{_at_end(in_end)}"  # a clean exit at an unopened gate, say, is no DONE
    asked = {part.ended_by for part in parts} - {None}
    if clean and (not asked or ("end" not in asked and _ended_by_itself(job, incarnation, parts, at_end or said_done))):
        return Cause.DONE, ""
    if clean and asked <= {"suspend", "absence"}:
        cut = f"{CUT_OFF}: exit code 0 after a signal" if in_end and _has_saved_it(job) else ""
        return Cause.SUSPENDED, _kept_by_itself(job, parts) or cut or "exited at the suspend signal"
    failed = _failed_by_itself(job, incarnation, parts) if suspended is None else None
    if failed is not None:
        return Cause.USER_ERROR, _how(failed)
    culprit = _culprit(parts) if asked <= {"end"} else None
    stop = incarnation.stop
    if stop is not None and stop.cause is not None and (culprit is None or stop.cause is not Cause.INFRASTRUCTURE):
        return stop.cause, stop.detail
    if culprit is not None and culprit.hint is not None:
        return culprit.hint, _how(culprit)
    worst = culprit or next((part for part in parts if part.code or part.signal), parts[0])
    detail = _how(worst)
    if asked and asked <= {"suspend", "absence"} and in_end and culprit is None and _has_saved_it(job):
        return Cause.SUSPENDED, f"{CUT_OFF}: {detail}"
    unsaved = Cause.WALLTIME if job.out_of_time else Cause.PREEMPTED
    if asked and asked <= {"suspend", "absence"} and _untrained(job, incarnation):
        return unsaved, UNTRAINED
    if asked and asked <= {"suspend", "absence"} and (saved := _kept_by_itself(job, parts)):
        return Cause.SUSPENDED, f"{saved}, {detail}"
    if asked and culprit is None and job.spec.resumes:
        seen = next((f", the newest is {part.older}" for part in parts if part.older), "")
        return unsaved, f"nothing new at {job.spec.resumes} since it was asked{seen}, {detail}"
    if asked and culprit is None and has_own_handler(job):
        return unsaved, f"hpcdl saw no checkpoint of its program, {detail}"
    if asked and culprit is None:
        return unsaved, f"no checkpoint within the grace period, {detail}"
    if killed_from_outside(worst):
        return Cause.INFRASTRUCTURE, f"killed from outside{_at_end(in_end)}, {detail}"
    if worst.code == STALE_EXIT and worst.signal is None and incarnation.attached:
        return Cause.INFRASTRUCTURE, "a newer attempt had claimed its checkpoint folder"
    return Cause.USER_ERROR, detail


def _came_to_its_end(part: Part, attached: bool) -> bool:
    """Whether all of its script was run: what ended it then, a signal or a launcher's code, ended its teardown. Of a
    trainer that `attached` an exit with 0 after SIGTERM is none: it may have caught that."""
    asked = part.ended_by is not None and attached
    return not part.lost and (part.left or (part.code == 0 and part.signal is None and (part.by_itself or not asked)))


def _ended_by_itself(job: Job, incarnation: Incarnation, parts: Iterable[Part], complete: bool) -> bool:
    """Whether exits with 0 are ends of its script, though it was asked to go. A program may exit so because it caught a
    signal: one that does is not taken at its word, and of one that never attached only what was `complete` counts."""
    if not incarnation.attached:
        return complete
    return job.spec.resumes is None and not has_own_handler(job) and all(part.by_itself for part in parts)


def _has_saved_it(job: Job) -> bool:
    """Its newest checkpoint is of its last step: another attempt trains nothing."""
    return job.progress.saved_step is not None and job.progress.saved_step >= (job.progress.step or 0)


def _at_end(in_end: bool) -> str:
    return " at its script's end, which starts over" if in_end else ""


def _kept_by_itself(job: Job, parts: Iterable[Part]) -> str:
    """What is known of a program that resumes by itself: what was seen, or its user's word; else ""."""
    kept = next((part.kept for part in parts if part.kept), "")
    if kept:
        return f"its program saved {kept} by itself"
    return "its program resumes by itself" if job.spec.resumes == "" else ""


def _finished(part: Part) -> bool:
    """Whether it said that its training is complete, or ended well, unasked. Another part's word says nothing of it:
    where ranks do not wait for each other, one may be done while the writer trains, or is killed as it saves."""
    return part.done or (part.code == 0 and part.signal is None and part.ended_by is None)


def _untrained(job: Job, incarnation: Incarnation) -> bool:
    """Whether it is one of those that say when they begin to train, and had not said it; or was asked to go before its
    processes ran."""
    says = job.spec.signal == "hpcdl" and (incarnation.attached or job.can_suspend)
    stop, started_at = incarnation.stop, incarnation.started_at
    early = stop is not None and (started_at is None or stop.at <= started_at)
    return (says or early) and incarnation.training_start is None and incarnation.checkpoint is None


def _culprit(parts: Iterable[Part]) -> Part | None:
    """The part whose failure made the others end, or None if no part failed unasked.

    The others were ended because of it, or failed for lack of it, so what an agent gave a cause for comes first, then
    what was killed from outside, then what does not say that it lost a peer, then what ended first.
    """
    failed = [part for part in parts if part.ended_by is None and (part.hint or part.code or part.signal)]

    def order(part: Part) -> tuple[bool, bool, bool, float]:
        lost = lost_peers.COLLECTIVE.search(part.detail) is not None
        return part.hint is None, not killed_from_outside(part), lost, part.exited_at or 0.0

    return min(failed, key=order, default=None)


def _failed_by_itself(job: Job, incarnation: Incarnation, parts: Iterable[Part]) -> Part | None:
    """The part whose program failed while a suspend was pending, if one did: not for want of another part, and not in
    answer, as a program that handles the signal itself may."""
    if not incarnation.attached or job.spec.resumes is not None or has_own_handler(job) or _culprit(parts) is not None:
        return None
    asked = (part for part in parts if part.ended_by in ("suspend", "absence") and part.hint is None)
    own = (part for part in asked if part.by_itself and part.code)
    failed = (part for part in own if not killed_from_outside(part) and lost_peers.PEER.search(part.detail) is None)
    return min(failed, key=lambda part: part.exited_at or 0.0, default=None)


def _how(part: Part) -> str:
    if part.code is None and part.signal is None:  # it never ran
        return part.detail or "its end was not seen"
    ended = f"exit code {part.code}" if part.signal is None else f"ended by {part.signal}"
    if part.signal is None and part.hint is None and part.code in OUTSIDE_CODES:
        ended += f" ({OUTSIDE_CODES[part.code]} of a process below it)"
    return f"{ended}: {part.detail}" if part.detail else ended


def _incarnation_ended(world: World, job: Job, incarnation: Incarnation, now: float, rules: Rules) -> IncarnationEnded:
    cause, detail = cause_of(job, incarnation)
    codes = [part.code for part in incarnation.training if part.code and not part.leaving]
    if cause is Cause.STALLED:
        codes = []  # how it went once it was asked to is no news: it hung
    event = IncarnationEnded(
        job.id,
        incarnation.number,
        cause,
        reached=job.progress.step,
        step=job.progress.step if cause is Cause.DONE else job.progress.saved_step,
        code=codes[0] if codes else 0 if all(part.code == 0 for part in incarnation.parts) else None,
        detail=detail,
    )
    if incarnation.placement is None:
        return event
    unfit = unfit_nodes(job, incarnation)
    lasting = any(part.permanent for part in incarnation.parts)
    fruitless = _fruitless(job, incarnation, cause)
    missing = next((part for part in incarnation.parts if part.missing is not None), None)
    perhaps_own = missing is not None or lasting
    perhaps_own |= any(part.code == STALE_EXIT and part.signal is None for part in incarnation.parts)
    saved_by = job.saved_by if incarnation.checkpoint is None else incarnation.number
    event = structs.replace(event, fruitless=fruitless, unfit_nodes=unfit, perhaps_own=perhaps_own, saved_by=saved_by)
    again = job.failures.repeats + 1 if job.failures.signature == event.signature else 1
    # Ranks that failed alike again and again, started anew by their launcher, failed as often as the job did.
    again = max(again, max((part.repeats for part in incarnation.parts), default=1))
    pauses = again if cause is Cause.USER_ERROR else max(again, event.fruitless)
    if cause in FAILURES and pauses > 1:
        event = structs.replace(
            event, retry_at=now + min(rules.pause_max_s, rules.pause_s * 2.0 ** min(pauses - 2, 16))
        )
    permanent = lasting and fails_everywhere(world, job, unfit)
    final, why = _final(job, event, again, permanent, incarnation.end_at is not None, rules)
    if final is None and cause is Cause.OUT_OF_MEMORY and lasting and not _got_further(job, incarnation):
        final, why = JobState.FAILED, detail  # its own limit, which another attempt exceeds at the same place
    ends = again if incarnation.end_at is not None else 0
    hold = "" if final is not None or permanent else _hold(event, again, ends, rules)
    event = structs.replace(event, final=final, final_detail=why, hold=hold)
    if final is None and missing is not None and missing.missing is not None:
        hold = missing_text(missing.detail, missing.missing, saved_by)
        event = structs.replace(event, hold=hold, missing=missing.missing)
    return event


def _fruitless(job: Job, incarnation: Incarnation, cause: Cause) -> int:
    """How many attempts in a row failed without getting further, this one included: their restarts must have an end,
    however their failures differ. Errors of the program are bounded by its retries."""
    before = 0 if _got_further(job, incarnation) else job.fruitless
    return before + (cause in FAILURES and cause is not Cause.USER_ERROR)


def _got_further(job: Job, incarnation: Incarnation) -> bool:
    """Whether the next attempt begins at a later step than this one did; of what its program saves by itself nothing is
    known, and each step may count."""
    begun, saved = incarnation.progress, incarnation.checkpoint
    if saved is not None:
        return begun is None or saved.step > begun.ready_step
    if begun is None or (job.spec.resumes is None and not has_own_handler(job)):
        return False
    return begun.step > begun.ready_step


def _final(
    job: Job, ended: IncarnationEnded, again: int, permanent: bool, in_end: bool, rules: Rules
) -> tuple[JobState | None, str]:
    """What the job becomes after this end, or None where it goes on. `again`: how often it ended in this way;
    `permanent`: it will again, on whichever node. `in_end`: at the end of its script."""
    if ended.cause is Cause.DONE:
        return JobState.DONE, ended.detail
    if job.cancelling or ended.cause is Cause.CANCELLED:
        return JobState.CANCELLED, cancelled_text(job)
    if ended.cause is Cause.USER_ERROR and ended.code in NOT_RUN:
        return JobState.FAILED, ended.detail  # no retry finds it either
    if ended.cause is Cause.USER_ERROR and job.failures.retries_used >= job.spec.retries:
        spent = f" ({job.failures.retries_used} of {job.spec.retries} retries spent)" if job.spec.retries else ""
        return JobState.FAILED, f"{ended.detail}{spent}"
    if ended.cause not in FAILURES:
        return None, ""
    own = permanent or ended.cause in (Cause.USER_ERROR, Cause.OUT_OF_MEMORY)
    own = own or (ended.cause is Cause.STALLED and not in_end)
    if own and again >= rules.poison_limit:
        where = "" if ended.reached is None else f" at step {ended.reached}"
        return JobState.FAILED, f"{POISON}: {again} times the same{where}: {ended.detail}"
    if own and ended.fruitless >= rules.poison_limit_infrastructure:
        where = _without_checkpoint(ended)
        return JobState.FAILED, f"{POISON}: {ended.fruitless} failures {where}, at last: {ended.detail}"
    return None, ""


def _hold(ended: IncarnationEnded, again: int, ends: int, rules: Rules) -> str:
    """After what the job is held, "" where it goes on: it is not to use up machines on which it comes no further, and
    what was no fault of its program must not end it. `again`: how often it ended in this way; `ends`: of these, at the
    end of its script."""
    if ends >= rules.poison_limit and ended.cause in (Cause.INFRASTRUCTURE, Cause.STALLED):
        return f"its script's end was cut off {ends} times alike: {ended.detail}"
    if ended.cause is not Cause.INFRASTRUCTURE or max(again, ended.fruitless) < rules.poison_limit_infrastructure:
        return ""
    if ended.fruitless < again:
        return f"{again} failures alike that were not its program's, at last: {ended.detail}"
    return f"{ended.fruitless} failures {_without_checkpoint(ended)}, at last: {ended.detail}"


def _without_checkpoint(ended: IncarnationEnded) -> str:
    return "without a checkpoint" if ended.step is None else f"without a checkpoint after step {ended.step}"
