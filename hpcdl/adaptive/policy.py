"""The policy `adaptive`: GPU counts for all running and waiting jobs together, at every decision.

From a view to a plan in four steps: options of each job (options.py), the objective's choice among them (objectives.py,
makespan.py, deadline.py), GPUs for it (hpcdl/placement/shapes.py), and reasons (reasons.py). Keeps no state.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from hpcdl.adaptive import deadline, makespan, objectives
from hpcdl.adaptive.arrivals import spare
from hpcdl.adaptive.choice import Choice
from hpcdl.adaptive.options import Candidate, Option, OptionMenu, candidates
from hpcdl.adaptive.prior import look_again_at
from hpcdl.adaptive.priority import by_priority, differ
from hpcdl.adaptive.protection import with_deadlines
from hpcdl.adaptive.reasons import kept_reason, reason, waits
from hpcdl.core.model.incarnation import Placement
from hpcdl.core.model.plan import ANY_OBJECTIVE, BY_SETTING, JobView, Plan, View
from hpcdl.placement.pool import target_of
from hpcdl.placement.shapes import Layout, Shape, placement_of, realise

OBJECTIVES = {
    "jct": objectives.choose,
    "makespan": makespan.choose,
    "deadline": deadline.choose,
    "throughput": objectives.choose_throughput,
    "fair": objectives.choose_fair,
}


class Adaptive:
    """Options, the objective's choice among them, GPUs for it, and the reasons.

    Any objective that is not known counts as `jct`. Each objective bounds how long a job can wait.
    """

    name = "adaptive"
    deadlines = ANY_OBJECTIVE
    sharing = BY_SETTING
    fifo = False

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        found = candidates(view)
        aim = OBJECTIVES.get(view.objective, objectives.choose)
        choose = aim if aim is deadline.choose else partial(with_deadlines, choose=aim)
        if self.fifo:
            choice = in_order(view, found, choose)
        else:
            choice = by_priority(view, found, choose) if differ(found) else choose(view, found)
        if aim is objectives.choose or aim is objectives.choose_fair:
            choice = spare(view, found, choice)
        layout = _layout(view, found, choice)
        return _plan(view, found, choice, layout)


class AdaptiveFifo(Adaptive):
    """The same, but no job starts before an earlier one that could have started instead."""

    name = "adaptive-fifo"
    fifo = True


def _layout(view: View, found: OptionMenu, choice: Choice) -> Layout:
    by_id = {candidate.job.id: candidate for candidate in found.candidates}
    kept: dict[int, Placement] = {}
    wanted: dict[int, Shape] = {}
    shapes: dict[int, Shape] = {}  # by option: jobs that are alike share theirs
    for job in view.jobs:
        candidate = by_id.get(job.id)
        if job.blocked:
            continue
        if candidate is None or candidate.fixed:
            if job.placement is not None and not job.leaving:
                kept[job.id] = job.placement
        elif (option := choice.options.get(job.id)) is not None:
            shape = shapes.get(id(option))
            wanted[job.id] = shapes[id(option)] = shape or _shape(found, option)

    def others(number: int) -> Sequence[Shape]:
        """What else is tried for a job: fewer GPUs, the fastest first."""
        option = choice.options[number]
        if option is None:
            return ()
        less = [each for each in by_id[number].options if each.units < option.units]
        less.sort(key=lambda each: (-each.rate, each.units, each.pool))
        return [_shape(found, each) for each in less]

    def movable(number: int) -> bool:
        """Whether another node of its pool costs the job no more than other GPUs of its own."""
        profile = by_id[number].job.profile
        return profile is None or (profile.move_s is None and profile.move_save_s is None)

    return realise(view, wanted, kept, others, movable, choice.first)


def _shape(found: OptionMenu, option: Option) -> Shape:
    return Shape(found.pools[option.pool].nodes, option.nodes, option.gpus)


def _plan(view: View, found: OptionMenu, choice: Choice, layout: Layout) -> Plan:
    by_id = {candidate.job.id: candidate for candidate in found.candidates}
    targets = []
    warm = []
    for job in view.jobs:
        candidate, placement = by_id.get(job.id), layout.placements.get(job.id)
        if placement is not job.target and placement == job.target:
            placement = job.target
        if job.blocked:
            text, placement = job.blocked, None
        elif candidate is None:
            text = kept_reason(view, placement)
        elif placement is None:
            text = waits(view, found, candidate, choice.why.get(job.id, ""))
        elif job.placement is not None and _grows_later(job, job.placement, placement, layout):
            # To be suspended now, and to wait for GPUs that others still save on, would be time lost.
            text = f"{reason(found, candidate, job.placement, '')}; gets {placement.per_node} when they are free"
            placement = job.placement
        else:
            text = reason(found, candidate, placement, choice.why.get(job.id, ""))
            if _to_warm(job, candidate, placement, layout):
                warm.append(job.id)
        targets.append(target_of(job, placement, text))
    wakes = [at for at in (choice.wake_at, look_again_at(view)) if at is not None]
    return Plan(tuple(targets), tuple(warm), min(wakes, default=None), choice.optimal, choice.bound, None)


def _grows_later(job: JobView, now: Placement, wanted: Placement, layout: Layout) -> bool:
    """Whether the job is to keep all that it has and get more, some of which others still hold."""
    if job.leaving or now is wanted or now.nodes != wanted.nodes:
        return False
    pairs = list(zip(now.shares, wanted.shares, strict=True))
    if not all(set(old.gpus) <= set(new.gpus) for old, new in pairs):
        return False
    return any((set(new.gpus) - set(old.gpus)) & layout.held.get(new.node, set()) for old, new in pairs)


def _to_warm(job: JobView, candidate: Candidate, placement: Placement, layout: Layout) -> bool:
    """Whether GPUs that the job is to get are still held: by others, or by itself."""
    if candidate.fixed or placement is job.placement:
        return False
    if job.placement is not None and job.placement.same_gpus(placement):
        return False
    if job.placement is not None:
        return True
    return any(not layout.held.get(share.node, set()).isdisjoint(share.gpus) for share in placement.shares)


def in_order(view: View, found: OptionMenu, choose: Callable[[View, OptionMenu], Choice]) -> Choice:
    """The objective's choice in the order of submission: no job starts before an earlier one that could have.

    It starts as many of the first unstarted jobs as the objective gives GPUs to, and no later ones. Jobs that have been
    started before come and go as the objective says. Of the first unstarted jobs one that fits nowhere, even in an
    empty cluster, stops nobody.
    """
    fresh = [each.job.id for each in found.candidates if each.job.started_at is None and each.options]
    allowed = len(fresh)
    while True:
        barred = set(fresh[allowed:])
        some = OptionMenu(found.pools, tuple(each for each in found.candidates if each.job.id not in barred))
        choice = choose(view, some)
        missing = next((at for at, number in enumerate(fresh[:allowed]) if choice.options[number] is None), allowed)
        later = any(choice.options[number] is not None for number in fresh[missing:allowed])
        if not later:
            options = dict(choice.options) | dict.fromkeys(barred)
            return replace(choice, options=options)
        # Someone starts before the one at `missing`. It might start instead of them: they are barred.
        allowed = max(missing + 1, _first_later(choice, fresh, missing, allowed))


def _first_later(choice: Choice, fresh: list[int], missing: int, allowed: int) -> int:
    """Where the first job stands that was given something after `missing`."""
    return next(at for at in range(missing, allowed) if choice.options[fresh[at]] is not None)


__all__ = ["OBJECTIVES", "Adaptive", "AdaptiveFifo", "placement_of"]
