"""Policies: what they see (`View`), what they answer (`Plan`), and `check`, which no plan may skip.

Policies of users import these through `hpcdl.policy`: a name here, or of a field, is not removed. A view is made in
`controller/view_builder.py`, a plan carried out in `controller/reconcile.py`.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import Any, Protocol, TypeAlias, overload

from hpcdl.core.model.incarnation import Placement, Role, Share
from hpcdl.core.model.job import JobSpec, Sharing, StagePlan
from hpcdl.core.model.pilot import Hole, PendingBatchJob, Pilot, PilotChoice
from hpcdl.core.model.profile import MAX_GPUS, MetricPoints, Observations, Profile, UsualJob
from hpcdl.core.model.sharing import agreement_refusal, memory_refusal
from hpcdl.core.model.units import GpuRef, count, fold_nodes, one_of
from hpcdl.core.model.world import Job, JobState, Target


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node with the GPUs that may be granted. GPUs of a node that is away are not listed."""

    name: str
    gpus: tuple[int, ...]  # their indices, ascending
    kind: str = ""  # their type in lower case, as profiles name it (`v100`); "": of several, or not known
    since: float = 0.0  # when it came, the daemon's time
    until: float | None = None  # when it goes (a reservation, the end of an allocation); None: not known
    place: tuple[str, ...] = ()  # in the network, the outermost switch first; (): not known
    distances: tuple[tuple[int, int, int], ...] = ()  # (index, other index, how far: 1 is NVLink); (): not known
    memory: tuple[tuple[int, int], ...] = ()  # (index, MiB) of each GPU whose memory is known

    def holds(self, needs_mib: int | None) -> bool:
        """Whether a GPU of it has so much memory, or may have it: that of one is not known."""
        if needs_mib is None:
            return True
        sizes = dict(self.memory)
        return any(sizes.get(gpu, needs_mib) >= needs_mib for gpu in self.gpus)


class Standing(IntEnum):
    """Where a job stands between two plans; see the properties of `View`."""

    STEADY = 0
    WAITING = 1
    BETWEEN = 2


@dataclass(frozen=True, slots=True)
class JobView:
    """An unfinished job as a policy sees it. GPU numbers are per node; times are the daemon's, in seconds.

    Flat, unlike `Job`: policies of users name these fields, and solvers read them often.
    """

    id: int
    name: str
    state: JobState
    gpus_min: int
    gpus_max: int  # the user's maximum, or what the largest node has
    nodes: int  # at least so many
    step: int  # the last one reported, 0 before
    total: int | None  # steps in all; None: not known
    profile: Profile | None  # how it scales; None: not known
    placement: Placement | None  # what it holds, also while it starts, saves or ends; None: nothing
    target: Placement | None  # what the last plan gave it; None: nothing
    leaving: bool  # it was asked to suspend or to end
    can_suspend: bool  # it may be suspended for others now
    blocked: str  # why it cannot be placed now (held, dependency, pause after a failure), in words; "": it can
    submitted_at: float
    retry_at: float = 0.0  # it does not start before
    user: str = ""
    counts: tuple[int, ...] = ()  # the only numbers of GPUs that it takes on a node; (): each of its range
    nodes_max: int = 0  # at most so many; 0: exactly `nodes`
    deadline: float | None = None  # when it is to be finished; None: it has none
    started_at: float | None = None  # when it was given GPUs first; None before
    step_at: float | None = None  # when `step` was true; None while it does not train
    held_gpu_s: float = 0.0  # GPU seconds held before `held_since`
    held_since: float | None = None  # since when it holds `placement`; None: it holds nothing
    accuracy: tuple[tuple[int, float], ...] = ()  # (step, metric) as its trainers reported them, thinned out
    accuracy_target: float | None = None  # its script ends once the metric reaches this; None: it has none
    last: Placement | None = None  # what the incarnation before held; None: there was none
    gate: bool = False  # it can be started ahead of its GPUs
    ahead_since: float | None = None  # since when it is started ahead; None while it is not
    at_gate: bool = False  # it is, and only GPUs are missing
    rescale: str = "restart"  # how it goes to other nodes, one of RESCALES
    in_place: bool = False  # it trains, and can do that without a suspend
    rescaling: bool = False  # its ranks are about to form a new membership
    members: tuple[str, ...] = ()  # the nodes of its ranks in order; the first has the writer
    weight: float = 1.0  # what it counts under the objective `priority`
    priority: int = 0  # a higher one comes first
    exempt: bool = False  # it is not to be preempted for the good of others now: so `can_suspend` is False
    exempt_until: float = 0.0  # when that is over at the latest; 0.0 while it is not exempt
    usual: UsualJob | None = None  # what is usual of jobs like it; None: nothing is known
    share: Sharing | None = None  # what it agrees to on its GPUs; None: it shares them with nobody
    gpu_memory_mib: int | None = None  # what it takes of each GPU, measured or stated; None: not known
    needs_mib: int | None = None  # memory that a GPU must have for it, as its user says; None: any will do
    burst: tuple[StagePlan, ...] = ()  # its burst-parallel plans, by GPUs ascending; (): it is not burst-parallel
    end_s: float = 0.0  # what ends of its script take after the last step, as far as is known
    in_end: bool = False  # all of its steps are done, and its script's end runs, or is to run again
    only_idle: bool = False  # it is a light run: policies do not see it (`controller/light_runs.py`)
    memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What follows from this value alone and was worked out before. A view keeps its JobViews while nothing changes."""

    def __post_init__(self) -> None:
        if self.nodes_max < self.nodes:
            object.__setattr__(self, "nodes_max", self.nodes)

    @property
    def order(self) -> tuple[int, int]:
        """Jobs of a higher priority come first, and of the same one those that were submitted first."""
        return -self.priority, self.id

    @property
    def standing(self) -> Standing:
        """How a plan has to treat it if it says nothing of its own about it."""
        if self.blocked or self.leaving or (self.placement is None and self.target is not None):
            return Standing.BETWEEN
        return Standing.WAITING if self.placement is None else Standing.STEADY

    def allowed(self, limit: int) -> tuple[int, ...]:
        """The numbers of GPUs that it may have on a node with `limit` of them, ascending; empty where none fits."""
        if self.counts:
            return tuple(number for number in self.counts if number <= limit)
        return tuple(range(self.gpus_min, min(self.gpus_max, limit) + 1))

    def steps(self, now: float, kind: str = "") -> float:
        """Steps done by `now`: those reported, carried on at its profile's rate on GPUs of that kind."""
        if self.in_end or self.step_at is None or self.placement is None or self.profile is None or now <= self.step_at:
            return float(self.step)
        rate = self.profile.on(kind).rate(self.placement.per_node, len(self.placement.shares))
        done = self.step + (now - self.step_at) * rate
        return done if self.total is None else min(done, float(self.total))

    def remaining(self, now: float, kind: str = "") -> float | None:
        """Steps that it still has to do at `now`, or None where their number is not known; its script's end, as far as
        that is known, counts for as many as it would do meanwhile."""
        if self.in_end:
            left = 0.0 if self.placement is not None else 1.0
        elif self.total is None:
            return None
        else:
            left = max(0.0, self.total - self.steps(now, kind))
        if self.profile is None or not self.end_s:
            return left
        held = self.placement
        nodes, gpus = (self.nodes, self.gpus_min) if held is None else (len(held.shares), held.per_node)
        since = self.step_at if self.in_end and self.step_at is not None else now
        return left + max(0.0, self.end_s - (now - since)) * self.profile.on(kind).rate(gpus, nodes)

    def attained_gpu_s(self, now: float) -> float:
        """GPU seconds that it has held until `now`."""
        if self.placement is None or self.held_since is None:
            return self.held_gpu_s
        return self.held_gpu_s + max(0.0, now - self.held_since) * len(self.placement.gpus)

    def rescale_s(self, nodes: int, gpus: int) -> float:
        """Seconds without progress of going from what it holds to `nodes` nodes (0: none) with `gpus` GPUs on each.

        By the cheapest means that it has: in place, or by a suspend, a resume, a start. 0.0 without a profile.
        """
        profile, held = self.profile, self.placement
        if profile is None:
            return 0.0
        if held is None:
            if not nodes:
                return 0.0
            last = 0 if self.last is None else len(self.last.gpus)
            return profile.resume_for(last, nodes * gpus, moved=False) if last else profile.startup_s
        if not nodes:
            return profile.save_s
        if gpus == held.per_node and (nodes == len(held.shares) or self.in_place):
            return 0.0 if nodes == len(held.shares) else profile.rescale_for(len(held.shares), nodes)
        return profile.restart_s(len(held.gpus), nodes * gpus, moved=False, running=True)

    def idle_parts(self, placement: Placement) -> dict[GpuRef, float]:
        """The part of its time for which each GPU is free there between its stages; {}: its plan says nothing of it."""
        plan = next((each for each in reversed(self.burst) if each.gpus <= len(placement.gpus)), None)
        if plan is None or not plan.stage_ms:
            return {}
        here = self.placement is not None and placement.same_gpus(self.placement)
        nodes = [*(self.members if here else ()), *placement.nodes]  # ranks count in this order
        gpus = {share.node: share.gpus for share in placement.shares}
        ranks = [GpuRef(node, gpu) for node in dict.fromkeys(nodes) for gpu in gpus.get(node, ())]
        return {gpu: plan.idle(rank) for rank, gpu in enumerate(ranks)}

    @property
    def is_background(self) -> bool:
        """Whether it holds GPUs that another job may have as its foreground."""
        return self.placement is not None and self.placement.role is Role.BACKGROUND

    def best_gpus(self, limit: int) -> int:
        """GPUs per node at which its profile is fastest, within its own range and `limit`; MAX without a profile."""
        top = min(self.gpus_max, limit)
        if self.counts:
            return self._best_count(self.allowed(limit))
        if top <= self.gpus_min or self.profile is None:
            return max(top, self.gpus_min)
        return self.profile.best_gpus(top, self.gpus_min, self.nodes)

    def _best_count(self, numbers: tuple[int, ...]) -> int:
        if not numbers or self.profile is None:
            return numbers[-1] if numbers else self.gpus_min
        rates = [self.profile.rate(number, self.nodes) for number in numbers]
        return numbers[rates.index(max(rates))]


@dataclass(frozen=True, slots=True)
class Arrival:
    """Jobs that were submitted together. Numbers are means over them."""

    at: float  # when, the daemon's time
    gpus: float  # what one of them needs at least
    seconds: float | None = None  # for which one held its GPUs; None while none of them is finished


@dataclass(frozen=True)
class View:
    """The world as a policy sees it. What follows from it is computed once, when it is asked for first."""

    now: float  # the daemon's time, in seconds since the epoch
    nodes: tuple[NodeView, ...]  # by name
    jobs: tuple[JobView, ...]  # unfinished ones, in their order (`JobView.order`)
    objective: str = "makespan"
    bare: frozenset[str] = frozenset()  # nodes whose agent is there, and none of whose GPUs may be granted
    gaps: tuple[float, ...] = ()  # seconds between the last changes of the set of nodes, the newest at the end
    arrivals: tuple[Arrival, ...] = ()  # the last submits, the newest at the end; (): no policy is to expect more
    memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What a policy computed from this value alone, for its next calls."""

    @property
    def steady(self) -> tuple[JobView, ...]:
        """Jobs that hold GPUs, are not leaving them, and are not blocked; in order."""
        return self.by_standing[Standing.STEADY]

    @property
    def waiting(self) -> tuple[JobView, ...]:
        """Jobs that hold nothing, were given nothing by the last plan, and are not blocked; in order."""
        return self.by_standing[Standing.WAITING]

    @property
    def between(self) -> tuple[JobView, ...]:
        """All other jobs: blocked, leaving, or about to start on what the last plan gave them; in order."""
        return self.by_standing[Standing.BETWEEN]

    @cached_property
    def by_standing(self) -> Mapping[Standing, tuple[JobView, ...]]:
        """The jobs by how they stand, in order."""
        return {each: tuple(job for job in self.jobs if job.standing is each) for each in Standing}

    @cached_property
    def by_id(self) -> Mapping[int, JobView]:
        """The jobs by their ids."""
        return {job.id: job for job in self.jobs}

    @cached_property
    def by_node(self) -> Mapping[str, tuple[JobView, ...]]:
        """The jobs that hold GPUs of a node, also where they are leaving them; nodes without such jobs are missing."""
        found: dict[str, tuple[JobView, ...]] = {}
        for job in self.jobs:
            for name in () if job.placement is None else job.placement.nodes:
                found[name] = (*found.get(name, ()), job)
        return found

    def kind_of(self, node: str) -> str:
        """The type of GPU of a node, "" where it is not known."""
        return self.kinds.get(node, "")

    @cached_property
    def kinds(self) -> Mapping[str, str]:
        """Types of GPUs by node."""
        return {each.name: each.kind for each in self.nodes}

    @cached_property
    def gpus(self) -> Mapping[str, frozenset[int]]:
        """GPUs that may be granted, by node; nodes that are away are missing."""
        return {each.name: frozenset(each.gpus) for each in self.nodes}

    @cached_property
    def free(self) -> Mapping[str, tuple[int, ...]]:
        """GPUs that may be granted and that nobody holds, by node, ascending."""
        none = frozenset[int]()
        taken = ((node, self.held.get(node.name, none)) for node in self.nodes)
        return {node.name: tuple([gpu for gpu in node.gpus if gpu not in held]) for node, held in taken}

    @cached_property
    def held(self) -> Mapping[str, frozenset[int]]:
        """GPUs that jobs hold, by node; nodes without such are missing."""
        return {name: held_on(name, jobs) for name, jobs in self.by_node.items()}

    @property
    def largest_node(self) -> int:
        """GPUs of the node that has most, 0 without nodes."""
        return max((len(node.gpus) for node in self.nodes), default=0)


def held_on(node: str, jobs: Iterable[JobView]) -> frozenset[int]:
    """The GPUs of a node that these jobs hold."""
    found: list[int] = []
    for job in jobs:
        if job.placement is not None:
            nodes = job.placement.nodes  # sorted, as the shares are
            place = bisect_left(nodes, node)
            if place < len(nodes) and nodes[place] == node:
                found.extend(job.placement.shares[place].gpus)
    return frozenset(found)


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

    def of_view(self, view: View, more: Mapping[int, Target]) -> "Targets":
        """The same of another view, which has the same jobs, with these targets in the place of their own."""
        return Targets(view, {**self.named, **more}, self._why)

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
    """What a policy wants."""

    targets: tuple[Target, ...] | Targets  # one for each job of the view, with its reason
    warm: tuple[int, ...] = ()  # jobs to be started ahead of their GPUs
    wake_at: float | None = None  # when the policy wants to be asked again at the latest; None: when something happens
    optimal: bool = False  # no plan is better by the policy's objective; a solver proved it
    bound: float | None = None  # of the objective, by the solver; None: it gives none
    gap: float | None = None  # relative, between this plan's objective and the bound; None: not known
    solver: str = ""  # which solver decided, and what it has proven, in words; "": the policy's own rules
    trouble: str = ""  # what went wrong on the way and was survived, for people; told once by the policy

    def by_job(self) -> dict[int, Target]:
        """Targets by job id."""
        return {target.job: target for target in self.targets}


class BadPlan(ValueError):
    """The plan breaks a promise; the message says which."""


BURST_NODES = 64
"""Numbers of nodes that the plans of an elastic burst-parallel job are looked up for."""

BURST_STARTUP_S, BURST_SAVE_S = 30.0, 2.0
"""What is assumed of a burst-parallel job before one like it was seen."""

Learn: TypeAlias = Callable[[str, Observations], Profile | None]

Predict: TypeAlias = Callable[[str, int, tuple[tuple[int, Observations], ...], bool], Profile | None]

Foresee: TypeAlias = Callable[[MetricPoints, float, MetricPoints], float | None]


@dataclass(frozen=True, slots=True)
class Profiles:
    """How fast and how long jobs are: the profiles that they name, and estimates for those that name none.

    Estimates are the same for the same arguments and the same nodes.
    """

    by_name: Mapping[str, Profile] = field(default_factory=dict)  # by lower-case name
    learn: Learn | None = (
        None  # a profile from what was observed of jobs alike (`JobSpec.learns_as`); None: no estimates
    )
    predict: Predict | None = None
    """A profile under a name at a batch size, from what was observed of jobs of a type (`JobSpec.type_name`) by batch
    size, and whether their GPUs synchronise; None where that does not say it."""
    foresee: Foresee | None = (
        None  # the step at which a job's metric reaches a target, from its and an earlier job's; None: no estimates
    )

    def of(self, job: Job, seen: Observations | None = None) -> Profile | None:
        """The profile that a job names, or that its burst-parallel plans are, else one learnt from jobs like it."""
        if job.spec.profile:
            profile, batch = self.by_name.get(job.spec.profile.lower()), job.spec.batch_size
            return profile if profile is None or batch is None else profile.at_batch(batch)
        if job.spec.burst:
            return burst_profile(job.spec)
        return self.learn(job.spec.learns_as, seen) if self.learn is not None and seen is not None else None

    def total_of(self, job: Job, seen: Observations | None) -> int | None:
        """Steps of the job in all: as it or its trainer says, else when its metric will have reached its target.

        `seen`: of jobs alike (`JobSpec.learns_as`).
        """
        total, accuracy, target = job.progress.total, job.progress.accuracy, job.spec.accuracy_target
        if total is not None or self.foresee is None or target is None:
            return total
        earlier = self.metric_before(job, seen)
        if not accuracy and not earlier:
            return None
        steps = self.foresee(accuracy, target, earlier)
        # Past the prediction and short of the target still: it goes on for a while, as far as anybody knows.
        return None if steps is None else max(math.ceil(steps), accuracy[-1][0] + 1 if accuracy else 1)

    def metric_before(self, job: Job, seen: Observations | None) -> MetricPoints:
        """How the metric of an earlier job like it went, else as the profile that it names says; () where neither."""
        if seen is not None and seen.metric is not None and seen.metric.job != job.id:
            return seen.metric.points
        named = self.by_name.get(job.spec.profile.lower()) if job.spec.profile else None
        return () if named is None else named.accuracy


@lru_cache(maxsize=1024)
def burst_profile(spec: JobSpec) -> Profile:
    """How a burst-parallel job scales: as the planner says. Starts and saves cost what they do where none is known."""
    # On any number of GPUs as fast as by the plan for the most GPUs that are no more: a point on both sides of a step.
    points = []
    for nodes in range(spec.nodes, min(spec.nodes_max or spec.nodes, spec.nodes + BURST_NODES) + 1):
        first = [-(-plan.gpus // nodes) for plan in spec.burst]
        for gpus in sorted({min(each, MAX_GPUS) for number in first for each in (number - 1, number) if each}):
            ms = next(plan.time_ms for plan in reversed(spec.burst) if plan.gpus <= nodes * gpus)
            points.append((nodes, gpus, 1000 / ms))
    return Profile(
        name=f"the burst-parallel plans of {spec.name}",
        points=tuple(points),
        startup_s=BURST_STARTUP_S,
        save_s=BURST_SAVE_S,
        resume_s=BURST_STARTUP_S,
        source="planned: hpcdl burst plan",
    )


def check(plan: Plan, view: View) -> None:
    """Raises BadPlan where a plan breaks a promise that the daemon gives.

    Every job of the view has exactly one target with a reason; a GPU has at most one foreground job, and one
    background job where both agreed to it and their memory fits; numbers of nodes and GPUs within each job's range;
    blocked jobs have none; a job that cannot be suspended keeps what it holds, and so does one that is exempt from
    preemption, unless it goes on to where the last plan wanted it, or is rescaled in place. A job that holds nothing
    and is started ahead (`warm`) may be given GPUs that another one goes on holding: it waits for them at the gate.
    """
    jobs = view.by_id
    targets = _said(plan, view)
    taken: dict[str, set[int]] = {}
    backgrounds: list[tuple[JobView, Placement]] = []
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
        if placement.role is Role.BACKGROUND:
            backgrounds.append((job, placement))
            continue
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
    if backgrounds:
        _check_backgrounds(view, targets, backgrounds)


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
        if job.id in targets or job.placement is None or job.standing is not Standing.STEADY:
            continue
        if job.is_background:
            raise BadPlan(f"job {job.id} is a background, and the plan does not say what becomes of it")
        kept.update(gpu for share in job.placement.shares if share.node == node for gpu in share.gpus)
    return kept


def foregrounds_of(view: View, node: str, targets: Mapping[int, Target]) -> dict[int, JobView]:
    """The job that has each GPU of the node as its foreground by these targets; jobs that they leave out go on."""
    found: dict[int, JobView] = {}
    for job in view.by_node.get(node, ()):
        if job.id not in targets and job.standing is Standing.STEADY and job.placement is not None:
            found.update((gpu, job) for share in job.placement.shares if share.node == node for gpu in share.gpus)
    for number, target in targets.items():
        if target.placement is not None and target.placement.role is not Role.BACKGROUND:
            job = view.by_id[number]
            found.update((gpu, job) for share in target.placement.shares if share.node == node for gpu in share.gpus)
    return found


def share_refusal(node: NodeView | None, gpu: int, foreground: JobView | None, background: JobView) -> str:
    """Why the background may not have this GPU, whose foreground is to be `foreground` (None: nobody); "": it may."""
    if background.share is None or not background.share.as_background:
        return agreement_refusal(Sharing("foreground"), background.share)
    if foreground is None:
        return ""
    why = agreement_refusal(foreground.share, background.share)
    if why or (node is None and background.is_background):  # away for a moment: what runs there goes on
        return why
    memory = 0 if node is None else dict(node.memory).get(gpu, 0)
    return memory_refusal(memory, foreground.gpu_memory_mib, background.gpu_memory_mib)


def _check_backgrounds(
    view: View, targets: Mapping[int, Target], backgrounds: Iterable[tuple[JobView, Placement]]
) -> None:
    """A GPU has at most one background, which agreed to it, as its foreground did; and the memory of both fits."""
    nodes = {node.name: node for node in view.nodes}
    foregrounds: dict[str, dict[int, JobView]] = {}
    taken: dict[GpuRef, int] = {}
    for job, placement in backgrounds:
        for share in placement.shares:
            if share.node not in foregrounds:
                foregrounds[share.node] = foregrounds_of(view, share.node, targets)
            for index in share.gpus:
                gpu = GpuRef(share.node, index)
                if gpu in taken:
                    raise BadPlan(f"GPU {gpu} is given to two backgrounds, jobs {taken[gpu]} and {job.id}")
                taken[gpu] = job.id
                why = share_refusal(nodes.get(share.node), index, foregrounds[share.node].get(index), job)
                if why:
                    raise BadPlan(f"job {job.id} cannot be a background on {gpu}: {why}")


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


class Policy(Protocol):
    """Decides which job gets which GPUs. It has no hidden state and changes nothing: same view, same plan."""

    @property
    def name(self) -> str:
        """The name that `hpcdl config policy NAME` takes."""
        ...

    def decide(self, view: View) -> Plan:
        """The plan for a view. Pure; warm starts of solvers come from the jobs' last targets.

        A policy may have `deliberate`, which does the same and may take seconds; None: it has not, as it is set. The
        daemon calls that one beside the Controller (`core.controller.deliberation`), with nothing else meanwhile.
        """
        ...


class PilotPolicy(Protocol):
    """Decides which pilots to submit into the holes, and which not to wait for any more. Pure."""

    def __call__(
        self,
        view: View,
        plan: Plan,
        pilots: Sequence[Pilot],
        holes: Sequence[Hole],
        known: Set[str],
        waiting: Sequence[PendingBatchJob] = (),
    ) -> PilotChoice:
        """`plan`: the one that was just made for the view. `pilots`: those that live, and the last that ended.

        `known`: nodes whose agents have come and that are not lost, those that are away included. `waiting`: others'
        batch jobs that wait for nodes, the first to start first.
        """
        ...


BY_SETTING, ALWAYS = "setting", "always"
"""What a policy's `sharing` may be: backgrounds where the setting `sharing` is on, or at any time; without it never."""


class UnknownPolicy(ValueError):
    """No policy has that name; the message lists those that there are."""


class Policies:
    """Policies by name, made when first asked for."""

    def __init__(self) -> None:
        self._makers: dict[str, Callable[[], Policy]] = {}

    def register(self, name: str, maker: Callable[[], Policy]) -> None:
        """Adds a policy; a second one of the same name is a programming error."""
        if name in self._makers:
            raise ValueError(f"policy {name!r} is registered twice")
        self._makers[name] = maker

    def add(self, *makers: Callable[[], Policy]) -> None:
        """Adds policies that are made without arguments, each under its own name."""
        for maker in makers:
            self.register(maker().name, maker)

    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(self._makers))

    def make(self, name: str) -> Policy:
        """The policy of that name. Raises UnknownPolicy."""
        maker = self._makers.get(name)
        if maker is None:
            raise UnknownPolicy(f"no policy {name!r}; {one_of(name, self.names())}")
        return maker()


ANY_OBJECTIVE = "any"


def deadlines_unheeded(policy: Policy, objective: str) -> str:
    """That the policy does nothing for deadlines under that objective, and what does; "" where it does.

    A policy that heeds them has `deadlines`: the objective under which it does, or ANY_OBJECTIVE.
    """
    heeds = getattr(policy, "deadlines", "")
    if heeds in (ANY_OBJECTIVE, objective):
        return ""
    if heeds:
        does = f"the objective {objective}: hpcdl config objective {heeds} does"
    else:
        does = f"the policy {policy.name}: hpcdl config policy adaptive with hpcdl config objective deadline does"
    return f"deadlines are not scheduled for under {does}; this one is only watched"
