"""Jobs, nodes, and the world: all that the daemon knows. Values only.

`core/fold/` says how they change. What a user submitted is in `job.py`, a job's processes are in `incarnation.py`, and
the state that users see of a job is derived in `transitions.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b

from hpcdl.core.model.frozen import unchecked
from hpcdl.core.model.health import Avoided, Failed
from hpcdl.core.model.incarnation import Cause, Incarnation, Placement
from hpcdl.core.model.job import Drill, JobSpec
from hpcdl.core.model.notice import Notice, Route
from hpcdl.core.model.pilot import Pilot
from hpcdl.core.model.profile import Observations, Timing
from hpcdl.core.model.units import GpuRef

RESTARTED = "the daemon restarted"
"""Why a node is silent whose agent has not called since the daemon started."""


class JobState(StrEnum):
    """What a user sees of a job; derived from its incarnations (`transitions.state_of`)."""

    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RESCALING = "RESCALING"
    SUSPENDING = "SUSPENDING"
    SUSPENDED = "SUSPENDED"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True)
class Expectation:
    """Whether a job is expected to meet its deadline, by the last forecast that was recorded (`rules.deadlines`)."""

    meets: bool
    since: float  # when that was predicted, the daemon's time
    probability: float  # from 0 to 1, as it was then
    ends_at: float | None = None  # the predicted end, as it was then; None: not known
    slipped: bool = False  # before that it was expected to meet it


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job was finished."""

    state: JobState  # DONE, FAILED or CANCELLED
    at: float  # when, the daemon's time


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a job as soon as no incarnation of it lives."""

    state: JobState  # DONE, FAILED or CANCELLED
    detail: str = ""  # why, in words


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a job has come, over all of its incarnations."""

    step: int | None = None  # the last one reported; None before
    total: int | None = None  # steps in all, as it or its trainer says; None: nobody said
    saved_step: int | None = None  # of its newest durable checkpoint; None without one
    accuracy: tuple[tuple[int, float], ...] = ()  # (step, metric) as its trainers reported them, thinned out


@dataclass(frozen=True, slots=True)
class Setback:
    """An attempt that went on behind what was saved."""

    attempt: int
    step: int  # from which it went on
    saved: int  # the step that was durable
    saved_by: int = 0  # the attempt that saved it; 0: not known
    damaged: tuple[str, ...] = ()  # the checkpoints that it passed over, in words

    @property
    def text(self) -> str:
        """In words: `resumed at 3379; 3994 was saved by attempt 4`."""
        return f"resumed at {self.step}; {self.saved} was saved{by_attempt(self.saved_by)}"


def by_attempt(number: int) -> str:
    """Who saved, to follow `was saved`; "" where that is not known."""
    return f" by attempt {number}" if number else ""


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """How often a job failed; by this its retries and pauses are decided (`rules.endings`)."""

    total: int = 0  # in its whole life
    retries_used: int = 0  # user errors since its user retried it last
    repeats: int = 0  # failures in a row that were all as `signature` says
    signature: str = ""  # of the last failure, "" where the last incarnation did not fail
    retry_at: float = 0.0  # it does not start before, the daemon's time


@dataclass(frozen=True, slots=True)
class LastAttempt:
    """How a job's last incarnation with GPUs ended."""

    cause: Cause | None = None  # None before the first end
    detail: str = ""  # of that, or of the job's own end, in words
    exit_code: int | None = None  # None where it has none, and after a retry
    placement: Placement | None = None  # what it held; None before


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """What a job's starts and checkpoints took last, in seconds."""

    start_s: float | None = None  # its last start that came as far as a step; None: none did
    save_s: float | None = None  # its newest durable checkpoint; None without one


@dataclass(frozen=True, slots=True)
class DrillRecord:
    """The last preemption test of a job."""

    result: Drill
    at: float  # when it was recorded, the daemon's time


@dataclass(frozen=True, slots=True)
class Job:
    """A job and where it stands. Times are the daemon's, in seconds since the epoch.

    Rows of retired jobs are stored flat (`ledger/flat_records.py`); what comes later follows in the order of the fields
    here, so a new one comes at the end.
    """

    id: int
    spec: JobSpec  # as it was submitted
    submitted_at: float
    end: JobEnd | None = None  # None until it is finished
    live: tuple[Incarnation, ...] = ()  # at most two: one with GPUs, one at the gate
    last_incarnation: int = 0  # number of the newest, 0 before the first
    held: bool = False  # suspended by its user, not to start yet, or held after `held_after`
    cancelling: bool = False  # its user cancelled it, and it is not finished
    cancel_why: str = ""  # why else it is, in words; "": its user did
    verdict: Verdict | None = None  # None: it goes on
    progress: JobProgress = JobProgress()
    first_start_at: float | None = None  # when it was given GPUs first; None before
    suspended: bool = False  # its last incarnation ended with a checkpoint
    can_suspend: bool = False  # a trainer of it has attached once
    suspends: int = 0  # in its whole life
    failures: FailureHistory = FailureHistory()
    last: LastAttempt = LastAttempt()
    costs: MeasuredCosts = MeasuredCosts()
    warm_failed: bool = False  # a start at the gate failed: it is not started ahead again
    held_gpu_s: float = 0.0  # GPU seconds of placements that are over
    drill: DrillRecord | None = None  # None without one
    expectation: Expectation | None = None  # of its deadline; None where nothing was predicted
    beginning: int = 0  # which new beginning of its checkpoint folder it made, 0: none
    nonce: str = ""  # random, of its submit; "" of jobs of earlier versions
    annotations: tuple[tuple[str, str], ...] = ()  # its user's own (key, value), by key; nothing is decided by them
    ran_s: float = 0.0  # of one with a time limit: seconds for which incarnations that are over held GPUs
    out_of_time: bool = False  # it has reached its time limit
    gpu_memory_mib: int | None = None  # the most that was measured of it on a GPU; None: nobody measured
    retried_at: float | None = None  # of one that waits for batch jobs: its last retry; None: never
    fruitless: int = 0  # attempts in a row that failed by no error of its program's and got no further
    unfit_nodes: tuple[str, ...] = ()  # those that failed it since it last began on any, a mount of theirs say
    held_after: str = ""  # after what it is held, failures that were not its program's say; "": its user did that
    ends_cut: int = 0  # attempts in a row that were ended at the end of its script, after the last step
    nonces: tuple[str, ...] = ()  # of its last starts, the newest last
    saved_by: int = 0  # the attempt that saved last of those that are over; 0: not known
    setback: Setback | None = None  # the last one; None: each attempt went on from what was saved
    checkpoint_missing: bool = False  # it is held at step 0, though it had saved; released, it may begin there
    suspended_for: tuple[int, ...] = ()  # jobs that were to have its GPUs when it was asked to suspend last; (): none

    @property
    def identity(self) -> str:
        """What tells it from every other job, also from one of the same number where a ledger was lost; "": unknown."""
        return blake2b(f"{self.nonce}:{self.id}".encode(), digest_size=16).hexdigest() if self.nonce else ""

    @property
    def finished(self) -> bool:
        """DONE, FAILED or CANCELLED."""
        return self.end is not None

    @property
    def outcome(self) -> JobState | None:
        """The state that it was finished in; None until then."""
        return None if self.end is None else self.end.state

    @property
    def finished_at(self) -> float | None:
        """When it was finished; None until then."""
        return None if self.end is None else self.end.at

    @property
    def running(self) -> Incarnation | None:
        """The incarnation that holds GPUs (also while it saves or ends), or None."""
        for incarnation in self.live:  # asked of every job at every decision: no generator
            if incarnation.placement is not None:
                return incarnation
        return None

    @property
    def gated(self) -> Incarnation | None:
        """The warm start that waits at the gate, or None."""
        return next((inc for inc in self.live if inc.placement is None), None)

    def incarnation(self, number: int) -> Incarnation | None:
        """A live incarnation by its number, or None."""
        for incarnation in self.live:
            if incarnation.number == number:
                return incarnation
        return None


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """A GPU of a node, as its agent reported it."""

    index: int  # how placements name it
    uuid: str
    name: str = ""  # as its driver has it
    memory_mib: int = 0  # 0 where it is not known
    state: str = "ok"  # ok, lost (it fell off the bus) or dirty (a process that should not be there holds it)
    detail: str = ""  # why it is not ok, in words
    distances: tuple[tuple[int, int], ...] = ()  # (index, how far: 1 is NVLink) of the node's other GPUs; (): not known


@dataclass(frozen=True, slots=True)
class Node:
    """A node with an agent. Times are the daemon's, in seconds since the epoch."""

    name: str
    gpus: tuple[GpuInfo, ...] = ()
    cpus: int = 0
    memory_mib: int = 0
    agent_pid: int = 0
    boot_id: str = ""  # the kernel's
    emulated: bool = False  # its GPUs are
    connected: bool = False  # its agent is connected now; that alone concludes nothing
    lost: bool = False  # it was concluded that nothing of ours runs there any more
    reason: str = ""  # why it is silent, lost or to be left, in words
    since: float = 0.0  # when it joined, fell silent or was lost
    log_id: str = ""  # of the agent's report log
    reports_seen: int = 0  # reports of that log that were taken in
    joined_at: float = 0.0  # when it came, whatever its agent did since
    until: float | None = None  # when it goes; None: not known
    place: tuple[str, ...] = ()  # in the network, the outermost switch first; (): not known
    leaving: bool = False  # nothing may start on it any more, and what runs there is to go
    allocation: str = ""  # the batch job that holds it for us; "" outside of any
    address: str = ""  # its IP, by which other nodes reach it; "": not known
    avoided: tuple[Avoided, ...] = ()  # GPUs of it, or itself, that are granted to nobody for a while, or were
    failed: tuple[Failed, ...] = ()  # jobs that failed there lately

    @property
    def usable(self) -> tuple[int, ...]:
        """Indices of GPUs that may be granted; none while the node is away."""
        if self.lost or not self.connected or self.leaving:
            return ()
        if self.avoided:
            away = {each.index for each in self.avoided if not each.over}
            return tuple(gpu.index for gpu in self.gpus if gpu.state == "ok" and not away & {None, gpu.index})
        return tuple(gpu.index for gpu in self.gpus if gpu.state == "ok")

    def avoids(self, index: int | None) -> Avoided | None:
        """What keeps this GPU (None: the node) from being granted now: of itself, or of the whole node."""
        for each in self.avoided:
            if not each.over and each.index in (None, index):
                return each
        return None


@dataclass(frozen=True, slots=True)
class Target:
    """What a plan wants for one job."""

    job: int
    placement: Placement | None  # None: it is to hold nothing
    reason: str  # in words, for its user


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """How a batch job ended that jobs wait for, as the batch system says."""

    done: bool | None  # it succeeded; None: nobody knows
    how: str  # in words
    at: float | None = None  # when that was concluded; None: by an earlier version, which did not say


@dataclass(frozen=True, slots=True)
class Floor:
    """What jobs may have had that this ledger does not know: it was restored, or lost events (`IdsRaised`)."""

    job: int = 1  # jobs with an id below this
    incarnation: int = 0  # may have had incarnations up to this
    beginning: int = 0  # and new beginnings of their checkpoint folders up to this


@dataclass(slots=True)
class World:
    """Everything the daemon knows, made by folding events. Read-only outside of effects."""

    seq: int = 0  # number of the last event
    at: float = 0.0  # time of the last event, seconds since the epoch
    jobs: dict[int, Job] = field(default_factory=dict)  # by id
    active: dict[int, None] = field(default_factory=dict)  # the ids of unfinished jobs, in order of submission
    nodes: dict[str, Node] = field(default_factory=dict)  # by name
    holders: dict[GpuRef, tuple[int, int]] = field(default_factory=dict)  # (job, incarnation) by the GPU that it holds
    backgrounds: dict[GpuRef, tuple[int, int]] = field(default_factory=dict)  # the same of backgrounds (`sharing`)
    request_ids: dict[str, tuple[int, ...]] = field(default_factory=dict)  # the jobs of each submit
    targets: dict[int, Target] = field(default_factory=dict)  # by the plan adopted last; a job without holds nothing
    warm: tuple[int, ...] = ()  # the jobs that this plan starts ahead of their GPUs
    policy: str = "marble"
    objective: str = "makespan"
    fence: int = 0  # of the newest daemon
    nonce: str = ""  # of the newest daemon, random; "" of one of an earlier version
    stopping: bool = False  # the daemon suspends what runs, to end
    stopping_now: bool = False  # and does not wait for checkpoints
    next_job: int = 1
    observed: dict[str, Observations] = field(default_factory=dict)  # by `JobSpec.learns_as`; the newest at the end
    usual_times: tuple[Timing, ...] = ()  # how long starts and suspends took, of all jobs
    gaps: tuple[float, ...] = ()  # seconds between the last changes of the set of nodes, the newest at the end
    nodes_changed_at: float = 0.0  # when the newest of them was
    pilots: dict[int, Pilot] = field(default_factory=dict)  # those that live, and the last that ended
    next_pilot: int = 1
    notices: dict[int, Notice] = field(default_factory=dict)  # notifications to deliver, and those that were given up
    next_notice: int = 1
    routes: dict[str, Route] = field(default_factory=dict)  # destinations that do not take their notifications
    retired: dict[str, int] = field(default_factory=dict)  # how many jobs have left `jobs`, by outcome
    folders: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By checkpoint folder that a retired job named: the highest incarnation and new beginning there."""
    unknown: tuple[tuple[int, int], ...] = ()  # first and last of ids that were jumped over (`IdsRaised`)
    floor: Floor = Floor()

    batch_ends: dict[str, BatchEnd] = field(default_factory=dict)  # of batch jobs that jobs waited for, the newest last

    # These follow from `jobs`, and are not stored.
    live: dict[int, None] = field(init=False, repr=False)  # the ids of jobs that have incarnations
    awaited_batch: dict[str, tuple[int, ...]] = field(init=False, repr=False, compare=False)
    """By batch job: unfinished jobs that wait for its end, and some that are finished."""
    awaited: dict[int, tuple[int, ...]] = field(init=False, repr=False, compare=False)
    """By job: those that wait for its end, finished ones too."""

    def __post_init__(self) -> None:
        self.awaited, self.awaited_batch = {}, {}
        for number in self.active:
            if number in self.jobs:
                self.await_others(self.jobs[number].spec, (number,))
        self.live = {number: None for number in self.active if number in self.jobs and self.jobs[number].live}

    def await_others(self, spec: JobSpec, numbers: Sequence[int]) -> None:
        """Notes that these jobs wait for those that the spec names. Only effects call it."""
        for before in spec.awaits:
            if numbers[0] not in (known := self.awaited.get(before, ())):
                self.awaited[before] = (*known, *numbers)
        for batch in spec.awaits_batch:
            if numbers[0] not in (known := self.awaited_batch.get(batch, ())):
                self.awaited_batch[batch] = (*known, *numbers)

    def __copy__(self) -> "World":
        return unchecked(self)  # at every step: a fifth of what `copy` takes by itself


NAME = "from-start-{}"
"""The folder within a checkpoint folder for its n-th new beginning: `hpcdl retry --from-start` removes nothing."""


def beginning_of(world: World, job: Job) -> int:
    """How many times the job's checkpoint folder was begun anew, for this job or another one that uses it."""
    folder = job.spec.checkpoint_dir
    if folder is None:
        return job.beginning
    there = (each.beginning for each in world.jobs.values() if each.spec.checkpoint_dir == folder)
    return max(world.folders.get(folder, (0, 0))[1], *there, job.beginning)


def folder_within(folder: str, beginning: int) -> str:
    """Where checkpoints are, of a checkpoint folder that was begun anew so many times."""
    return f"{folder}/{NAME.format(beginning)}" if beginning else folder


def validate(world: World) -> None:
    """Raises ValueError where the world contradicts itself: a GPU held twice, a finished job that lives.

    Called by tests at every teardown, and by `SqliteJournal.verify`.
    """
    expected: dict[GpuRef, tuple[int, int]] = {}
    behind: dict[GpuRef, tuple[int, int]] = {}
    for job in world.jobs.values():
        if job.finished == (job.id in world.active):
            raise ValueError(f"job {job.id}: finished is {job.finished}, but active is {job.id in world.active}")
        if job.finished and job.live:
            raise ValueError(f"job {job.id} is {job.outcome} and has live incarnations")
        if len(job.live) != sum(each is not None for each in (job.running, job.gated)):
            raise ValueError(f"job {job.id} has two incarnations with GPUs, or two at the gate")
        for incarnation in job.live:
            if incarnation.number > job.last_incarnation:
                raise ValueError(f"job {job.id}: incarnation {incarnation.number} > last {job.last_incarnation}")
            if incarnation.placement is None:
                continue
            for share in incarnation.placement.shares:
                part = incarnation.part(share.node)
                if part is None or part.gpus != share.gpus:
                    raise ValueError(f"job {job.id}.{incarnation.number} has {share} and no such part")
            if len({part.node for part in incarnation.parts}) != len(incarnation.parts):
                raise ValueError(f"job {job.id}.{incarnation.number} has two parts on one node: {incarnation.nodes}")
            if not set(incarnation.nodes).issuperset(incarnation.members):
                raise ValueError(f"job {job.id}.{incarnation.number}: members {incarnation.members} without a part")
            for part in incarnation.parts:
                there = behind if incarnation.is_background else expected
                for gpu in (GpuRef(part.node, index) for index in part.gpus if not (part.freed or part.lost)):
                    if gpu in there:
                        raise ValueError(f"GPU {gpu} is in jobs {there[gpu][0]} and {job.id}")
                    there[gpu] = (job.id, incarnation.number)
    alive = {job.id for job in world.jobs.values() if job.live}
    if alive != set(world.live):
        raise ValueError(f"jobs {sorted(alive)} have incarnations, but live are {sorted(world.live)}")
    if expected != world.holders:
        raise ValueError(f"holders are {world.holders}, incarnations say {expected}")
    if behind != world.backgrounds:
        raise ValueError(f"backgrounds are {world.backgrounds}, incarnations say {behind}")
    for gpu in behind.keys() & expected.keys():
        first, second = (world.jobs[each[gpu][0]] for each in (expected, behind))
        if not (first.spec.share and first.spec.share.as_foreground and second.spec.share):
            raise ValueError(f"GPU {gpu} is in jobs {first.id} and {second.id}, and they have not agreed to share it")
    for number in {number for number, _ in behind.values()}:
        agreed = world.jobs[number].spec.share
        if agreed is None or not agreed.as_background:
            raise ValueError(f"job {number} is a background, and has not agreed to that")


def is_unknown(world: World, number: int) -> bool:
    """Whether the id is one that this ledger never gave and never will: its job, if there was one, is forgotten."""
    return any(first <= number <= last for first, last in world.unknown)


def floor_of(world: World, job: Job) -> Floor:
    """Incarnation and new beginning that the job, or another in its checkpoint folder, may have had unseen."""
    if job.id < world.floor.job or job.spec.checkpoint_dir is not None:
        return world.floor
    return Floor()


def last_number(world: World, job: Job) -> int:
    """The highest incarnation that has claimed the job's checkpoint folder, by this job or an earlier one."""
    floor = floor_of(world, job).incarnation
    if job.spec.checkpoint_dir is None:
        return max(job.last_incarnation, floor)
    folder = job.spec.checkpoint_dir
    there = (each.last_incarnation for each in world.jobs.values() if each.spec.checkpoint_dir == folder)
    return max(world.folders.get(folder, (0, 0))[0], floor, *there)


def start_nonce(world: World, job: int, incarnation: int) -> str:
    """What tells a start from one of the same number that another home made; "" where the daemon has no nonce."""
    text = f"{world.nonce}:{job}:{incarnation}"
    return blake2b(text.encode(), digest_size=8).hexdigest() if world.nonce else ""


def no_such_job(world: World, number: int) -> str:
    """The refusal of a job that is not there."""
    if is_unknown(world, number):
        return (
            f"job {number} is not known: this ledger has no record of it (it was restored or lost, or the id was left "
            f"out). If the job ran, its folders are kept: checkpoints/{number} and logs/{number} in the daemon's home"
        )
    return f"there is no job {number}: hpcdl ls --all lists them"


def lifts_hold(job: Job) -> str:
    """The verb that lets a held job go on: what was never started is released."""
    return "release" if job.first_start_at is None else "resume"


UNDECIDED = "waiting for the next scheduling decision"
"""The reason of a job that was submitted since the last one."""


def cancelled_text(job: Job) -> str:
    """Why a job is CANCELLED, or about to be."""
    return job.cancel_why or "cancelled by its user"


def held_text(job: Job) -> str:
    """By whom or after what a held job is held, and how it goes on."""
    verb = f"hpcdl {lifts_hold(job)} {job.id}"
    if job.held_after and job.checkpoint_missing:
        return f"held before step 0: {job.held_after}: put its checkpoints back, or let it begin anew: {verb}"
    return f"held after {job.held_after}: {verb} tries again" if job.held_after else f"held by its user: {verb}"


def can_suspend(job: Job) -> bool:
    """Whether the job has shown, by attaching or by its signal's preset, that it checkpoints when it is asked to."""
    if job.spec.resumes is not None:
        return True  # it resumes by itself
    return job.spec.signal != "none" and (job.can_suspend or job.spec.signal != "hpcdl")


def has_own_handler(job: Job) -> bool:
    """Whether the job is asked by a signal that its program handles itself: what that saves, hpcdl does not see."""
    return job.spec.resumes is None and job.spec.signal not in ("hpcdl", "none")
