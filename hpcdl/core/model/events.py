"""The catalogue of events: facts and decisions, in the past tense. Only by them does the world change (`core/fold/`).

Each names its job, incarnation, membership and node where it has them. `kind` is the class's name. Times are the
daemon's, in seconds since the epoch, and belong to the record, not the event. What an event does, and what follows from
that, is said beside its effect. Ledgers are read for ever: no class is renamed or removed, what one
means never changes, and a new field has a default.
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from msgspec import Struct

from hpcdl.core.model.arrays import Array, expand
from hpcdl.core.model.frozen import CodecError, from_json, to_json
from hpcdl.core.model.incarnation import Cause, Placement, Purpose, Role
from hpcdl.core.model.job import Drill, JobSpec
from hpcdl.core.model.notice import NoticeKind
from hpcdl.core.model.pilot import BatchJob, PilotSpec
from hpcdl.core.model.units import runs
from hpcdl.core.model.world import GpuInfo, JobState, Target

# --- what events are of -----------------------------------------------------------------------------------------------


class Event(Struct, frozen=True):
    """Base of all events."""

    stream_of: ClassVar[str] = "daemon"

    @property
    def kind(self) -> str:
        """The event's name in the ledger and in `hpcdl events`."""
        return type(self).__name__

    @property
    def stream(self) -> str:
        """`job/7`, `node/n1`, `pilot/3` or `daemon`: what the event's version counts within."""
        name = self.stream_of
        return name if name == "daemon" else f"{name}/{getattr(self, name)}"


class JobEvent(Event, frozen=True):
    """Base of the events of one job."""

    stream_of: ClassVar[str] = "job"
    job: int


class IncarnationEvent(JobEvent, frozen=True):
    """Base of the events of one incarnation."""

    incarnation: int


class Report(IncarnationEvent, frozen=True):
    """Base of what an agent reports of its node's part; `age_s`: how long ago it happened when it was sent."""

    membership: int
    node: str
    age_s: float = 0.0


class NodeEvent(Event, frozen=True):
    """Base of the events of one node."""

    stream_of: ClassVar[str] = "node"
    node: str


class PilotEvent(Event, frozen=True):
    """Base of the events of one pilot."""

    stream_of: ClassVar[str] = "pilot"
    pilot: int


# --- jobs: what users ask, what is expected, how they end -------------------------------------------------------------


class JobSubmitted(JobEvent, frozen=True):
    """Acknowledges a submit; the same `request_id` again is the same job."""

    spec: JobSpec
    request_id: str
    nonce: str = ""  # of the submit, random; the identity of its jobs comes from it (`Job.identity`)


class ArraySubmitted(JobEvent, frozen=True):
    """Acknowledges an array, whose first member is `job`; the others follow it. `arrays.expand` says what they are.

    `spec`: their template. `indices`, `sweep`, `max_parallel`: of an `arrays.Array`. `held`: they are held at once.
    """

    spec: JobSpec
    request_id: str
    indices: tuple[tuple[int, int, int], ...] = ()
    sweep: tuple[tuple[str, tuple[str, ...]], ...] = ()
    max_parallel: int = 0
    held: bool = False
    nonce: str = ""

    @property
    def array(self) -> Array:
        """Which jobs it has."""
        return Array(self.indices, self.sweep, self.max_parallel)

    @property
    def members(self) -> range:
        """Their ids."""
        return range(self.job, self.job + self.array.size)

    @property
    def specs(self) -> tuple[JobSpec, ...]:
        """Of its members, in order."""
        return expand(self.spec, self.array, self.job)


class JobHeld(JobEvent, frozen=True):
    """Its user suspended it: no policy may lift that. `after`: where no user did, after what it is held, in words."""

    after: str = ""


class TimeLimitReached(JobEvent, frozen=True):
    """It has held GPUs for as long as its submit allowed: it is suspended, and FAILED once nothing of it is left."""


class JobReleased(JobEvent, frozen=True):
    """Its user lifted the hold."""


class JobAnnotated(JobEvent, frozen=True):
    """Its user wrote something about it, for people and scripts. `changes`: (key, value); "" removes the key."""

    changes: tuple[tuple[str, str], ...]


class PriorityChanged(JobEvent, frozen=True):
    """Its user gave it another priority; it counts from now on, whether the job waits or runs."""

    priority: int


class CancelRequested(JobEvent, frozen=True):
    """Its user cancelled it, or it is over for another reason, `why`; CANCELLED once nothing of it is left."""

    why: str = ""


class JobRetried(JobEvent, frozen=True):
    """Its user has a job that FAILED or was CANCELLED queued again; it resumes from its last checkpoint.

    `beginning`: with it its checkpoint folder is begun anew, for the time of that number; 0: it is not. `failures`: so
    often it has failed until then, which is still told; earlier versions began at 0 again, and their events still do.
    """

    beginning: int = 0
    failures: int = 0


class JobDrilled(JobEvent, frozen=True):
    """`hpcdl drill` suspended and killed it on purpose, and this is what was seen."""

    drill: Drill


class DeadlineForeseen(JobEvent, frozen=True):
    """Whether the job is expected to meet its deadline: for the first time, or again after it had slipped.

    `probability` that it is met; `ends_at`: when the job would be done if nothing else came, None: not in sight.
    """

    meets: bool
    probability: float
    ends_at: float | None = None


class DeadlineSlipped(JobEvent, frozen=True):
    """It was expected to meet its deadline, and is not any more; `passed`: the deadline is over already."""

    probability: float
    ends_at: float | None = None
    passed: bool = False


class JobEnded(JobEvent, frozen=True):
    """DONE, FAILED or CANCELLED, and why."""

    state: JobState
    detail: str = ""


class JobsRetired(Event, frozen=True):
    """These jobs ended long ago, and are kept as history only: the ledger has them in a table, the world no more.

    `ranges`: the first and the last id of those that follow each other.
    """

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, numbers: Iterable[int]) -> "JobsRetired":
        """Of these ids, which go up."""
        return cls(tuple(runs(numbers)))

    @property
    def jobs(self) -> Iterator[int]:
        """The ids."""
        for first, last in self.ranges:
            yield from range(first, last + 1)


# --- incarnations: what is requested ----------------------------------------------------------------------------------


class StartRequested(IncarnationEvent, frozen=True):
    """A start with its GPUs (`placement`), or a warm start on `nodes` that waits at the gate (`placement` None).

    `nonce`: random; it tells the start from one of the same number that a copy of the home makes.
    """

    nodes: tuple[str, ...]
    placement: Placement | None
    nonce: str = ""


class OpenRequested(IncarnationEvent, frozen=True):
    """The gate is to open onto these GPUs, which were seen free."""

    placement: Placement


class PreemptRequested(IncarnationEvent, frozen=True):
    """It is to be suspended as if its GPUs were wanted; the job is not held, and may be placed again at once."""


class SuspendRequested(IncarnationEvent, frozen=True):
    """The handshake begins."""

    purpose: Purpose
    grace_s: float
    takers: tuple[int, ...] = ()  # the jobs that are to have its GPUs, at a preemption


class EndRequested(IncarnationEvent, frozen=True):
    """To be ended without a checkpoint; `cause` is what its end will be called."""

    cause: Cause
    grace_s: float
    detail: str = ""


class JoinRequested(IncarnationEvent, frozen=True):
    """More nodes start ranks for a running incarnation; the others train on until these can be taken in."""

    placement: Placement


class RescaleRequested(IncarnationEvent, frozen=True):
    """Its ranks are to form a new membership, on `members` in the order of their ranks; `leaving` are to go."""

    membership: int
    members: tuple[str, ...]
    leaving: tuple[str, ...] = ()


class LeaveRequested(IncarnationEvent, frozen=True):
    """What was started on these nodes to join is not wanted any more."""

    nodes: tuple[str, ...]


class RoleChanged(IncarnationEvent, frozen=True):
    """Same GPUs, other role: nothing is asked of the trainer. A background whose foreground is gone becomes one."""

    role: Role


# --- incarnations: what agents report ---------------------------------------------------------------------------------


class Started(Report, frozen=True):
    """The trainer's first process runs."""

    pid: int = 0


class AtGate(Report, frozen=True):
    """Warmed up and waiting: without a GPU for them, or for the next membership, which could meet at `address`."""

    warm_s: float = 0.0
    address: str = ""


class Attached(Report, frozen=True):
    """The trainer speaks our protocol."""

    pid: int = 0
    rank: int = 0


class TrainerReady(Report, frozen=True):
    """The training loop begins at `step` (what was resumed, or 0)."""

    step: int = 0


class Reformed(Report, frozen=True):
    """The ranks of the new membership train on, from `step`; they did not for `seconds`. Of the first node only."""

    step: int = 0
    seconds: float = 0.0


class Broken(Report, frozen=True):
    """The other ranks do not answer: this node's keep their state, and wait for a new membership."""

    step: int = 0
    why: str = ""


class Progressed(Report, frozen=True):
    """`step` of `total` done; at most one each interval, so it may be late by that much.

    `metric`: the accuracy (or the like) that it is trained for, where the trainer says it.
    """

    step: int = 0
    total: int | None = None
    samples: int | None = None
    metric: float | None = None


class ModelReported(Report, frozen=True):
    """What its model is made of (`structure.ModelStructure`): by that the types of jobs are compared."""

    layers: tuple[tuple[str, int], ...] = ()
    parameters: int = 0
    activation_bytes: int | None = None


class Saved(Report, frozen=True):
    """A checkpoint is durable; `final`: the trainer exits because it was asked to suspend."""

    step: int = 0
    path: str = ""
    seconds: float = 0.0
    final: bool = False


class TrainingDone(Report, frozen=True):
    """All steps are done, `step` of them: from here on the end of its script runs."""

    step: int = 0


class CheckpointDamaged(Report, frozen=True):
    """The checkpoint of `step` is not what was written, or does not load: it is kept at `path`, and the one before is
    used. `attempt`: which saved it; 0 in what earlier versions recorded, which is told and not remembered.
    """

    step: int = 0
    path: str = ""
    why: str = ""
    attempt: int = 0


class Exited(Report, frozen=True):
    """Every process of this part is gone. `hint`: the cause, where the agent knows more than the code.

    `done`: the trainer said that its training is complete. `ended_by`: what it was asked to: suspend, end, absence.
    `left`: its script had come to its end. `by_itself`: it exited before it was sent a signal that ends it, and with
    no checkpoint that answered a suspend; of a trainer that attached.
    """

    code: int | None = None
    signal: str | None = None
    attached: bool = False
    ended_by: str | None = None
    done: bool = False
    hint: Cause | None = None
    step: int | None = None
    detail: str = ""
    repeats: int = 1
    """So many times its ranks had failed alike, with nothing gained between."""
    kept: str = ""
    """The checkpoint that its program wrote by itself since it was asked to go; `older`: the newest since its start."""
    older: str = ""
    permanent: bool = False
    """Another start comes no further: what it needs cannot be made there."""
    node_fault: bool = False
    """Its node failed it, a mount of it say: another one may not. Where it is `permanent` too, it may be its user's."""
    left: bool = False
    by_itself: bool = False
    claimed: int = 0
    """The number of the attempt that had claimed the checkpoint folder, where it was not started for that."""
    missing: int | None = None
    """It ended before its first step: it would have begun at step 0, and this step was saved."""


class GpusFreed(Report, frozen=True):
    """The agent saw that no process of this part holds its GPUs."""


class Noted(Report, frozen=True):
    """Something worth telling that changes nothing (a stopped process continued, output dropped)."""

    text: str = ""


class Throttled(Report, frozen=True):
    """A background's step gate lets it run for another share of its time, by the slowdown of the job beside it."""

    foreground: int = 0  # that job; 0: there is none any more
    duty: float = 1.0  # from 0, the gate is closed, to 1
    limit: float = 0.0  # of that job's slowdown
    slowdown: float | None = None  # of that job; None: not known yet


# --- incarnations: what is concluded ----------------------------------------------------------------------------------


class ResumedBehind(IncarnationEvent, frozen=True):
    """Its training goes on from `step`, and a later one, `saved`, was durable: from here on `step` is what counts.

    `saved_by`: the attempt that saved that, 0: not known. `damaged`: the checkpoints that it passed over, in words.
    """

    step: int
    saved: int
    saved_by: int = 0
    damaged: tuple[str, ...] = ()


class JobStalled(IncarnationEvent, frozen=True):
    """No progress of it was seen since `since`; `what`: of which kind. `restart`: it is to be started again.

    `step`: where it stands.
    """

    since: float
    what: str
    step: int | None = None
    restart: bool = False


class StallOver(IncarnationEvent, frozen=True):
    """It makes progress again."""


class GpuMemoryMeasured(IncarnationEvent, frozen=True):
    """It takes `mib` MiB of one of its GPUs, of which nothing or less was known; of a job that agreed to share."""

    mib: int


class GpusIdle(IncarnationEvent, frozen=True):
    """It leaves some of its GPUs idle, as `NODE:NUMBER`, while others work. At most once of each incarnation."""

    held: int
    gpus: tuple[str, ...]


class LeftBehind(IncarnationEvent, frozen=True):
    """The rest of it has ended, and the agents of these nodes, which it was to leave, are silent: it is over.

    What they still have of it is expected by nobody, and is ended when they call.
    """

    nodes: tuple[str, ...]


class IncarnationEnded(IncarnationEvent, frozen=True):
    """Nothing of it is left. `reached`: the last step seen; `step`: where the next one resumes; `retry_at`: not before;
    `final`: what the job becomes once nothing of it is left, or None: it goes on. `fruitless`: so many of its attempts
    in a row, with this one, failed by no error of its program's and got no further. `unfit_nodes`: those that failed
    it, as their agents said, since it last began on any; `perhaps_own`: by what may be its user's doing. `hold`: it is
    held from here on, and after what; "": it is not. `saved_by`: the attempt that saved last, 0: not known. `missing`:
    as in Exited.
    """

    cause: Cause
    reached: int | None = None
    step: int | None = None
    code: int | None = None
    detail: str = ""
    retry_at: float = 0.0
    final: JobState | None = None
    final_detail: str = ""
    fruitless: int = 0
    unfit_nodes: tuple[str, ...] = ()
    hold: str = ""
    perhaps_own: bool = False
    saved_by: int = 0
    missing: int | None = None

    @property
    def signature(self) -> str:
        """Equal for the same failure at the same step: what the poison guard counts."""
        return f"{self.cause}/{self.code}/{self.reached}"


# --- nodes and GPUs ---------------------------------------------------------------------------------------------------


class NodeJoined(NodeEvent, frozen=True):
    """Its agent connected, for the first time or again. `log_id` names the agent's report log.

    `until`: when the node goes, where the agent knows. `place`: where it is in the network, the outermost switch first.
    `allocation`: the id of the batch job that holds the node for us, "" outside of any. `address`: its own IP, "" where
    the agent does not say.
    """

    gpus: tuple[GpuInfo, ...]
    cpus: int = 0
    memory_mib: int = 0
    agent_pid: int = 0
    boot_id: str = ""
    log_id: str = ""
    emulated: bool = False
    until: float | None = None
    place: tuple[str, ...] = ()
    allocation: str = ""
    address: str = ""


class NodeSilent(NodeEvent, frozen=True):
    """The connection to its agent is gone. Concludes nothing."""

    reason: str = ""


class NodeLost(NodeEvent, frozen=True):
    """Concluded: the batch system says so, or the agent's lease has run out."""

    reason: str


class NodeLeaves(NodeEvent, frozen=True):
    """It goes at `until` (None: nobody knows when). `now`: nothing starts there, and what runs there leaves it."""

    until: float | None
    now: bool
    reason: str


class ReportsSeen(NodeEvent, frozen=True):
    """Reports up to `number` of the agent's log were taken in (or dropped as stale); it may forget them."""

    number: int


class GpuChanged(NodeEvent, frozen=True):
    """A GPU became ok, lost or dirty."""

    index: int
    state: str
    detail: str = ""


class GpuFaulted(NodeEvent, frozen=True):
    """An agent saw a fault of a GPU: `xid 79`, or one of `health.CONDITIONS`. What follows is an event of its own."""

    index: int
    fault: str
    detail: str = ""


class GpuAvoided(NodeEvent, frozen=True):
    """Nobody is given this GPU (None: any of the node) until then. `moves`: what runs there is to leave it.

    `by_user`: `hpcdl avoid`.
    """

    index: int | None
    until: float
    reason: str
    times: int = 1
    moves: bool = False
    by_user: bool = False


class AvoidLifted(NodeEvent, frozen=True):
    """It may be granted again: its time is over, or its user says so."""

    index: int | None
    reason: str


# --- pilots -----------------------------------------------------------------------------------------------------------


class PilotRequested(PilotEvent, frozen=True):
    """It is to be submitted; until the batch system has taken it, it is asked for again after every restart."""

    spec: PilotSpec


class PilotSubmitted(PilotEvent, frozen=True):
    """The batch system has taken it."""

    batch_id: str


class PilotRefused(PilotEvent, frozen=True):
    """The batch system did not take it; in its words. That is the pilot's end."""

    reason: str


class PilotSeen(PilotEvent, frozen=True):
    """What the batch system says of it is another thing than before."""

    job: BatchJob


class PilotFound(PilotEvent, frozen=True):
    """It was taken to be over, and its batch job is listed, with its mark: it goes on with that batch job."""

    job: BatchJob


class PilotCancelRequested(PilotEvent, frozen=True):
    """It is not wanted any more."""

    why: str


class PilotEnded(PilotEvent, frozen=True):
    """Concluded: its batch job is over, or gone. `job`: the last that was seen of it. To be preempted is no failure."""

    how: str
    job: BatchJob | None = None


class BatchDependencyEnded(Event, frozen=True):
    """Concluded: a batch job that jobs wait for is over, or gone. `batch`: `slurm:1234`. `done`: whether it succeeded;
    None where the batch system does not say any more.
    """

    batch: str
    done: bool | None
    how: str


class BatchDependencyRequeued(Event, frozen=True):
    """A batch job that was over is listed as pending or running again: its end counts no more."""

    batch: str


# --- notifications ----------------------------------------------------------------------------------------------------


class NoticeDue(Event, frozen=True):
    """These destinations are to be told; in the same commit as what they are to be told of. `notice`: its number.

    `about`: a job's id, 0 for none.
    """

    notice: int
    what: NoticeKind
    about: int
    name: str
    destinations: tuple[str, ...]
    state: str = ""
    cause: str = ""
    detail: str = ""


class NoticesSent(Event, frozen=True):
    """A destination has taken these, in one message."""

    destination: str
    notices: tuple[int, ...]


class NoticesFailed(Event, frozen=True):
    """A destination did not take them: the `attempt`-th time in a row; the next one is at `retry_at`."""

    destination: str
    notices: tuple[int, ...]
    attempt: int
    why: str
    retry_at: float


class NoticesGivenUp(Event, frozen=True):
    """A destination will not be told of these: it has not taken them for too long."""

    destination: str
    notices: tuple[int, ...]
    why: str


class NoticesRetried(Event, frozen=True):
    """`hpcdl notices --retry`: what failed or was given up is due again, at once."""


class NoticeDropped(Event, frozen=True):
    """`hpcdl notices --drop`: nobody is to be told of it any more."""

    notice: int


# --- the daemon -------------------------------------------------------------------------------------------------------


class DaemonStarted(Event, frozen=True):
    """A daemon got the lease, with this fence. Agents must call again. `nonce`: random; starts have theirs from it."""

    fence: int
    version: str
    pid: int
    host: str
    nonce: str = ""


class DaemonStopping(Event, frozen=True):
    """No start from here on; everything is suspended, or with `now` ended where it stands."""

    now: bool


class PolicyChosen(Event, frozen=True):
    """`hpcdl config policy NAME`."""

    policy: str


class ObjectiveChosen(Event, frozen=True):
    """`hpcdl config objective NAME`."""

    objective: str


class PlanAdopted(Event, frozen=True):
    """What a plan changed: each job whose placement is another than before, or none any more, and why.

    Of jobs that it leaves as they are only the reasons can change; those are not recorded (`Controller.reasons`).
    """

    policy: str
    targets: tuple[Target, ...]
    warm: tuple[int, ...] = ()
    optimal: bool = False
    bound: float | None = None
    gap: float | None = None
    solver: str = ""


class TroubleSeen(Event, frozen=True):
    """Something of ours failed and was survived: a tick, a policy, a refused request."""

    where: str
    detail: str


class IdsRaised(Event, frozen=True):
    """The next ids are these or higher: those below them may have been given, by a ledger that knew more than this one.

    `why`: `backup` (one was restored), `loss` (the ledger lost events, and its user went on without), `folders` (what
    lies in HPCDL_HOME is of jobs that the ledger does not know) or `site` (its file says where ids begin).
    `incarnation`, `beginning`: jobs that are known may have had so many of them. `detail`: in words, for people.
    """

    why: str
    job: int = 1
    pilot: int = 1
    notice: int = 1
    incarnation: int = 0
    beginning: int = 0
    detail: str = ""


# --- the catalogue, and the journal -----------------------------------------------------------------------------------

_BASES = (Event, JobEvent, IncarnationEvent, Report, NodeEvent, PilotEvent)
KINDS: dict[str, type[Event]] = {
    name: kind
    for name, kind in vars().items()
    if isinstance(kind, type) and issubclass(kind, Event) and kind not in _BASES
}
"""All events by the name that they have in ledgers and in `hpcdl events`."""


class Recorded(Struct, frozen=True):
    """An event in the journal. `version` counts within its stream; `cause`: seq of the event that led to it."""

    seq: int
    at: float
    version: int
    event: Event
    cause: int | None = None


def encode(event: Event) -> dict[str, Any]:
    """The event's body as plain JSON values, without its kind."""
    body: dict[str, Any] = to_json(event)
    return body


def decode(kind: str, body: dict[str, Any]) -> Event:
    """The event from its kind and body. Raises CodecError."""
    found = KINDS.get(kind)
    if found is None:
        raise CodecError(f"unknown event {kind!r}")
    return from_json(found, body)
