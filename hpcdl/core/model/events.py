"""The events: facts and decisions, in the past tense. `fold` is the only way in which they change the world.

Each names its job, incarnation, membership and node where it has them. `kind` is the class's name. Times are the
daemon's, in seconds since the epoch, and belong to the record, not the event.
"""

from dataclasses import dataclass
from typing import Any

from hpcdl.core.codec import CodecError, from_json, to_json
from hpcdl.core.drill import Drill
from hpcdl.core.eventbase import KINDS as KINDS
from hpcdl.core.eventbase import Event as Event
from hpcdl.core.eventbase import IncarnationEvent as IncarnationEvent
from hpcdl.core.eventbase import JobEvent as JobEvent
from hpcdl.core.eventbase import NodeEvent as NodeEvent
from hpcdl.core.idevents import IdsRaised as IdsRaised
from hpcdl.core.model import Cause, JobSpec, JobState, Placement, Purpose, Role, Target
from hpcdl.core.nodeevents import GpuChanged as GpuChanged
from hpcdl.core.nodeevents import NodeJoined as NodeJoined
from hpcdl.core.nodeevents import NodeLeaves as NodeLeaves
from hpcdl.core.nodeevents import NodeLost as NodeLost
from hpcdl.core.nodeevents import NodeSilent as NodeSilent
from hpcdl.core.nodeevents import ReportsSeen as ReportsSeen
from hpcdl.core.submitevents import ArraySubmitted as ArraySubmitted
from hpcdl.core.submitevents import JobRetried as JobRetried

# --- jobs: what users ask -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobSubmitted(JobEvent):
    """Acknowledges a submit; the same `request_id` again is the same job."""

    spec: JobSpec
    request_id: str
    nonce: str = ""  # of the submit, random; the identity of its jobs comes from it (`Job.identity`)


@dataclass(frozen=True, slots=True)
class JobHeld(JobEvent):
    """Its user suspended it: no policy may lift that."""


@dataclass(frozen=True, slots=True)
class JobReleased(JobEvent):
    """Its user lifted the hold."""


@dataclass(frozen=True, slots=True)
class CancelRequested(JobEvent):
    """Its user cancelled it; CANCELLED once nothing of it is left."""


@dataclass(frozen=True, slots=True)
class JobDrilled(JobEvent):
    """`hpcdl drill` suspended and killed it on purpose, and this is what was seen."""

    drill: Drill


@dataclass(frozen=True, slots=True)
class JobEnded(JobEvent):
    """DONE, FAILED or CANCELLED, and why."""

    state: JobState
    detail: str = ""


# --- incarnations: what we ask -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartRequested(IncarnationEvent):
    """A start with its GPUs (`placement`), or a warm start on `nodes` that waits at the gate (`placement` None)."""

    nodes: tuple[str, ...]
    placement: Placement | None


@dataclass(frozen=True, slots=True)
class OpenRequested(IncarnationEvent):
    """The gate is to open onto these GPUs, which were seen free."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class PreemptRequested(IncarnationEvent):
    """It is to be suspended as if its GPUs were wanted; the job is not held, and may be placed again at once."""


@dataclass(frozen=True, slots=True)
class SuspendRequested(IncarnationEvent):
    """The handshake begins."""

    purpose: Purpose
    grace_s: float


@dataclass(frozen=True, slots=True)
class EndRequested(IncarnationEvent):
    """To be ended without a checkpoint; `cause` is what its end will be called."""

    cause: Cause
    grace_s: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class JoinRequested(IncarnationEvent):
    """More nodes start ranks for a running incarnation; the others train on until these can be taken in."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class RescaleRequested(IncarnationEvent):
    """Its ranks are to form a new membership, on `members` in the order of their ranks; `leaving` are to go."""

    membership: int
    members: tuple[str, ...]
    leaving: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaveRequested(IncarnationEvent):
    """What was started on these nodes to join is not wanted any more."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeftBehind(IncarnationEvent):
    """The rest of it has ended, and the agents of these nodes, which it was to leave, are silent: it is over.

    What they still have of it is expected by nobody, and is ended when they call.
    """

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoleChanged(IncarnationEvent):
    """Same GPUs, other role: nothing is asked of the trainer."""

    role: Role


# --- incarnations: what agents report ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Report(IncarnationEvent):
    """Base of what an agent reports of its node's part; `age_s`: how long ago it happened when it was sent."""

    membership: int
    node: str
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Started(Report):
    """The trainer's first process runs."""

    pid: int = 0


@dataclass(frozen=True, slots=True)
class AtGate(Report):
    """Warmed up and waiting: without a GPU for them, or for the next membership, which could meet at `address`."""

    warm_s: float = 0.0
    address: str = ""


@dataclass(frozen=True, slots=True)
class Attached(Report):
    """The trainer speaks our protocol."""

    pid: int = 0
    rank: int = 0


@dataclass(frozen=True, slots=True)
class TrainerReady(Report):
    """The training loop begins at `step` (what was resumed, or 0)."""

    step: int = 0


@dataclass(frozen=True, slots=True)
class Reformed(Report):
    """The ranks of the new membership train on, from `step`; they did not for `seconds`. Of the first node only."""

    step: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Broken(Report):
    """The other ranks do not answer: this node's keep their state, and wait for a new membership."""

    step: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Progressed(Report):
    """`step` of `total` done; at most one each interval, so it may be late by that much.

    `metric`: the accuracy (or the like) that it is trained for, where the trainer says it.
    """

    step: int = 0
    total: int | None = None
    samples: int | None = None
    metric: float | None = None


@dataclass(frozen=True, slots=True)
class Saved(Report):
    """A checkpoint is durable; `final`: the trainer exits because it was asked to suspend."""

    step: int = 0
    path: str = ""
    seconds: float = 0.0
    final: bool = False


@dataclass(frozen=True, slots=True)
class Exited(Report):
    """Every process of this part is gone. `hint`: the cause, where the agent knows more than the code.

    `done`: the trainer said that its training is complete. `ended_by`: what it was asked to: suspend, end, absence.
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


@dataclass(frozen=True, slots=True)
class GpusFreed(Report):
    """The agent saw that no process of this part holds its GPUs."""


@dataclass(frozen=True, slots=True)
class CheckpointDamaged(Report):
    """The checkpoint of `step` is not what was written: it was set aside at `path`, and the one before is used."""

    step: int = 0
    path: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Noted(Report):
    """Something worth telling that changes nothing (a stopped process continued, output dropped)."""

    text: str = ""


KINDS.pop(Report.__name__, None)

REPORTS = (
    Started,
    AtGate,
    Attached,
    TrainerReady,
    Reformed,
    Broken,
    Progressed,
    Saved,
    CheckpointDamaged,
    Exited,
    GpusFreed,
    Noted,
)


# --- incarnations: what endings concludes --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IncarnationEnded(IncarnationEvent):
    """Nothing of it is left. `reached`: the last step seen; `step`: where the next one resumes; `retry_at`: not before;
    `final`: what the job becomes once nothing of it is left, or None: it goes on.
    """

    cause: Cause
    reached: int | None = None
    step: int | None = None
    code: int | None = None
    detail: str = ""
    retry_at: float = 0.0
    final: JobState | None = None
    final_detail: str = ""

    @property
    def signature(self) -> str:
        """Equal for the same failure at the same step: what the poison guard counts."""
        return f"{self.cause}/{self.code}/{self.reached}"


# --- the daemon ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DaemonStarted(Event):
    """A daemon got the lease, with this fence. Agents must call again."""

    fence: int
    version: str
    pid: int
    host: str


@dataclass(frozen=True, slots=True)
class DaemonStopping(Event):
    """No start from here on; everything is suspended, or with `now` ended where it stands."""

    now: bool


@dataclass(frozen=True, slots=True)
class PolicyChosen(Event):
    """`hpcdl config policy NAME`."""

    policy: str


@dataclass(frozen=True, slots=True)
class ObjectiveChosen(Event):
    """`hpcdl config objective NAME`."""

    objective: str


@dataclass(frozen=True, slots=True)
class PlanAdopted(Event):
    """What a plan changed: each job whose placement is another than before, or none any more, and why.

    Of jobs that it leaves as they are only the reasons can change; those are not recorded (`Controller.reasons`).
    """

    policy: str
    targets: tuple[Target, ...]
    warm: tuple[int, ...] = ()
    optimal: bool = False
    bound: float | None = None
    gap: float | None = None


@dataclass(frozen=True, slots=True)
class TroubleSeen(Event):
    """Something of ours failed and was survived: a tick, a policy, a refused request."""

    where: str
    detail: str


# A ledger has events of pilots, notices, deadlines, faults and retired jobs too: whoever can decode the ones above can
# decode those.
import hpcdl.core.pilotevents  # noqa: E402, I001
import hpcdl.core.careevents  # noqa: E402
import hpcdl.core.deadlineevents  # noqa: E402
import hpcdl.core.noticeevents  # noqa: E402
import hpcdl.core.retireevents  # noqa: E402, F401


@dataclass(frozen=True, slots=True)
class Recorded:
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
