"""The Controller: one step at a time, given the time, and a Journal to write to. Daemon and simulator both call it.

A step is: inputs become events, and are recorded in one commit, which is what acknowledges them. Then, apart from
that, the policy is asked, its plan checked and reconciled, and plan and requests are recorded in a second commit.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from hpcdl.core.controller import sharing
from hpcdl.core.controller.deliberation import Aside, Deliberation
from hpcdl.core.controller.journal import Journal, JournalError
from hpcdl.core.controller.light_runs import with_light_runs, without_light_runs
from hpcdl.core.controller.livelock import LivelockGuard
from hpcdl.core.controller.reconcile import reconcile
from hpcdl.core.controller.view_builder import Views
from hpcdl.core.fold.effect import EFFECTS, Decision
from hpcdl.core.fold.fold import ChangeSet, Draft
from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import BatchSeen, Command, CommandRefused, PlanMade, Request, Tick
from hpcdl.core.model.pilot import Hole, PendingBatchJob
from hpcdl.core.model.plan import BadPlan, PilotPolicy, Plan, Policies, Policy, Profiles, Reasons, Targets, View, check
from hpcdl.core.model.world import Target, World
from hpcdl.core.rules import exemption
from hpcdl.core.rules.batch_poll import with_agents
from hpcdl.core.rules.departures import nodes_to_leave
from hpcdl.core.rules.intake import Intake, Settings

Decide: TypeAlias = Callable[[View], Plan]
"""`Policy.decide`, or `deliberate`."""

_BEGINS = (ev.TrainerReady, ev.Reformed, ev.Progressed)
"""By which an attempt may be known to train, so that it is known how long it is exempt from preemption."""


class Controller:
    """Owns the world. One thread calls it; nothing in it waits, and nothing in it knows what time it is."""

    def __init__(
        self,
        journal: Journal,
        policies: Policies,
        profiles: Profiles,
        settings: Settings | None = None,
        pilots: PilotPolicy | None = None,
        aside: Aside | None = None,
    ) -> None:
        """Loads the world from the journal. `pilots`: None where no batch system can be asked for nodes.

        `aside`: where policies deliberate; None: in `decide`, which then takes as long.
        """
        self.journal = journal
        self.policies = policies
        self.profiles = profiles
        self.settings = settings or Settings()
        self.world: World = journal.load()
        self.wake_at: float | None = None
        self.undecided = True
        self._ask = True
        self.reasons: Mapping[int, str] = Reasons()
        """Why each unfinished job stands where it stands, in the words of the last plan."""
        self.holes: tuple[Hole, ...] = ()
        """What idled in the batch system at the last poll."""
        self.waiting: tuple[PendingBatchJob, ...] = ()
        """Others' batch jobs that waited for nodes then."""
        self.solver = ""
        """Which solver the last plan is of, and what it has proven, in words."""
        self.pilot_notes: tuple[str, ...] = ()
        """Why there are no more pilots than there are."""
        self.on_recorded: Callable[[Sequence[ev.Recorded]], None] = lambda records: None
        """Called after each commit with what it recorded; must not fail."""
        self._pilots = pilots
        self._deliberation = None if aside is None else Deliberation(aside)
        self._missed: dict[str, int] = {}
        self._pending: dict[int, Request] = {request.id: request for request in journal.pending()}
        self._trouble = ""
        self._livelock = LivelockGuard()
        self._livelock_told = ""
        self._views = Views(self.settings.exempt_starts)
        self._touched: ChangeSet | None = None
        self._still: set[int] = set()

    def begin(self, event: ev.DaemonStarted, now: float, raised: ev.IdsRaised | None = None) -> None:
        """Records that a daemon took over, and from where ids go on where it found that. Raises JournalError."""
        draft = Draft(self.world)
        draft.add(event, now)
        if raised is not None:
            draft.add(raised, now)
        self._commit(draft, [], [])
        self.undecided = self._ask = True

    def step(self, inputs: Sequence[Command], now: float) -> list[Any]:
        """Records what the inputs amount to, in one commit. One answer each: a value, or the CommandRefused.

        Raises JournalError where the commit fails; then nothing has changed, and nothing is acknowledged.
        """
        draft = Draft(self.world)
        intake = Intake(
            draft,
            now,
            policies=self.policies,
            profiles=self.profiles,
            settings=self.settings,
            pending=self._pending,
            missed=self._missed,
        )
        answers: list[Any] = []
        for command in inputs:
            try:
                answers.append(intake.take(command))
            except CommandRefused as refusal:
                answers.append(refusal)
        intake.finish()
        decides = [EFFECTS[type(event)].decides(self.world, event) for _, event in draft.events]
        most = max(decides, default=Decision.NONE)
        self._commit(draft, [], intake.settled)
        if any(_is_news(event, asks) for (_, event), asks in zip(draft.events, decides, strict=True)):
            self._livelock.forget()
        # At every interval too: some steps are due to time alone (stragglers, a gate that is never reached).
        ticked = any(isinstance(command, Tick) for command in inputs)
        made = any(isinstance(command, PlanMade) for command in inputs)
        other = self._take_holes(inputs)
        wakes = self._exempt_ends([event for _, event in draft.events], now)
        self.undecided = self.undecided or ticked or made or other or wakes or most is not Decision.NONE
        self._ask = self._ask or ticked or other or most is Decision.ASK
        return [answer(self.world, self._pending) if callable(answer) else answer for answer in answers]

    def decide(self, now: float) -> list[Request]:
        """Asks the policy, checks and adopts its plan, and returns the requests to hand to the outbox.

        Where nothing happened but what the last plan waited for, and it is not yet time to ask again, that plan is
        carried on without asking. A policy that fails or breaks a promise changes nothing: the targets stay. Raises
        JournalError.
        """
        draft = Draft(self.world)
        asked = self._ask or (self.wake_at is not None and now >= self.wake_at)
        if asked or (self._deliberation is not None and self._deliberation.ready):
            wakes = self._replan(draft, now, asked)
        else:
            wakes = [] if self.wake_at is None else [self.wake_at]
        self._still.difference_update(draft.touched.jobs or ())  # those that the plan gives something else
        steps = reconcile(draft.world, now, self._still)
        for event in steps.events:
            draft.add(event, now)
        try:
            requests = self._commit(draft, steps.requests, [])
        except JournalError:
            self._trouble = self._livelock_told = ""  # it was not recorded: the next decision records it
            self._still.clear()
            self._ask = True
            raise
        if steps.wake_at is not None:
            wakes.append(steps.wake_at)
        self.wake_at = min(wakes, default=None)
        self.undecided = self._ask = False
        return requests

    def _exempt_ends(self, events: Sequence[ev.Event], now: float) -> bool:
        """Whether an attempt began to train: then the policy is asked again once it may be preempted."""
        found = False
        for event in events:
            job = self.world.jobs.get(event.job) if isinstance(event, _BEGINS) else None
            start = None if job is None or job.running is None else job.running.training_start
            if job is None or start is None or start.at != now:
                continue
            known = exemption.exemption(self.world, job, None, self.settings.exempt_starts)
            if known is not None and known.suspend_until > now:
                self.wake_at = min(known.suspend_until, self.wake_at or known.suspend_until)
                found = True
        return found

    def _take_holes(self, inputs: Sequence[Command]) -> bool:
        """Keeps the newest holes, and who waits; whether they are others than before."""
        before = (self.holes, self.waiting)
        for each in inputs:
            if isinstance(each, BatchSeen):
                self.holes = self.holes if each.holes is None else each.holes
                self.waiting = self.waiting if each.waiting is None else each.waiting
        return self._pilots is not None and before != (self.holes, self.waiting)

    def _replan(self, draft: Draft, now: float, asked: bool) -> list[float]:
        """Asks the policy and adds what its plan changes; when to ask again. `asked`: something has happened."""
        leaving, next_at = nodes_to_leave(draft.world, now, self.settings.leave_margin_s)
        for event in leaving:
            draft.add(event, now)
        touched = self._touched
        if leaving:
            self._livelock.forget()
        if touched is not None and leaving:
            touched.merge(draft.touched)
        view = self._views.build(draft.world, self.profiles, now, touched)
        self._touched = ChangeSet()
        wakes = [job.retry_at for job in view.between if job.retry_at > now]
        wakes += self._views.exempt_ends(now)
        if next_at is not None:
            wakes.append(next_at)
        seen = without_light_runs(view)
        plan = self._plan(draft, seen, now, asked)
        if plan is not None:
            if plan.wake_at is not None:
                wakes.append(plan.wake_at)
            whole = with_light_runs(view, plan)
            if whole is not plan:
                check(whole, view)
            self._adopt(draft, whole, now)
            if self._deliberation is not None and self._deliberation.ask_again:
                self._deliberation.ask_again = False
                wakes.append(now)
            wakes += self._choose_pilots(draft, seen, plan, now)
        return wakes

    def _adopt(self, draft: Draft, plan: Plan, now: float) -> None:
        """Adds what the plan changes; nothing where it goes round in a circle with others."""
        world, changed = draft.world, _changed(draft.world, plan)
        if changed or plan.warm != world.warm:
            others = tuple(target for target in changed if world.jobs[target.job].spec.light_steps is None)
            refusal = self._livelock.refusal(world.targets, others, plan.warm, now) if others or not changed else None
            if refusal is not None:
                if refusal != self._livelock_told:
                    draft.add(ev.TroubleSeen(f"policy {world.policy}", refusal), now)
                self._livelock_told = refusal
                return
            draft.add(
                ev.PlanAdopted(world.policy, changed, plan.warm, plan.optimal, plan.bound, plan.gap, plan.solver), now
            )
        self.reasons, self.solver = Reasons(plan), plan.solver

    def _choose_pilots(self, draft: Draft, view: View, plan: Plan, now: float) -> list[float]:
        """Adds what is decided about pilots; when to look again. A daemon that stops wants none."""
        world = draft.world
        if self._pilots is None:
            return []
        if world.stopping:
            for pilot in () if world.live else tuple(world.pilots.values()):
                if not pilot.over and not pilot.cancelled:
                    draft.add(ev.PilotCancelRequested(pilot.id, "the daemon stops"), now)
            return []
        # A node that shows no GPU is not the one that a pilot was to bring.
        known = {name for name, node in world.nodes.items() if not node.lost and (node.gpus or not node.connected)}
        choice = self._pilots(view, plan, with_agents(world), self.holes, known, self.waiting)
        self.pilot_notes = choice.notes
        for spec in choice.ask:
            draft.add(ev.PilotRequested(draft.world.next_pilot, spec), now)
        for number, why in choice.cancel:
            draft.add(ev.PilotCancelRequested(number, why), now)
        return [] if choice.wake_at is None else [choice.wake_at]

    def pending(self, node: str) -> list[Request]:
        """Requests that the node's agent has not taken yet, oldest first."""
        return [request for request in self._pending.values() if request.node == node]

    def _plan(self, draft: Draft, view: View, now: float, asked: bool) -> Plan | None:
        """The policy's plan, checked; None where it fails, or is still being made."""
        name = draft.world.policy
        try:
            policy = self.policies.make(name)
            deliberate: Decide | None = getattr(policy, "deliberate", None)
            if deliberate is None or draft.world.stopping:
                plan = self._decide(policy, policy.decide, view)
            elif self._deliberation is None:
                plan = self._decide(policy, deliberate, view)
            else:
                think = partial(self._decide, policy, deliberate)
                made = self._deliberation.plan(name, view, asked, think, partial(self._decide, policy, policy.decide))
                if made is None:
                    return None
                plan = made
        except Exception as error:  # whatever a policy does, the daemon and the running jobs go on
            kind = "broke a promise" if isinstance(error, BadPlan) else f"failed ({type(error).__name__})"
            trouble = f"{kind}: {error}"
            if trouble != self._trouble:
                draft.add(ev.TroubleSeen(f"policy {name}", trouble), now)
            self._trouble = trouble
            return None
        self._trouble = ""
        if plan.trouble:
            draft.add(ev.TroubleSeen(f"policy {name}", plan.trouble), now)
        return plan

    def _decide(self, policy: Policy, decide: Decide, view: View) -> Plan:
        """The policy's plan with the backgrounds beside it, checked."""
        seen = sharing.without_backgrounds(view)
        plan = self._decide_foregrounds(decide, seen)
        on, spare = sharing.shares(policy, self.settings.sharing), getattr(policy, "spare_gpus", False)
        shared = sharing.with_backgrounds(view, seen, plan, on=on, spare=spare)
        if shared is not plan:
            check(shared, view)
        return shared

    def _decide_foregrounds(self, decide: Decide, view: View) -> Plan:
        """The policy's plan, checked. What is exempt may be preempted for a higher priority, and only for that."""
        lifted = exemption.lifted(view)
        while lifted:
            seen = exemption.without(view, lifted)
            plan = decide(seen)
            check(plan, seen)
            wrong = exemption.unjustified(seen, plan, lifted)
            if not wrong:
                return plan
            lifted -= wrong
        plan = decide(view)
        check(plan, view)
        return plan

    def _over(self, draft: Draft) -> list[int]:
        """Requests about incarnations that do not live on that node any more."""
        there: dict[tuple[int, int], frozenset[str]] = {}
        found = []
        for number, request in self._pending.items():
            if draft.touched.jobs is not None and request.job not in draft.touched.jobs:
                continue
            key = (request.job, request.incarnation)
            if key not in there:
                job = draft.world.jobs.get(request.job)
                incarnation = job.incarnation(request.incarnation) if job else None
                parts = incarnation.parts if incarnation else ()
                there[key] = frozenset(part.node for part in parts if not part.gone)
            if request.node not in there[key]:
                found.append(number)
        return found

    def _commit(self, draft: Draft, requests: Sequence[Request], settled: Sequence[int]) -> list[Request]:
        over = self._over(draft)
        closed = list(dict.fromkeys((*settled, *over)))
        if not draft.events and not requests and not closed:
            return []
        records, numbered = self.journal.append(draft.events, requests, closed)
        if records and records[-1].seq != draft.world.seq:
            raise AssertionError(f"the journal is at seq {records[-1].seq}, the world at {draft.world.seq}")
        self.world = draft.world
        self.on_recorded(records)
        if self._touched is not None:
            self._touched.merge(draft.touched)
        if draft.touched.jobs is None:
            self._still.clear()
        else:
            self._still.difference_update(draft.touched.jobs)
        for number in closed:
            self._pending.pop(number, None)
        self._pending.update((request.id, request) for request in numbered)
        return numbered


def _is_news(event: ev.Event, asks: Decision) -> bool:
    """Whether it matters to a policy, and no plan brought it about, as it does starts, suspends and their ends; but a
    job's own end is news."""
    if isinstance(event, ev.IncarnationEnded):
        return event.final is not None
    return asks is Decision.ASK and not isinstance(event, ev.IncarnationEvent)


def _changed(world: World, plan: Plan) -> tuple[Target, ...]:
    """The targets that give a job another placement than it was to have, or take it away."""
    before = world.targets
    targets = plan.targets.new() if isinstance(plan.targets, Targets) else plan.targets
    found = []
    for target in targets:
        known = before.get(target.job)
        old = None if known is None else known.placement
        if target.placement is not old and target.placement != old:
            found.append(target)
    return tuple(found)
