"""What a policy sees (`View`), what it answers (`Plan`), and `check`, which no plan may skip."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcdl.core.model import Job, JobState, Placement, Role, Share, Target
from hpcdl.core.profile import Observation, Profile
from hpcdl.core.units import GpuRef, count, fold_nodes


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node with the GPUs that may be granted. GPUs of a node that is away are not listed.

    `kind`: their type in lower case, as profiles name it (`v100`), or "".
    """

    name: str
    gpus: tuple[int, ...]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class JobView:
    """An unfinished job as a policy sees it. GPU numbers are per node.

    `gpus_max` is settled: the user's maximum, or what the largest node has. `placement` is what it holds now
    (also while it starts, saves or ends); `target` is what the last plan gave it.
    `blocked` says in words why it cannot be placed now (held, dependency, pause after a failure), else "".
    `counts`: the only numbers of GPUs that it takes on a node, () where it takes each of its range. `step_at`: while it
    trains, when `step` was true. `held_gpu_s`: GPU seconds held before `held_since`, from when on it holds `placement`.
    `last`: what the incarnation before held. `gate`: it can be started ahead; `ahead_since`: when it was, None while it
    is not; `at_gate`: it was, and only GPUs are missing.
    """

    id: int
    name: str
    state: JobState
    gpus_min: int
    gpus_max: int
    nodes: int
    step: int
    total: int | None
    profile: Profile | None
    placement: Placement | None
    target: Placement | None
    leaving: bool
    can_suspend: bool
    blocked: str
    submitted_at: float
    retry_at: float = 0.0
    user: str = ""
    counts: tuple[int, ...] = ()
    nodes_max: int = 0
    deadline: float | None = None
    started_at: float | None = None
    step_at: float | None = None
    held_gpu_s: float = 0.0
    held_since: float | None = None
    accuracy: tuple[tuple[int, float], ...] = ()
    accuracy_target: float | None = None
    last: Placement | None = None
    gate: bool = False
    ahead_since: float | None = None
    at_gate: bool = False
    memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What follows from this value alone and was worked out before. A view keeps its JobViews while nothing changes."""

    def __post_init__(self) -> None:
        if self.nodes_max < self.nodes:
            object.__setattr__(self, "nodes_max", self.nodes)

    def allowed(self, limit: int) -> tuple[int, ...]:
        """The numbers of GPUs that it may have on a node with `limit` of them, ascending; empty where none fits."""
        if self.counts:
            return tuple(number for number in self.counts if number <= limit)
        return tuple(range(self.gpus_min, min(self.gpus_max, limit) + 1))

    def steps(self, now: float, kind: str = "") -> float:
        """Steps done by `now`: those reported, carried on at its profile's rate on GPUs of that kind."""
        if self.step_at is None or self.placement is None or self.profile is None or now <= self.step_at:
            return float(self.step)
        rate = self.profile.on(kind).rate(self.placement.per_node, len(self.placement.shares))
        done = self.step + (now - self.step_at) * rate
        return done if self.total is None else min(done, float(self.total))

    def remaining(self, now: float, kind: str = "") -> float | None:
        """Steps that it still has to do at `now`, or None where their number is not known."""
        return None if self.total is None else max(0.0, self.total - self.steps(now, kind))

    def attained_gpu_s(self, now: float) -> float:
        """GPU seconds that it has held until `now`."""
        if self.placement is None or self.held_since is None:
            return self.held_gpu_s
        return self.held_gpu_s + max(0.0, now - self.held_since) * len(self.placement.gpus)

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
class View:
    """The world as a policy sees it: nodes by name, unfinished jobs in the order of submission.

    `bare`: nodes whose agent is there and that are not in `nodes`, since none of the GPUs they have may be granted.
    """

    now: float
    nodes: tuple[NodeView, ...]
    jobs: tuple[JobView, ...]
    objective: str = "makespan"
    bare: frozenset[str] = frozenset()

    def kind_of(self, node: str) -> str:
        """The type of GPU of a node, "" where it is not known."""
        return next((each.kind for each in self.nodes if each.name == node), "")

    @property
    def largest_node(self) -> int:
        """GPUs of the node that has most, 0 without nodes."""
        return max((len(node.gpus) for node in self.nodes), default=0)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is wanted. `targets`: one for each job of the view, with its reason. `wake_at`: when to be asked again."""

    targets: tuple[Target, ...]
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


@dataclass(frozen=True, slots=True)
class Profiles:
    """Profiles by lower-case name; and what makes one of what was observed, for jobs that name none."""

    by_name: Mapping[str, Profile] = field(default_factory=dict)
    learn: Callable[[str, tuple[Observation, ...]], Profile | None] | None = None

    def of(self, job: Job, observed: tuple[Observation, ...] = ()) -> Profile | None:
        """The profile that a job names, else the one learnt from jobs like it, or None."""
        if job.spec.profile:
            return self.by_name.get(job.spec.profile.lower())
        return self.learn(job.spec.learns_as, observed) if self.learn is not None and observed else None


def check(plan: Plan, view: View) -> None:
    """Raises BadPlan where a plan breaks a promise that the daemon gives.

    Every job of the view has exactly one target with a reason; a GPU has at most one foreground job, and a
    background job only where both agreed to it (none can yet); numbers of nodes and GPUs within each job's range;
    blocked jobs have none; a job that cannot be suspended keeps what it holds. A job that holds nothing and is started
    ahead (`warm`) may be given GPUs that another one goes on holding: it waits for them at the gate.
    """
    jobs = {job.id: job for job in view.jobs}
    nodes = {node.name: set(node.gpus) for node in view.nodes}
    targets = plan.by_job()
    if len(targets) != len(plan.targets) or targets.keys() != jobs.keys():
        raise BadPlan(f"targets must name each unfinished job once, got {sorted(t.job for t in plan.targets)}")
    taken: dict[str, set[int]] = {name: set() for name in nodes}
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
            _check_placement(job, placement, nodes)
        for share in placement.shares if number not in ahead else ():
            there = taken.setdefault(share.node, set())
            if not there.isdisjoint(share.gpus):
                raise _given_twice(plan, share, number)
            there.update(share.gpus)
    unknown = [number for number in plan.warm if number not in jobs]
    if unknown:
        raise BadPlan(f"warm starts of unknown jobs {unknown}")
    if ahead:
        _check_ahead(plan, view, ahead, taken)


def _check_ahead(plan: Plan, view: View, ahead: set[int], taken: dict[str, set[int]]) -> None:
    """What jobs are to wait for at the gate is free for them, or held now by a job that goes on."""
    held: dict[str, set[int]] = {}
    for job in view.jobs:
        for share in job.placement.shares if job.placement is not None and not job.leaving else ():
            held.setdefault(share.node, set()).update(share.gpus)
    for target in plan.targets:
        if target.job not in ahead or target.placement is None:
            continue
        for share in target.placement.shares:
            there = taken.setdefault(share.node, set())
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


def _check_placement(job: JobView, placement: Placement, nodes: dict[str, set[int]]) -> None:
    if job.blocked:
        raise BadPlan(f"job {job.id} is placed, but {job.blocked}")
    if placement.role is Role.BACKGROUND:
        raise BadPlan(f"job {job.id}: no job has agreed to share its GPUs")
    keeps = job.placement is not None and placement.same_gpus(job.placement)
    if job.placement is not None and not keeps and not job.leaving and not job.can_suspend:
        raise BadPlan(f"job {job.id} cannot be suspended, and the plan moves it")
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
        if not set(share.gpus) <= nodes.get(share.node, set()):
            raise BadPlan(f"job {job.id}: node {share.node} cannot grant GPUs {share.gpus}")
