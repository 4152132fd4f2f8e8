"""The Controller: one step at a time, given the time, and a Journal to write to. Daemon and simulator both call it.

A step is: inputs become events, and are recorded in one commit, which is what acknowledges them. Then, apart from
that, the policy is asked, its plan checked and reconciled, and plan and requests are recorded in a second commit.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hpcdl.core import events as ev
from hpcdl.core.commands import Command, Refused, Tick
from hpcdl.core.intake import Intake, Settings
from hpcdl.core.journal import Journal, JournalError, Request
from hpcdl.core.lifecycle import Draft, Touched
from hpcdl.core.model import Target, World
from hpcdl.core.plan import BadPlan, Plan, Profiles, Reasons, Targets, View, check
from hpcdl.core.policy import Policies
from hpcdl.core.reconcile import reconcile
from hpcdl.core.views import Views

_DECIDES_NOTHING = (ev.Progressed, ev.ReportsSeen, ev.Noted, ev.TroubleSeen, ev.TrainerReady, ev.Started)


class Controller:
    """Owns the world. One thread calls it; nothing in it waits, and nothing in it knows what time it is."""

    def __init__(
        self, journal: Journal, policies: Policies, profiles: Profiles, settings: Settings | None = None
    ) -> None:
        """Loads the world from the journal."""
        self.journal = journal
        self.policies = policies
        self.profiles = profiles
        self.settings = settings or Settings()
        self.world: World = journal.load()
        self.wake_at: float | None = None
        self.undecided = True
        self.reasons: Mapping[int, str] = Reasons()
        """Why each unfinished job stands where it stands, in the words of the last plan."""
        self._pending: dict[int, Request] = {request.id: request for request in journal.pending()}
        self._trouble = ""
        self._views = Views()
        self._touched: Touched | None = None
        self._still: set[int] = set()

    def begin(self, event: ev.DaemonStarted, now: float) -> None:
        """Records that a daemon took over. Raises JournalError."""
        draft = Draft(self.world)
        draft.add(event, now)
        self._commit(draft, [], [])
        self.undecided = True

    def step(self, inputs: Sequence[Command], now: float) -> list[Any]:
        """Records what the inputs amount to, in one commit. One answer each: a value, or the Refused to hand on.

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
        )
        answers: list[Any] = []
        for command in inputs:
            try:
                answers.append(intake.take(command))
            except Refused as refusal:
                answers.append(refusal)
        intake.finish()
        self._commit(draft, [], intake.settled)
        # At every interval too: some steps are due to time alone (stragglers, a gate that is never reached).
        ticked = any(isinstance(command, Tick) for command in inputs)
        if ticked or any(not isinstance(event, _DECIDES_NOTHING) for _, event in draft.events):
            self.undecided = True
        return [answer(self.world, self._pending) if callable(answer) else answer for answer in answers]

    def decide(self, now: float) -> list[Request]:
        """Asks the policy, checks and adopts its plan, and returns the requests to hand to the outbox.

        A policy that fails or breaks a promise changes nothing: the targets stay. Raises JournalError.
        """
        draft = Draft(self.world)
        view = self._views.build(draft.world, self.profiles, now, self._touched)
        if self._touched is None or self._touched.jobs is None:
            self._still.clear()
        else:
            self._still.difference_update(self._touched.jobs)
        self._touched = Touched()
        wakes = [job.retry_at for job in view.between if job.retry_at > now]
        plan = self._plan(draft, view, now)
        if plan is not None:
            if plan.wake_at is not None:
                wakes.append(plan.wake_at)
            self.reasons = Reasons(plan)
            changed = _changed(draft.world, plan)
            if changed or plan.warm != draft.world.warm:
                name = draft.world.policy
                draft.add(ev.PlanAdopted(name, changed, plan.warm, plan.optimal, plan.bound, plan.gap), now)
        self._still.difference_update(draft.touched.jobs or ())  # those that the plan gives something else
        steps = reconcile(draft.world, now, self._still)
        for event in steps.events:
            draft.add(event, now)
        try:
            requests = self._commit(draft, steps.requests, [])
        except JournalError:
            self._trouble = ""  # what was to be told was not recorded: the next decision tells it
            self._still.clear()
            raise
        self.wake_at = min(wakes, default=None)
        self.undecided = False
        return requests

    def pending(self, node: str) -> list[Request]:
        """Requests that the node's agent has not taken yet, oldest first."""
        return [request for request in self._pending.values() if request.node == node]

    def _plan(self, draft: Draft, view: View, now: float) -> Plan | None:
        try:
            plan = self.policies.make(draft.world.policy).decide(view)
            check(plan, view)
        except Exception as error:  # whatever a policy does, the daemon and the running jobs go on
            kind = "broke a promise" if isinstance(error, BadPlan) else f"failed ({type(error).__name__})"
            trouble = f"{kind}: {error}"
            if trouble != self._trouble:
                draft.add(ev.TroubleSeen(f"policy {draft.world.policy}", trouble), now)
            self._trouble = trouble
            return None
        self._trouble = ""
        return plan

    def _commit(self, draft: Draft, requests: Sequence[Request], settled: Sequence[int]) -> list[Request]:
        over = [number for number, request in self._pending.items() if not _concerns(draft.world, request)]
        closed = [*settled, *(number for number in over if number not in settled)]
        if not draft.events and not requests and not closed:
            return []
        records, numbered = self.journal.append(draft.events, requests, closed)
        if records and records[-1].seq != draft.world.seq:
            raise AssertionError(f"the journal is at seq {records[-1].seq}, the world at {draft.world.seq}")
        self.world = draft.world
        if self._touched is not None:
            self._touched.merge(draft.touched)
        for number in closed:
            self._pending.pop(number, None)
        self._pending.update((request.id, request) for request in numbered)
        return numbered


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


def _concerns(world: World, request: Request) -> bool:
    """Whether the incarnation that a request is about still lives on that node."""
    job = world.jobs.get(request.job)
    incarnation = job.incarnation(request.incarnation) if job else None
    part = incarnation.part(request.node) if incarnation else None
    return part is not None and not part.gone
