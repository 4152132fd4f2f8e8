"""Which events are notified, to whom and in which words: decided where the event is recorded, in the same commit.

So none is lost, and one may come twice. `daemon/delivery` sends them; nothing here waits for a destination.
"""

from collections.abc import Iterable, Iterator

from hpcdl.core.fold.effect import EFFECTS
from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import CommandRefused, DropNotice, NoticesNotTaken, NoticesTaken, RetryNotices
from hpcdl.core.model.notice import BEHIND, LOST, PASSED, NoticeKind, NoticeRules, redacted
from hpcdl.core.model.transitions import state_of
from hpcdl.core.model.world import Job, JobState, World, by_attempt, has_own_handler, held_text
from hpcdl.core.rules.deadlines import deadline_text
from hpcdl.core.rules.idle_gpus import idle_text


def notices_of(world: World, event: ev.Event, now: float, rules: NoticeRules) -> Iterator[ev.NoticeDue]:
    """The notice of an event that is in `world` already, if anybody wants one."""
    what = EFFECTS[type(event)].notifies(event)
    if what is None or what not in rules.kinds:
        return
    if what is NoticeKind.PREEMPTION and world.stopping:
        return  # whoever stops the daemon knows
    if isinstance(event, ev.GpuAvoided):
        if rules.destinations:
            name = event.node if event.index is None else f"{event.node}:{event.index}"
            yield ev.NoticeDue(world.next_notice, what, 0, name, rules.destinations, "avoided", "", event.reason)
        return
    job = world.jobs[event.job]  # type: ignore[attr-defined]
    destinations = job.spec.notify or rules.destinations
    if not destinations:
        return
    cause, detail = _why(job, event, now)
    state = str(event.state) if isinstance(event, ev.JobEnded) else str(state_of(job))
    yield ev.NoticeDue(world.next_notice, what, job.id, job.spec.name, destinations, state, cause, detail)


def _why(job: Job, event: ev.Event, now: float) -> tuple[str, str]:
    if isinstance(event, ev.JobEnded):
        late = job.spec.deadline is not None and event.state is JobState.DONE and now > job.spec.deadline
        cause = "" if job.last.cause is None else str(job.last.cause)
        return cause, event.detail or ("after its deadline" if late else "")
    if isinstance(event, ev.IncarnationEnded) and event.hold:
        return str(event.cause) if event.missing is None else LOST, held_text(job)
    if isinstance(event, ev.IncarnationEnded):
        own = "it starts over" if job.spec.resumes is None else "its program resumes by itself"
        if has_own_handler(job):
            own = "hpcdl does not know where its program resumes"
        resumes = own if event.step is None else f"it resumes from step {event.step}"
        return str(event.cause), f"{event.detail}; {resumes}" if event.detail else resumes
    if isinstance(event, ev.CheckpointDamaged):
        return "damaged", f"step {event.step}: {event.why}; it is kept as {event.path}, and the one before is used"
    if isinstance(event, ev.ResumedBehind):
        at = f"step {event.step}, and step {event.saved} was saved{by_attempt(event.saved_by)}"
        if event.step:
            return BEHIND, f"it goes on from {at}; hpcdl why {job.id}"
        return LOST, f"it begins at {at}: is its checkpoint folder there, and does the script restore its step?"
    if isinstance(event, ev.GpusIdle):
        return "idle", idle_text(event.held, event.gpus)
    if isinstance(event, ev.DeadlineSlipped):
        return PASSED if event.passed else "forecast", deadline_text(job, event)
    if isinstance(event, ev.JobStalled) and job.running is not None and job.running.stall is not None:
        return "stalled", job.running.stall.text(job.progress.step, now)
    return "", ""


def answered(
    world: World, command: NoticesTaken | NoticesNotTaken | RetryNotices | DropNotice, now: float
) -> list[ev.Event]:
    """What a delivery, or its user's wish, amounts to. Raises CommandRefused."""
    if isinstance(command, NoticesTaken):
        return [ev.NoticesSent(command.destination, command.notices)] if command.notices else []
    if isinstance(command, NoticesNotTaken):
        at, to = now + command.pause_s, command.destination
        if not any(to in notice.waiting for number in command.notices if (notice := world.notices.get(number))):
            return []  # they were dropped meanwhile
        failed = ev.NoticesFailed(to, command.notices, command.attempt, command.why, at)
        return [failed, ev.NoticesGivenUp(to, command.give_up, command.why)] if command.give_up else [failed]
    if isinstance(command, RetryNotices):
        waits = world.routes or any(notice.given_up for notice in world.notices.values())
        return [ev.NoticesRetried()] if waits else []
    if command.notice not in world.notices:
        raise CommandRefused(
            f"no notification {command.notice} waits: hpcdl notifications lists them", "unknown-notice"
        )
    return [ev.NoticeDropped(command.notice)]


def failing(world: World, destinations: Iterable[str]) -> list[str]:
    """Which of these destinations do not take their notices, each with why, and nothing secret of them."""
    routes = ((each, world.routes.get(each)) for each in destinations)
    return [f"{redacted(each)}: {route.why}" for each, route in routes if route is not None]
