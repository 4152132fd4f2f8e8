"""What a policy sees (`View`), what it answers (`Plan`), and `check`, which no plan may skip."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcdl.core.model import Job, JobState, Placement, Role, Target, World
from hpcdl.core.profile import Profile
from hpcdl.core.transitions import state_of
from hpcdl.core.units import GpuRef, count, fold_nodes


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node with the GPUs that may be granted. GPUs of a node that is away are not listed."""

    name: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobView:
    """An unfinished job as a policy sees it. GPU numbers are per node.

    `gpus_max` is settled: the user's maximum, or what the largest node has. `placement` is what it holds now
    (also while it starts, saves or ends); `target` is what the last plan gave it.
    `blocked` says in words why it cannot be placed now (held, dependency, pause after a failure), else "".
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

    def best_gpus(self, limit: int) -> int:
        """GPUs per node at which its profile is fastest, within its own range and `limit`; MAX without a profile."""
        top = min(self.gpus_max, limit)
        if top <= self.gpus_min or self.profile is None:
            return max(top, self.gpus_min)
        return self.profile.best_gpus(top, self.gpus_min, self.nodes)


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
    """Profiles by lower-case name."""

    by_name: Mapping[str, Profile] = field(default_factory=dict)

    def of(self, job: Job) -> Profile | None:
        """The profile that a job names, or None."""
        return self.by_name.get(job.spec.profile.lower()) if job.spec.profile else None


def build_view(world: World, profiles: Profiles, now: float) -> View:
    """The view of a world. Jobs that only wait for their processes to go are `leaving`."""
    nodes = tuple(NodeView(name, usable) for name in sorted(world.nodes) if (usable := world.nodes[name].usable()))
    largest = max((len(node.gpus) for node in world.nodes.values()), default=0)
    jobs = tuple(_job_view(world, world.jobs[number], profiles, largest, now) for number in world.active)
    bare = frozenset(
        name for name, node in world.nodes.items() if node.gpus and node.connected and not (node.lost or node.usable())
    )
    return View(now, nodes, jobs, world.objective, bare)


def can_suspend(job: Job) -> bool:
    """Whether the job has shown, by attaching or by its signal's preset, that it checkpoints when it is asked to."""
    return job.spec.signal != "none" and (job.can_suspend or job.spec.signal != "hpcdl")


def _job_view(world: World, job: Job, profiles: Profiles, largest: int, now: float) -> JobView:
    running = job.running
    target = world.targets.get(job.id)
    spec = job.spec
    return JobView(
        id=job.id,
        name=spec.name,
        state=state_of(job),
        gpus_min=spec.gpus_min,
        gpus_max=max(spec.gpus_min, largest if spec.gpus_max is None else spec.gpus_max),
        nodes=spec.nodes,
        step=job.step or 0,
        total=job.total,
        profile=profiles.of(job),
        placement=None if running is None else running.placement,
        target=None if target is None else target.placement,
        leaving=running is not None and (running.purpose is not None or running.ending is not None),
        can_suspend=can_suspend(job),
        blocked=_blocked(world, job, now),
        submitted_at=job.submitted_at,
        retry_at=job.retry_at,
    )


def _blocked(world: World, job: Job, now: float) -> str:
    if job.cancelling or job.final is not None:
        return "it is being cancelled" if job.cancelling else "its last processes are ending"
    if job.held:
        return f"held by its user: hpcdl resume {job.id}"
    if world.stopping:
        return "the daemon is stopping"
    waits = [number for number in job.spec.after if (before := world.jobs.get(number)) is None or not before.finished]
    if waits:
        return f"waits for {'job' if len(waits) == 1 else 'jobs'} {', '.join(map(str, waits))} to be DONE"
    if job.retry_at > now and job.running is None:  # running: the clock was set back
        return f"pauses after {count(job.repeats, 'equal failure')}: {job.last_detail}"
    return ""


def check(plan: Plan, view: View) -> None:
    """Raises BadPlan where a plan breaks a promise that the daemon gives.

    Every job of the view has exactly one target with a reason; a GPU has at most one foreground job, and a
    background job only where both agreed to it (none can yet); numbers of nodes and GPUs within each job's range;
    blocked jobs have none; a job that cannot be suspended keeps what it holds.
    """
    jobs = {job.id: job for job in view.jobs}
    nodes = {node.name: set(node.gpus) for node in view.nodes}
    targets = plan.by_job()
    if len(targets) != len(plan.targets) or targets.keys() != jobs.keys():
        raise BadPlan(f"targets must name each unfinished job once, got {sorted(t.job for t in plan.targets)}")
    taken: dict[GpuRef, int] = {}
    for number, target in targets.items():
        job = jobs[number]
        if not target.reason:
            raise BadPlan(f"job {number} has no reason")
        if target.placement is None:
            if job.placement is not None and not job.leaving and not job.can_suspend and not job.blocked:
                raise BadPlan(f"job {number} cannot be suspended, and the plan takes its GPUs")
            continue
        _check_placement(job, target.placement, nodes)
        for gpu in target.placement.gpus:
            if gpu in taken:
                raise BadPlan(f"GPU {gpu} is given to jobs {taken[gpu]} and {number}")
            taken[gpu] = number
    unknown = [number for number in plan.warm if number not in jobs]
    if unknown:
        raise BadPlan(f"warm starts of unknown jobs {unknown}")


def _check_placement(job: JobView, placement: Placement, nodes: dict[str, set[int]]) -> None:
    if job.blocked:
        raise BadPlan(f"job {job.id} is placed, but {job.blocked}")
    if placement.role is Role.BACKGROUND:
        raise BadPlan(f"job {job.id}: no job has agreed to share its GPUs")
    keeps = job.placement is not None and placement.same_gpus(job.placement)
    if job.placement is not None and not keeps and not job.leaving and not job.can_suspend:
        raise BadPlan(f"job {job.id} cannot be suspended, and the plan moves it")
    if len(placement.shares) != job.nodes:
        raise BadPlan(f"job {job.id} needs {count(job.nodes, 'node')}, got {fold_nodes(placement.nodes)}")
    if keeps:
        return  # also where its node is away, or has become smaller
    for share in placement.shares:
        if not job.gpus_min <= len(share.gpus) <= job.gpus_max:
            raise BadPlan(
                f"job {job.id} takes {job.gpus_min} to {job.gpus_max} GPUs, gets {len(share.gpus)} on {share.node}"
            )
        if not set(share.gpus) <= nodes.get(share.node, set()):
            raise BadPlan(f"job {job.id}: node {share.node} cannot grant GPUs {share.gpus}")
