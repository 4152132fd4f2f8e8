"""Plans that take seconds: made beside the Controller, and carried over to what the world has become meanwhile.

The Controller's thread also commits submits, so it never waits for a policy that deliberates (`Policy.deliberate`). It
hands the view to another thread, goes on with the last plan, and takes the new one when it is there, if it still fits.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from hpcdl.core.model.plan import BadPlan, JobView, Plan, Targets, View, check
from hpcdl.core.model.world import Target


class PlanToCome(Protocol):
    """A plan that is being made."""

    def done(self) -> bool:
        """Whether it is there, or the attempt failed."""
        ...

    def result(self) -> Plan:
        """The plan, once it is done; raises what the attempt raised."""
        ...


Aside: TypeAlias = Callable[[Callable[[], Plan]], PlanToCome]
"""Calls a function in another thread, and has the Controller take a `PlanMade` when it has returned or failed."""

STALE = 3
"""So many plans in a row that do not fit any more, and one is made at once, without deliberation."""


@dataclass(slots=True)
class _Thought:
    """A plan that is being made for a view. `again`: there was a reason meanwhile to ask once more."""

    about: tuple[str, str]
    seen: View
    plan: PlanToCome
    again: bool = False


class Deliberation:
    """At most one plan is being made at a time."""

    def __init__(self, aside: Aside) -> None:
        """`aside`: where plans are made."""
        self._aside = aside
        self._thought: _Thought | None = None
        self._stale = 0
        self.ask_again = False
        """Whether the plan that was returned last is of a view since which there was a reason to ask again."""

    @property
    def ready(self) -> bool:
        """Whether a plan is there that was not taken yet."""
        return self._thought is not None and self._thought.plan.done()

    def plan(
        self, policy: str, view: View, asked: bool, think: Callable[[View], Plan], at_once: Callable[[View], Plan]
    ) -> Plan | None:
        """A plan for the view; None while it is being made, which is begun here unless one is already.

        `asked`: something has happened since this was called before. `think`: makes a plan, and may take seconds;
        `at_once`: makes one at once, for when the world changes faster than that. Raises what they raise.
        """
        thought, about = self._thought, (policy, view.objective)
        if thought is not None and thought.about == about:
            if not thought.plan.done():
                thought.again = thought.again or asked
                return None
            self._thought = None
            plan = carried_over(thought.plan.result(), thought.seen, view)
            if plan is not None:
                self._stale, self.ask_again = 0, thought.again or asked
                return plan
            self._stale += 1
            if self._stale >= STALE:
                self._stale, self.ask_again = 0, False
                made = at_once(view)
                why = f"{STALE} plans in a row did not fit any more when they were made"
                return replace(made, solver=f"{made.solver}; {why}") if made.solver else made
        self._thought = _Thought(about, view, self._aside(lambda: think(view)))
        return None


def carried_over(plan: Plan, seen: View, view: View) -> Plan | None:
    """The plan of a view that has passed, for the one of now; None where it does not fit any more.

    It fits where all that it changes is still as it was seen, and what comes of it is a legal plan. Jobs that have come
    since, or of which it says nothing, stay as they are until the next plan.
    """
    if seen is view:
        return plan
    before, now = seen.by_id, view.by_id
    said = plan.targets.named if isinstance(plan.targets, Targets) else plan.by_job()
    kept: dict[int, Target] = {}
    for number, target in said.items():
        job = now.get(number)
        if job is None:
            if not _changes(before[number], target):
                continue
            return None  # others were to make way for it
        if _stands(job) != _stands(before[number]) and _changes(job, target):
            return None
        kept[number] = target

    def why(job: JobView) -> str:
        known = before.get(job.id)
        return NEW if known is None or not isinstance(plan.targets, Targets) else plan.targets.of(known).reason

    try:
        carried = replace(plan, targets=Targets(view, kept, why), warm=tuple(each for each in plan.warm if each in now))
        check(carried, view)
    except BadPlan:
        return None
    return carried


NEW = "came after this plan was begun: the next one is being made"


def _changes(job: JobView, target: Target) -> bool:
    """Whether the target gives the job something else than it has, or is about to get."""
    has = job.target if job.placement is None or job.leaving else job.placement
    if has is None or target.placement is None:
        return has is not target.placement
    return not target.placement.same_gpus(has)


def _stands(job: JobView) -> tuple[object, ...]:
    """What a change of the job relies on."""
    held = (job.standing, job.placement, job.target, job.leaving)
    return *held, job.can_suspend, job.in_place, job.exempt, job.blocked, job.gpus_min, job.nodes, job.nodes_max
