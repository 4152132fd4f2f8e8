"""From what users, agents and ticks ask to events: each command is checked against the world as the batch leaves it."""

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod
from typing import Any

from hpcdl.core import commands as cmd
from hpcdl.core import events as ev
from hpcdl.core import pilotevents as pe
from hpcdl.core.batching import polled
from hpcdl.core.commands import Refused
from hpcdl.core.endings import Rules, conclusions
from hpcdl.core.journal import Request
from hpcdl.core.lifecycle import Draft
from hpcdl.core.model import ECT_CLASSES, Job, JobSpec, JobState, World
from hpcdl.core.pilot import BY_USER, Pilot
from hpcdl.core.plan import Profiles
from hpcdl.core.policy import Policies, UnknownPolicy
from hpcdl.core.preempting import preemptible
from hpcdl.core.submitting import Submitting, unfinished
from hpcdl.core.transitions import accepts
from hpcdl.core.units import seconds_text

OBJECTIVES = ("jct", "makespan", "throughput", "efficiency", "priority", "deadline", "fair")
"""What a policy may be asked to aim for; each policy says which of them it heeds."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the Controller is configured with; see conf/hpcdl.yaml.

    `agent_lease_s`: seconds after which an agent without a daemon ends its trainers. Another `lease_margin_s` seconds
    later, and the longest grace of its jobs, its node is concluded to be lost. A node whose end is known is left
    `leave_margin_s` before it, and as long before that as the slowest save there takes.
    """

    agent_lease_s: float = 600.0
    lease_margin_s: float = 60.0
    rules: Rules = field(default_factory=Rules)
    max_jobs_a_submit: int = 10_000
    leave_margin_s: float = 30.0


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
        """`pending`: requests that are not taken yet, by id. `missed`: see `batching.polled`."""
        self.draft = draft
        self.now = now
        self.settled: list[int] = []
        self._policies = policies
        self._profiles = profiles
        self._settings = settings
        self._pending = pending
        self._missed = missed
        self._touched: dict[int, None] = {}
        self._seen: dict[str, int] = {}
        self._of_kind: Callable[[cmd.Command], Any] = self._take  # looked up once, not for each command

    def take(self, command: cmd.Command) -> Any:
        """Adds the command's events. Returns its answer, or a `Late` one. Raises Refused."""
        return self._of_kind(command)

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

    def _add(self, event: ev.Event, at: float | None = None) -> Iterable[int]:
        return self.draft.add(event, self.now if at is None else at)

    @singledispatchmethod
    def _take(self, command: Any) -> Any:
        raise TypeError(f"no such command: {command!r}")

    # --- users -----------------------------------------------------------------------------------------------------

    @_take.register
    def _(self, command: cmd.Submit) -> tuple[int, ...]:
        world = self.draft.world
        known = world.request_ids.get(command.request_id)
        if known is not None:
            return known
        most = self._settings.max_jobs_a_submit
        if not 1 <= len(command.specs) <= most:
            raise Refused(f"a submit takes 1 to {most} jobs, got {len(command.specs)}")
        if world.stopping:
            raise Refused("the daemon is stopping: submit again once it has been started", "stopping")
        self._refuse_shared_folders(command.specs)
        for spec in command.specs:
            missing = [number for number in spec.after if number not in world.jobs]
            if missing:
                raise Refused(f"there is no job {missing[0]} to wait for: hpcdl ls --all lists them", "unknown-job")
            if spec.profile is not None and spec.profile.lower() not in self._profiles.by_name:
                names = ", ".join(sorted({profile.name for profile in self._profiles.by_name.values()})) or "none"
                raise Refused(f"there is no profile {spec.profile!r}; there are {names}", "unknown-profile")
    @_take.register
    def _(self, command: cmd.Preempt) -> None:
        running = preemptible(self.draft.world, self._unfinished(command.job))
        if not running.preempt:
            self._add(ev.PreemptRequested(command.job, running.number))

    @_take.register
    def _(self, command: cmd.Drilled) -> None:
        if command.job not in self.draft.world.jobs:
            raise Refused(f"there is no job {command.job}: hpcdl ls --all lists them", "unknown-job")
        self._add(ev.JobDrilled(command.job, command.drill))

        specs = [self._with_deadline(spec) for spec in command.specs]
        ids = []
        for spec in specs:
            number = self.draft.world.next_job
            self._add(ev.JobSubmitted(number, spec, command.request_id))
            self._touched[number] = None
            ids.append(number)
        return tuple(ids)

    def _with_deadline(self, spec: JobSpec) -> JobSpec:
        """The job with its deadline as a time. Raises Refused for one that is past or cannot be worked out."""
        if spec.ect is None:
            if spec.deadline is not None and spec.deadline < self.now:
                ago = seconds_text(self.now - spec.deadline)
                raise Refused(f"the deadline was {ago} ago: choose a later one, +2h for example", "deadline")
            return spec
        profile = self._profiles.by_name.get(spec.profile.lower()) if spec.profile else None
        if profile is None or spec.steps is None:
            raise Refused(
                f"--deadline {spec.ect} is reckoned from the time on one GPU: it needs --profile and --steps "
                "(or give a time: +2h, 18:30)",
                "deadline",
            )
        alone_s = profile.seconds_to_finish(0, spec.steps, 1)
        return replace(spec, deadline=self.now + ECT_CLASSES[spec.ect] * alone_s)

    def _refuse_shared_folders(self, specs: tuple[JobSpec, ...]) -> None:
        """Two jobs in one checkpoint folder would resume from each other's checkpoints; one after the other may."""
        if all(spec.checkpoint_dir is None for spec in specs):
            return
        world = self.draft.world
        users: dict[str, list[int]] = {}
        for number in world.active:
            users.setdefault(world.jobs[number].spec.checkpoint_dir or "", []).append(number)
        taken: set[str] = set()
        for folder, after in ((spec.checkpoint_dir, spec.after) for spec in specs if spec.checkpoint_dir):
            before = _all_before(world, after) if folder in users else set()
            user = next((number for number in users.get(folder, ()) if number not in before), None)
            if user is not None:
                raise Refused(
                    f"job {user} checkpoints into {folder} and is not finished: choose another --checkpoint-dir, "
                    f"or wait for it with --after {user}",
                    "checkpoint-dir",
                )
            if folder in taken:
                raise Refused(f"two jobs of one submit cannot both checkpoint into {folder}", "checkpoint-dir")
            taken.add(folder)

    @_take.register
    def _(self, command: cmd.Hold) -> None:
        job = self._unfinished(command.job)
        if job.cancelling:
            raise Refused(f"job {command.job} is being cancelled: there is nothing to suspend", "finished")
        if not job.held:
            self._add(ev.JobHeld(command.job))

    @_take.register
    def _(self, command: cmd.Release) -> None:
        if self._unfinished(command.job).held:
            self._add(ev.JobReleased(command.job))

    @_take.register
    def _(self, command: cmd.Cancel) -> None:
        job = self.draft.world.jobs.get(command.job)
        if job is not None and (job.outcome is JobState.CANCELLED or job.cancelling):
            return
        self._unfinished(command.job)
        self._add(ev.CancelRequested(command.job))
        self._touched[command.job] = None

    def _unfinished(self, number: int) -> Job:
        job = self.draft.world.jobs.get(number)
        if job is None:
            raise Refused(f"there is no job {number}: hpcdl ls --all lists them", "unknown-job")
        if job.finished:
            raise Refused(f"job {number} is {job.outcome} already: hpcdl show {number}", "finished")
        return job

    @_take.register
    def _(self, command: cmd.ChoosePolicy) -> None:
        try:
            self._policies.make(command.policy)
        except UnknownPolicy as error:
            raise Refused(str(error), "unknown-policy") from error
        if self.draft.world.policy != command.policy:
            self._add(ev.PolicyChosen(command.policy))

    @_take.register
    def _(self, command: cmd.ChooseObjective) -> None:
        if command.objective not in OBJECTIVES:
            raise Refused(f"no objective {command.objective!r}; there are {', '.join(OBJECTIVES)}", "unknown-objective")
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
            raise Refused("a report came before the inventory", "protocol")
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
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            # Without an answer the agent would send it again for ever, so it is recorded as trouble and dropped. Most
            # likely it is an IllegalEvent, whose message tells the job's story.
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
            raise Refused(f"there is no node {command.node!r}: hpcdl nodes lists them", "unknown-node")
        if (node.leaving, node.until) != (command.now, command.until):
            self._add(ev.NodeLeaves(command.node, command.until, command.now, command.reason))

    def _lose(self, node: str, reason: str) -> None:
        known = self.draft.world.nodes.get(node)
        if known is None or known.lost:
            return
        self._touched |= dict.fromkeys(self._add(ev.NodeLost(node, reason)))

    # --- the batch system ------------------------------------------------------------------------------------------

    @_take.register
    def _(self, command: cmd.BatchSeen) -> None:
        for event in list(polled(self.draft.world, command.jobs, self._missed, command.asked_at)):
            if isinstance(event, ev.NodeLost):
                self._lose(event.node, event.reason)
            else:
                self._add(event)

    @_take.register
    def _(self, command: cmd.PilotTaken) -> None:
        if not self._pilot(command.pilot).batch_id:
            self._add(pe.PilotSubmitted(command.pilot, command.batch_id))

    @_take.register
    def _(self, command: cmd.PilotNotTaken) -> None:
        self._pilot(command.pilot)
        self._add(pe.PilotRefused(command.pilot, command.reason))

    @_take.register
    def _(self, command: cmd.CancelPilot) -> None:
        if not self._pilot(command.pilot).cancelled:
            self._add(pe.PilotCancelRequested(command.pilot, BY_USER))

    def _pilot(self, number: int) -> Pilot:
        pilot = self.draft.world.pilots.get(number)
        if pilot is None:
            raise Refused(f"there is no pilot p{number}: hpcdl pilots --all lists them", "unknown-pilot")
        if pilot.over:
            raise Refused(f"pilot p{number} is over already: {pilot.how}", "finished")
        return pilot

    # --- ourselves -------------------------------------------------------------------------------------------------

    @_take.register
    def _(self, command: cmd.Trouble) -> None:
        self._add(ev.TroubleSeen(command.where, command.detail))

    @_take.register
    def _(self, command: cmd.Tick) -> None:
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


def _all_before(world: World, after: Iterable[int]) -> set[int]:
    """These jobs, and those that they wait for in turn."""
    found, more = set[int](), list(after)
    while more:
        job = world.jobs.get(more.pop())
        if job is not None and job.id not in found:
            found.add(job.id)
            more += job.spec.after
    return found


def _jobs_on(world: World, node: str) -> list[int]:
    return [
        number
        for number in world.live
        if any((part := inc.part(node)) is not None and not part.gone for inc in world.jobs[number].live)
    ]


def _expected(world: World, node: str, waiting: set[tuple[int, int]]) -> list[cmd.Expected]:
    found = []
    for number in world.live:
        for incarnation in world.jobs[number].live:
            part = incarnation.part(node)
            if part is not None and not part.gone:
                taken = (number, incarnation.number) not in waiting
                newest = max(part.since, incarnation.membership)
                found.append(cmd.Expected(number, incarnation.number, newest, taken))
    return found
