"""What a policy answers (`Plan`) to what it sees (`View`), and `check`, which no plan may skip."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, overload

from hpcdl.core.model import Job, Placement, Role, Share, Target
from hpcdl.core.profile import Profile, Seen
from hpcdl.core.units import GpuRef, count, fold_nodes
from hpcdl.core.view import Arrival as Arrival
from hpcdl.core.view import JobView as JobView
from hpcdl.core.view import NodeView as NodeView
from hpcdl.core.view import Standing as Standing
from hpcdl.core.view import View as View
from hpcdl.core.view import held_on as held_on


class Targets(Sequence[Target]):
    """A target for each job of a view, of which those that say nothing new are made only when they are asked for.

    `named`: by job. Of the other jobs, the steady ones keep what they hold and the rest gets nothing; `why` says the
    reason, from what does not change any more. With thousands of jobs waiting, a plan is mostly of these.
    """

    __slots__ = ("_why", "named", "view")

    def __init__(self, view: View, named: Mapping[int, Target], why: Callable[[JobView], str]) -> None:
        self.view, self.named, self._why = view, named, why

    def of(self, job: JobView) -> Target:
        """The target of a job of the view."""
        known = self.named.get(job.id)
        if known is not None:
            return known
        return Target(job.id, job.placement if job.standing is Standing.STEADY else None, self._why(job))

    def new(self) -> Iterable[Target]:
        """All that may differ from what the last plan said, in order."""
        jobs = [job for job in self.view.steady if job.target is not job.placement and job.id not in self.named]
        jobs += [job for job in self.view.between if job.id not in self.named]
        return sorted([*self.named.values(), *map(self.of, jobs)], key=lambda target: target.job)

    def __len__(self) -> int:
        return len(self.view.jobs)

    @overload
    def __getitem__(self, index: int) -> Target: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Target, ...]: ...

    def __getitem__(self, index: int | slice) -> Target | tuple[Target, ...]:
        jobs = self.view.jobs[index]
        return self.of(jobs) if isinstance(jobs, JobView) else tuple(map(self.of, jobs))

    def __iter__(self) -> Iterator[Target]:
        return map(self.of, self.view.jobs)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Targets | tuple) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))


class Reasons(Mapping[int, str]):
    """The reasons of a plan by job, made when they are asked for."""

    def __init__(self, plan: "Plan | None" = None) -> None:
        targets = () if plan is None else plan.targets
        self._targets = targets if isinstance(targets, Targets) else None
        self._said = {} if self._targets is not None else {target.job: target.reason for target in targets}

    def __getitem__(self, number: int) -> str:
        targets = self._targets
        return self._said[number] if targets is None else targets.of(targets.view.by_id[number]).reason

    def __iter__(self) -> Iterator[int]:
        return iter(self._said if self._targets is None else self._targets.view.by_id)

    def __len__(self) -> int:
        return len(self._said) if self._targets is None else len(self._targets)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is wanted. `targets`: one for each job of the view, with its reason. `wake_at`: when to be asked again."""

    targets: tuple[Target, ...] | Targets
    warm: tuple[int, ...] = ()
    wake_at: float | None = None
    optimal: bool = False
    bound: float | None = None
    gap: float | None = None

    def by_job(self) -> dict[int, Target]:
        """Targets by job id."""
        return {target.job: target for target in self.targets}


class BadPlan(ValueError):
    """The plan breaks a promise; the message says which."""


Learn: TypeAlias = Callable[[str, Seen], Profile | None]
Foresee: TypeAlias = Callable[[tuple[tuple[int, float], ...], float], float | None]


@dataclass(frozen=True, slots=True)
class Profiles:
    """Profiles by lower-case name; and what says of jobs that tell less how fast and how long they are.

    `learn`: makes a profile of what was seen of jobs alike, by their `JobSpec.learns_as`; None where it cannot. It is
    asked again whenever more was seen. `foresee`: after how many steps a metric that rose like these (step, metric)
    reaches a target; None where that cannot be said. Both give the same for the same arguments and the same nodes.
    """

    by_name: Mapping[str, Profile] = field(default_factory=dict)
    learn: Learn | None = None
    foresee: Foresee | None = None

    def of(self, job: Job, seen: Seen | None = None) -> Profile | None:
        """The profile that a job names, else the one learnt from jobs like it, or None."""
        if job.spec.profile:
            return self.by_name.get(job.spec.profile.lower())
        return self.learn(job.spec.learns_as, seen) if self.learn is not None and seen is not None else None

    def total_of(self, job: Job) -> int | None:
        """Steps of the job in all: as it or its trainer says, else when its metric will have reached its target."""
        if job.total is not None or self.foresee is None or job.spec.accuracy_target is None or not job.accuracy:
            return job.total
        steps = self.foresee(job.accuracy, job.spec.accuracy_target)
        # Past the prediction and short of the target still: it goes on for a while, as far as anybody knows.
        return None if steps is None else max(math.ceil(steps), job.accuracy[-1][0] + 1)


def check(plan: Plan, view: View) -> None:
    """Raises BadPlan where a plan breaks a promise that the daemon gives.

    Every job of the view has exactly one target with a reason; a GPU has at most one foreground job, and a
    background job only where both agreed to it (none can yet); numbers of nodes and GPUs within each job's range;
    blocked jobs have none; a job that cannot be suspended keeps what it holds, and so does one that is exempt from
    preemption, unless it goes on to where the last plan wanted it, or is rescaled in place. A job that holds nothing
    and is started ahead (`warm`) may be given GPUs that another one goes on holding: it waits for them at the gate.
    """
    jobs = view.by_id
    targets = _said(plan, view)
    taken: dict[str, set[int]] = {}
    ahead = {number for number in plan.warm if number in jobs and jobs[number].placement is None}
    for number, target in targets.items():
        job, placement = jobs[number], target.placement
        if not target.reason:
            raise BadPlan(f"job {number} has no reason")
        if placement is None:
            if job.placement is not None and not job.leaving and not job.can_suspend and not job.blocked:
                raise BadPlan(f"job {number} cannot be suspended, and the plan takes its GPUs")
            continue
        if placement is not job.placement or job.blocked:
            _check_placement(job, placement, view)
        for share in placement.shares if number not in ahead else ():
            there = taken.get(share.node)
            if there is None:
                there = taken[share.node] = _kept_on(view, share.node, targets)
            if not there.isdisjoint(share.gpus):
                raise _given_twice(plan, share, number)
            there.update(share.gpus)
    unknown = [number for number in plan.warm if number not in jobs]
    if unknown:
        raise BadPlan(f"warm starts of unknown jobs {unknown}")
    if ahead:
        _check_ahead(plan, view, ahead, taken)


def _said(plan: Plan, view: View) -> Mapping[int, Target]:
    """The plan's targets by job, but for those of which it says nothing that could be wrong."""
    targets = plan.targets
    if isinstance(targets, Targets) and targets.view is view:
        if any(number != target.job or number not in view.by_id for number, target in targets.named.items()):
            raise BadPlan(f"targets must be of unfinished jobs, got {sorted(targets.named)}")
        for job in (*view.steady[:1], *view.between[:1], *view.waiting[:1]):
            if not targets.of(job).reason:
                raise BadPlan(f"job {job.id} has no reason")
        return targets.named
    found = plan.by_job()
    if len(found) != len(targets) or found.keys() != view.by_id.keys():
        raise BadPlan(f"targets must name each unfinished job once, got {sorted(each.job for each in targets)}")
    return found


def _kept_on(view: View, node: str, targets: Mapping[int, Target]) -> set[int]:
    """GPUs of the node that jobs keep of which the plan says nothing."""
    kept: set[int] = set()
    for job in view.by_node.get(node, ()):
        if job.id not in targets and job.placement is not None and job.standing is Standing.STEADY:
            kept.update(gpu for share in job.placement.shares if share.node == node for gpu in share.gpus)
    return kept


def _check_ahead(plan: Plan, view: View, ahead: set[int], taken: dict[str, set[int]]) -> None:
    """What jobs are to wait for at the gate is free for them, or held now by a job that goes on."""
    held: dict[str, set[int]] = {}
    for job in (*view.steady, *view.between):
        for share in job.placement.shares if job.placement is not None and not job.leaving else ():
            held.setdefault(share.node, set()).update(share.gpus)
    targets = _said(plan, view)
    for number in sorted(ahead):
        target = targets.get(number)
        if target is None or target.placement is None:
            continue
        for share in target.placement.shares:
            there = taken.get(share.node)
            if there is None:
                there = taken[share.node] = _kept_on(view, share.node, targets)
            if not (there & set(share.gpus)) <= held.get(share.node, set()):
                raise _given_twice(plan, share, target.job)
            there.update(share.gpus)
            held.get(share.node, set()).difference_update(share.gpus)  # not to two of them


def _given_twice(plan: Plan, share: Share, number: int) -> BadPlan:
    """Which GPU of `share`, given to job `number`, another job was given before."""
    for target in plan.targets:
        for other in target.placement.shares if target.placement is not None and target.job != number else ():
            both = set(other.gpus) & set(share.gpus) if other.node == share.node else set()
            if both:
                gpu = GpuRef(share.node, min(both))
                return BadPlan(f"GPU {gpu} is given to jobs {target.job} and {number}")
    return BadPlan(f"job {number} is given a GPU of {share.node} twice")


def _in_place(job: JobView, placement: Placement) -> bool:
    """Whether the job can go there in place: a member stays, and so do the GPUs of every node that it keeps."""
    held = {} if job.placement is None else {share.node: share.gpus for share in job.placement.shares}
    if any(held.get(share.node, share.gpus) != share.gpus for share in placement.shares):
        return False
    needed = job.members[:1] if job.rescale == "torchrun" else job.members
    return not frozenset(needed).isdisjoint(placement.nodes)


def _check_placement(job: JobView, placement: Placement, view: View) -> None:
    if job.blocked:
        raise BadPlan(f"job {job.id} is placed, but {job.blocked}")
    if placement.role is Role.BACKGROUND:
        raise BadPlan(f"job {job.id}: no job has agreed to share its GPUs")
    keeps = job.placement is not None and placement.same_gpus(job.placement)
    under_way = job.exempt and job.target is not None and placement.same_gpus(job.target)
    if job.placement is not None and not (keeps or under_way or job.leaving or job.can_suspend or job.in_place):
        raise BadPlan(f"job {job.id} cannot be suspended, and the plan moves it")
    if job.exempt and job.placement is not None and not (keeps or under_way or _in_place(job, placement)):
        raise BadPlan(f"job {job.id} is exempt from preemption, and the plan moves it otherwise than in place")
    if not job.nodes <= len(placement.shares) <= job.nodes_max:
        raise BadPlan(f"job {job.id} needs {count(job.nodes, 'node')}, got {fold_nodes(placement.nodes)}")
    if keeps:
        return  # also where its node is away, or has become smaller
    for share in placement.shares:
        if not job.gpus_min <= len(share.gpus) <= job.gpus_max:
            raise BadPlan(
                f"job {job.id} takes {job.gpus_min} to {job.gpus_max} GPUs, gets {len(share.gpus)} on {share.node}"
            )
        if job.counts and len(share.gpus) not in job.counts:
            raise BadPlan(f"job {job.id} takes {', '.join(map(str, job.counts))} GPUs, gets {len(share.gpus)}")
        if not view.gpus.get(share.node, frozenset()).issuperset(share.gpus):
            raise BadPlan(f"job {job.id}: node {share.node} cannot grant GPUs {share.gpus}")
