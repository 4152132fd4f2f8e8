"""From commands of users, agents and ticks to events: each is checked against the world as the batch leaves it.

One intake for each step of the Controller. What takes more than a few lines is decided in the other files of this
folder. Nothing is recorded here: the Controller commits the draft, and that acknowledges the commands.
"""

from collections.abc import Callable, Hashable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cache, singledispatchmethod
from typing import Any, cast

from hpcdl.core.fold.fold import Draft
from hpcdl.core.fold.incarnations import accepts
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import CommandRefused, Request
from hpcdl.core.model.notice import NoticeRules
from hpcdl.core.model.objectives import OBJECTIVES
from hpcdl.core.model.pilot import BY_USER, Pilot
from hpcdl.core.model.plan import Policies, Profiles, UnknownPolicy
from hpcdl.core.model.units import one_of, seconds_text
from hpcdl.core.model.world import Job, JobState, World
from hpcdl.core.rules import (
    batch_poll,
    deadlines,
    light_runs,
    notices,
    quarantine,
    resumes,
    retention,
    time_limits,
    unfit_nodes,
)
from hpcdl.core.rules.endings import Rules, conclusions
from hpcdl.core.rules.exemption import STARTS
from hpcdl.core.rules.gpu_memory import gpu_memory_events
from hpcdl.core.rules.idle_gpus import idle_gpu_events
from hpcdl.core.rules.jobs import Submitting, check_annotations, check_priority, existing_job, preemptible, unfinished
from hpcdl.core.rules.stalls import stall_events


@dataclass(frozen=True, slots=True)
class Settings:
    """What the Controller is configured with; see conf/hpcdl.yaml. Times are in seconds."""

    agent_lease_s: float = 600.0  # after which an agent without a daemon ends its trainers
    lease_margin_s: float = 60.0  # so much later, and after the longest grace period there, its node is lost
    rules: Rules = field(default_factory=Rules)
    max_jobs_a_submit: int = 10_000
    leave_margin_s: float = 30.0  # so long before its end a node is left, and the slowest save there earlier
    notices: NoticeRules = field(default_factory=NoticeRules)
    stall_s: float | None = 0.0  # as `stalls.limit_s` takes it
    avoid_s: float = 3600.0  # for which a GPU with a fault is excluded the first time
    avoid_failures: int = 0  # so many failures of several jobs in a row on a GPU exclude it, too; 0: never
    exempt_starts: float = STARTS  # see `exemption.STARTS`; 0: policies preempt whenever they want to
    sharing: bool = False  # jobs that agreed to it may be backgrounds, under policies that leave it to this
    batch_system: str = ""  # of which jobs may wait for batch jobs; "": none


Late = Callable[[World, Mapping[int, Request]], Any]
"""An answer that is made after the commit, from the world and the pending requests as they then are."""


class Intake:
    """One batch of commands on one draft."""

    def __init__(
        self,
        draft: Draft,
        now: float,
        *,
        policies: Policies,
        profiles: Profiles,
        settings: Settings,
        pending: Mapping[int, Request],
        missed: MutableMapping[str, int],
    ) -> None:
        """`pending`: requests that are not taken yet, by id. `missed`: see `batch_poll.poll_events`."""
        self.draft = draft
        self.now = now
        self.settled: list[int] = []
        self._policies = policies
        self._settings = settings
        self._pending = pending
        self._missed = missed
        self._touched: dict[int, None] = {}
        self._profiles = profiles
        self._seen: dict[str, int] = {}

    def take(self, command: cmd.Command) -> Any:
        """Adds the command's events. Returns its answer, or a `Late` one. Raises CommandRefused."""
        return _taker(cast(Hashable, type(command)))(self, command)

    def finish(self) -> None:
        """Adds what follows from the batch, until nothing more does: an ending may end jobs that waited for it."""
        for node, number in self._seen.items():
            self._add(ev.ReportsSeen(node, number))
        touched = self._touched
        while touched:
            events = conclusions(self.draft.world, touched, self.now, self._settings.rules)
            touched = {}
            for event in events:
                self._add(event)
                if isinstance(event, ev.JobEvent):
                    touched[event.job] = None
                if isinstance(event, ev.JobEnded):
                    touched |= dict.fromkeys(self.draft.world.awaited.get(event.job, ()))

    def _add(self, event: ev.Event, at: float | None = None) -> None:
        """Adds the event, and what follows from it at once: notifications, what is excluded and left because of it."""
        before = self.draft.world.jobs.get(event.job) if isinstance(event, ev.TrainerReady) else None
        self.draft.add(event, self.now if at is None else at)
        for notice in notices.notices_of(self.draft.world, event, self.now, self._settings.notices):
            self.draft.add(notice, self.now)
        if isinstance(event, ev.TrainerReady) and before is not None:
            behind = resumes.resumed_behind(before, event)
            if behind is not None:
                self._add(behind)
        elif isinstance(event, ev.Progressed):
            if why := light_runs.measured(self.draft.world.jobs[event.job]):
                self._add(ev.CancelRequested(event.job, why))
        elif isinstance(event, ev.GpuAvoided):
            for preempt in list(quarantine.moved(self.draft.world, event)):
                self._add(preempt)
        elif isinstance(event, ev.IncarnationEnded):
            settings = self._settings
            for found in quarantine.suspected(
                self.draft.world, event, self.now, settings.avoid_failures, settings.avoid_s
            ):
                self._add(found)
            for each in list(unfit_nodes.exclusions(self.draft.world, event, self.now, settings.avoid_s)):
                self._add(each)

    @singledispatchmethod
    def _take(self, command: Any) -> Any:
        raise TypeError(f"no such command: {command!r}")

    # --- users -----------------------------------------------------------------------------------------------------

    @_take.register
    def _(self, command: cmd.Submit) -> tuple[int, ...]:
        return self._submitting().take(command)

    @_take.register
    def _(self, command: cmd.Retry) -> cmd.Retried:
        return self._submitting().retry(command)

    @_take.register
    def _(self, command: cmd.Hold) -> None:
        self._submitting().hold(command)

    @_take.register
    def _(self, command: cmd.Release) -> None:
        if self._unfinished(command.job).held:
            self._add(ev.JobReleased(command.job))

    @_take.register
    def _(self, command: cmd.Annotate) -> None:
        check_annotations(existing_job(self.draft.world, command.job), command.changes)
        self._add(ev.JobAnnotated(command.job, command.changes))

    @_take.register
    def _(self, command: cmd.SetPriority) -> None:
        job, priority = self._unfinished(command.job), check_priority(command.priority)
        if job.spec.priority != priority:
            self._add(ev.PriorityChanged(command.job, priority))

    @_take.register
    def _(self, command: cmd.Preempt) -> None:
        running = preemptible(self.draft.world, self._unfinished(command.job))
        if not running.preempt:
            self._add(ev.PreemptRequested(command.job, running.number))

    @_take.register
    def _(self, command: cmd.Drilled) -> None:
        existing_job(self.draft.world, command.job)
        self._add(ev.JobDrilled(command.job, command.drill))

    @_take.register
    def _(self, command: cmd.Cancel) -> None:
        job = self.draft.world.jobs.get(command.job)
        if job is not None and (job.outcome is JobState.CANCELLED or job.cancelling):
            return
        self._unfinished(command.job)
        self._add(ev.CancelRequested(command.job))
        self._touched[command.job] = None

    @_take.register
    def _(self, command: cmd.Retire) -> int:
        busy = (request.job for request in self._pending.values())
        jobs = retention.jobs_to_retire(self.draft.world, self.now, command.keep, busy)
        if jobs:
            self._add(ev.JobsRetired.of(jobs))
        return len(jobs)

    def _submitting(self) -> Submitting:
        most, system = self._settings.max_jobs_a_submit, self._settings.batch_system
        return Submitting(self.draft, self.now, self._profiles, most, self._add, self._touched, system)

    def _unfinished(self, number: int) -> Job:
        return unfinished(self.draft.world, number)

    @_take.register
    def _(self, command: cmd.ChoosePolicy) -> None:
        try:
            self._policies.make(command.policy)
        except UnknownPolicy as error:
            raise CommandRefused(str(error), "unknown-policy") from error
        if self.draft.world.policy != command.policy:
            self._add(ev.PolicyChosen(command.policy))

    @_take.register
    def _(self, command: cmd.ChooseObjective) -> None:
        if command.objective not in OBJECTIVES:
            raise CommandRefused(
                f"no objective {command.objective!r}; {one_of(command.objective, OBJECTIVES)}", "unknown-objective"
            )
        if self.draft.world.objective != command.objective:
            self._add(ev.ObjectiveChosen(command.objective))

    @_take.register
    def _(self, command: cmd.Stop) -> None:
        world = self.draft.world
        if not world.stopping or (command.now and not world.stopping_now):
            self._add(ev.DaemonStopping(command.now))

    # --- agents ----------------------------------------------------------------------------------------------------

    @_take.register
    def _(self, command: cmd.Hello) -> Late:
        def welcome(world: World, pending: Mapping[int, Request]) -> cmd.Welcome:
            node = world.nodes.get(command.node)
            seen = node.reports_seen if node is not None and node.log_id == command.log_id else 0
            waiting = {
                (request.job, request.incarnation)
                for request in pending.values()
                if request.kind == "start" and request.node == command.node
            }
            return cmd.Welcome(world.fence, seen, tuple(_expected(world, command.node, waiting)))

        return welcome

    @_take.register
    def _(self, command: cmd.Inventory) -> Late:
        joined = ev.NodeJoined(
            command.node,
            command.gpus,
            command.cpus,
            command.memory_mib,
            command.agent_pid,
            command.boot_id,
            command.log_id,
            command.emulated,
            command.until,
            command.place,
            command.allocation,
            command.address,
        )
        known = self.draft.world.nodes.get(command.node)
        if known is not None and known.log_id != command.log_id:
            self._seen.pop(command.node, None)  # numbers of another log
        self._add(joined)

        def answer(world: World, pending: Mapping[int, Request]) -> cmd.Joined:
            return cmd.Joined(tuple(request for request in pending.values() if request.node == command.node))

        return answer

    @_take.register
    def _(self, command: cmd.AgentReport) -> None:
        node = self.draft.world.nodes.get(command.node)
        if node is None or node.log_id != command.log_id:
            raise CommandRefused("a report came before the inventory", "protocol")
        if command.number is not None:
            if command.number <= self._seen.get(command.node, node.reports_seen):
                return
            self._seen[command.node] = command.number
        event = command.event
        try:
            if isinstance(event, ev.Report):
                if event.node == command.node and accepts(self.draft.world, event):
                    self._add(event, self.now - max(0.0, event.age_s))
                    self._touched[event.job] = None
            elif isinstance(event, ev.TroubleSeen) or (isinstance(event, ev.GpuChanged) and event.node == command.node):
                self._add(event)
            elif isinstance(event, ev.GpuFaulted) and event.node == command.node:
                self._add(event)
                avoided = quarantine.faulted(self.draft.world, event, self.now, self._settings.avoid_s)
                if avoided is not None:
                    self._add(avoided)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            # Without an answer the agent would send it again for ever, so it is recorded as trouble and dropped. Most
            # likely it is an IllegalEvent, whose message says what the job is.
            trouble = f"{type(error).__name__}: {error}"[:1000]
            self._add(ev.TroubleSeen(f"report {command.number} of {command.node}", trouble))

    @_take.register
    def _(self, command: cmd.Taken) -> None:
        if command.request in self._pending:
            self.settled.append(command.request)

    @_take.register
    def _(self, command: cmd.AgentGone) -> None:
        node = self.draft.world.nodes.get(command.node)
        if node is not None and node.connected:
            self._touched |= dict.fromkeys(_jobs_on(self.draft.world, command.node))
            self._add(ev.NodeSilent(command.node, command.reason))

    @_take.register
    def _(self, command: cmd.NodeGone) -> None:
        self._lose(command.node, command.reason)

    @_take.register
    def _(self, command: cmd.Drain) -> None:
        node = self.draft.world.nodes.get(command.node)
        if node is None or node.lost:
            raise CommandRefused(f"there is no node {command.node!r}: hpcdl nodes lists them", "unknown-node")
        if (node.leaving, node.until) != (command.now, command.until):
            self._add(ev.NodeLeaves(command.node, command.until, command.now, command.reason))

    @_take.register
    def _(self, command: cmd.Avoid | cmd.Lift) -> None:
        self._add(quarantine.wished(self.draft.world, command, self.now))

    def _lose(self, node: str, reason: str) -> None:
        known = self.draft.world.nodes.get(node)
        if known is None or known.lost:
            return
        self._touched |= dict.fromkeys(_jobs_on(self.draft.world, node))
        self._add(ev.NodeLost(node, reason))

    # --- the batch system ------------------------------------------------------------------------------------------

    @_take.register
    def _(self, command: cmd.BatchSeen) -> None:
        found = batch_poll.poll_events(
            self.draft.world, command.jobs, self._missed, command.asked_at, command.own, command.system
        )
        for event in list(found):
            if isinstance(event, ev.NodeLost):
                self._lose(event.node, event.reason)
            else:
                self._add(event)
            if isinstance(event, ev.BatchDependencyEnded):
                self._touched |= dict.fromkeys(self.draft.world.awaited_batch.get(event.batch, ()))

    @_take.register
    def _(self, command: cmd.PilotTaken) -> None:
        if not self._pilot(command.pilot).batch_id:
            self._add(ev.PilotSubmitted(command.pilot, command.batch_id))

    @_take.register
    def _(self, command: cmd.PilotNotTaken) -> None:
        self._pilot(command.pilot)
        self._add(ev.PilotRefused(command.pilot, command.reason))

    @_take.register
    def _(self, command: cmd.PilotBack) -> None:
        pilot = self.draft.world.pilots.get(command.pilot)
        if pilot is not None and pilot.over and not pilot.cancelled:
            self._add(ev.PilotFound(command.pilot, command.job))

    @_take.register
    def _(self, command: cmd.CancelPilot) -> None:
        if not self._pilot(command.pilot).cancelled:
            self._add(ev.PilotCancelRequested(command.pilot, BY_USER))

    def _pilot(self, number: int) -> Pilot:
        pilot = self.draft.world.pilots.get(number)
        if pilot is None:
            raise CommandRefused(f"there is no pilot p{number}: hpcdl pilots --all lists them", "unknown-pilot")
        if pilot.over:
            raise CommandRefused(f"pilot p{number} is over already: {pilot.how}", "finished")
        return pilot

    # --- notices ---------------------------------------------------------------------------------------------------

    @_take.register
    def _(self, command: cmd.NoticesTaken | cmd.NoticesNotTaken | cmd.RetryNotices | cmd.DropNotice) -> None:
        for event in notices.answered(self.draft.world, command, self.now):
            self._add(event)

    @_take.register
    def _(self, command: cmd.Outlooks) -> None:
        for event in deadlines.deadline_events(self.draft.world, command.outlooks, self.now):
            self._add(event)

    # --- ourselves -------------------------------------------------------------------------------------------------

    @_take.register
    def _(self, command: cmd.Trouble) -> None:
        self._add(ev.TroubleSeen(command.where, command.detail))

    @_take.register
    def _(self, command: cmd.PlanMade) -> None:
        """Nothing is recorded of it: the Controller takes the plan when it decides."""

    @_take.register
    def _(self, command: cmd.Tick) -> None:
        world = self.draft.world
        for each in (
            *stall_events(world, command.still, self.now, self._settings.stall_s),
            *idle_gpu_events(world, command.idle),
            *gpu_memory_events(world, command.memory, self.now),
            *quarantine.expired(world, self.now),
            *time_limits.reached(world, self.now),
        ):
            self._add(each)
        world = self.draft.world
        for node in list(world.nodes.values()):
            if node.connected or node.lost:
                continue
            # Past its lease the agent suspends its trainers, and each of them has its own grace to do so.
            graces = [world.jobs[number].spec.grace_s for number in _jobs_on(world, node.name)]
            limit = self._settings.agent_lease_s + self._settings.lease_margin_s + max(graces, default=0.0)
            silent = self.now - node.since
            if silent > limit:
                self._lose(node.name, f"its agent was silent for {seconds_text(silent)}, and its lease has run out")


@cache
def _taker(kind: Hashable) -> Callable[[Intake, cmd.Command], Any]:
    """What takes commands of a kind. Looked up once, and not kept by an intake, which would hold itself alive."""
    found: Callable[[Intake, cmd.Command], Any] = vars(Intake)["_take"].dispatcher.dispatch(kind)
    return found


def _jobs_on(world: World, node: str) -> list[int]:
    return [
        number
        for number in world.live
        if any((part := inc.part(node)) is not None and not part.gone for inc in world.jobs[number].live)
    ]


def _expected(world: World, node: str, waiting: set[tuple[int, int]]) -> list[cmd.ExpectedIncarnation]:
    found = []
    for number in world.live:
        for incarnation in world.jobs[number].live:
            part = incarnation.part(node)
            if part is not None and not part.gone:
                taken = (number, incarnation.number) not in waiting
                newest = max(part.since, incarnation.membership)
                found.append(cmd.ExpectedIncarnation(number, incarnation.number, newest, taken))
    return found
