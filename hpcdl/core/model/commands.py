"""Commands to the Controller, from users, agents and ticks, with their answers; and requests to agents. Values only.

`rules/intake.py` makes events of commands. Commands are not stored: those that are refused leave no trace.
"""

import math

from msgspec import Struct

from hpcdl.core.model.arrays import Array
from hpcdl.core.model.events import Event
from hpcdl.core.model.incarnation import Placement
from hpcdl.core.model.job import Drill, JobSpec
from hpcdl.core.model.pilot import BatchJob, Hole, PendingBatchJob
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import GpuInfo


class Request(Struct, frozen=True):
    """What is asked of an agent.

    Agents are idempotent by (job, incarnation, kind), of rescales the newest membership counts; requests with a fence
    below the highest seen are refused.
    """

    kind: str  # start, open, role, rescale, leave, suspend or end
    node: str
    job: int
    incarnation: int
    membership: int = 1
    nodes: tuple[str, ...] = ()  # all nodes of a start; of a rescale the members, in the order of their ranks
    placement: Placement | None = None  # None: a start at the gate, or a kind without GPUs
    grace_s: float = 0.0  # seconds until processes are killed
    address: str = (
        ""  # HOST:PORT where the members of a rescale meet; of a start on several nodes their IPs, with commas
    )
    id: int = 0  # given by the journal


class DeadlineForecast(Struct, frozen=True):
    """What a forecast says of a job's deadline: see `DeadlineForeseen`."""

    job: int
    probability: float
    ends_at: float | None = None


class StallMeasurement(Struct, frozen=True):
    """How long nothing of an incarnation moved, in seconds, as its agents measured it."""

    job: int
    incarnation: int
    nodes: tuple[str, ...]  # whose agents measured it
    step_s: float | None  # since a step was done, or its training began; None: it has shown neither
    idle_s: float | None  # without output and CPU time; None: not measured
    started_s: float  # since it was started, or its agent was


class IdleMeasurement(Struct, frozen=True):
    """GPUs of an incarnation that did nothing for long while others of it worked, as its agents measured it."""

    job: int
    incarnation: int
    gpus: tuple[GpuRef, ...]


class MemoryMeasurement(Struct, frozen=True):
    """The most that one GPU of an incarnation has in use, in MiB, while nobody else is on its GPUs."""

    job: int
    incarnation: int
    mib: int


class CommandRefused(ValueError):
    """The command cannot be carried out; one clear line with the next step. Nothing changed. `code`: for machines."""

    def __init__(self, message: str, code: str = "refused") -> None:
        super().__init__(message)
        self.code = code


class Entry(Struct, frozen=True):
    """A job of a submit, or an array of them. `after`: places of earlier entries of the submit that must be DONE;
    `conditions`: (kind, place) of earlier entries, all jobs of which must have come to that.
    """

    spec: JobSpec
    array: Array | None = None
    held: bool = False
    after: tuple[int, ...] = ()
    conditions: tuple[tuple[str, int], ...] = ()


class Submit(Struct, frozen=True):
    """Answered with the ids, after the commit. The same `request_id` again gives the same ids.

    `strict`: refused where no node that is known could run one of the jobs. `elsewhere`: GPUs of the largest node that
    pilots could hold. `nonce`: random, new for each submit.
    """

    specs: tuple[JobSpec | Entry, ...]
    request_id: str
    strict: bool = False
    elsewhere: int = 0
    nonce: str = ""


class Hold(Struct, frozen=True):
    """`hpcdl suspend`; with `waiting` `hpcdl hold`, which is refused for a job that runs. `after`: where no user holds
    it, after what it is held, in words."""

    job: int
    waiting: bool = False
    after: str = ""


class Retry(Struct, frozen=True):
    """`hpcdl retry`. Answered with Retried. `from_start`: its checkpoints stay where they are, and do not count."""

    job: int
    with_dependents: bool = False
    from_start: bool = False


class Retried(Struct, frozen=True):
    """The jobs that are queued again; `left`: those that were cancelled because they waited for it, and still are."""

    jobs: tuple[int, ...]
    left: tuple[int, ...]


class Release(Struct, frozen=True):
    """`hpcdl resume`."""

    job: int


class Annotate(Struct, frozen=True):
    """`hpcdl annotate`. `changes`: (key, value); "" removes the key."""

    job: int
    changes: tuple[tuple[str, str], ...]


class SetPriority(Struct, frozen=True):
    """`hpcdl priority`. None: it was not said which."""

    job: int
    priority: int | None


class Preempt(Struct, frozen=True):
    """Suspends a running job without holding it: it may be placed again at once. `hpcdl drill` fakes preemptions so."""

    job: int


class Drilled(Struct, frozen=True):
    """What `hpcdl drill` found."""

    job: int
    drill: Drill


class Cancel(Struct, frozen=True):
    """`hpcdl cancel`."""

    job: int


class ChoosePolicy(Struct, frozen=True):
    """`hpcdl config policy NAME`."""

    policy: str


class ChooseObjective(Struct, frozen=True):
    """`hpcdl config objective NAME`."""

    objective: str


class Stop(Struct, frozen=True):
    """`hpcdl daemon stop`: suspend everything; with `now` end it where it stands."""

    now: bool


class Hello(Struct, frozen=True):
    """An agent called. Answered with Welcome."""

    node: str
    log_id: str


class Inventory(Struct, frozen=True):
    """What the agent has, after it learnt what the daemon expects. Answered with the node's pending requests."""

    node: str
    gpus: tuple[GpuInfo, ...]
    cpus: int
    memory_mib: int
    agent_pid: int
    boot_id: str
    log_id: str
    emulated: bool
    until: float | None = None
    place: tuple[str, ...] = ()
    allocation: str = ""
    address: str = ""


class AgentReport(Struct, frozen=True):
    """Number `number` of the agent's log. Answered (None) once it is recorded or dropped as stale.

    None: of no log, so nobody has to be told that it may be forgotten.
    """

    node: str
    log_id: str
    number: int | None
    event: Event


class Taken(Struct, frozen=True):
    """The agent has durably taken a request."""

    request: int


class AgentGone(Struct, frozen=True):
    """The connection to an agent ended."""

    node: str
    reason: str


class NodeGone(Struct, frozen=True):
    """Proof that a node or its allocation is gone."""

    node: str
    reason: str


class Drain(Struct, frozen=True):
    """A node goes at `until` (None: nobody knows when). `now`: nothing starts there, and what runs there leaves it.

    Neither: it stays after all.
    """

    node: str
    until: float | None
    now: bool
    reason: str


class BatchSeen(Struct, frozen=True):
    """One poll of the batch system: the batch jobs that were asked for, and what idles (None: that was not asked).

    `asked_at`: when the poll began; of nodes that joined since then it may tell what was before that. `own`: the batch
    job that the daemon runs in, "" outside of any. `waiting`: others' batch jobs that wait (None: not asked).
    `system`: which batch system it is.
    """

    jobs: tuple[BatchJob, ...] = ()
    holes: tuple[Hole, ...] | None = None
    asked_at: float = math.inf
    own: str = ""
    waiting: tuple[PendingBatchJob, ...] | None = None
    system: str = ""


class PilotTaken(Struct, frozen=True):
    """The batch system has taken a pilot, or had taken it before a restart."""

    pilot: int
    batch_id: str


class PilotNotTaken(Struct, frozen=True):
    """The batch system refused a pilot; in its words."""

    pilot: int
    reason: str


class PilotBack(Struct, frozen=True):
    """A pilot that was taken to be over has a batch job that lives."""

    pilot: int
    job: BatchJob


class CancelPilot(Struct, frozen=True):
    """`hpcdl pilots --cancel ID`."""

    pilot: int


class Trouble(Struct, frozen=True):
    """Something of ours failed and was survived: users should see it."""

    where: str
    detail: str


class Avoid(Struct, frozen=True):
    """`hpcdl avoid`: a GPU (None: the node) is granted to nobody for so long. `moves`: what runs there leaves it."""

    node: str
    index: int | None
    for_s: float
    reason: str = ""
    moves: bool = False


class Lift(Struct, frozen=True):
    """`hpcdl avoid --lift`."""

    node: str
    index: int | None


class NoticesTaken(Struct, frozen=True):
    """A destination has taken these notices."""

    destination: str
    notices: tuple[int, ...]


class NoticesNotTaken(Struct, frozen=True):
    """A destination has not taken these; the next attempt is `pause_s` from now. `give_up`: there is none."""

    destination: str
    notices: tuple[int, ...]
    attempt: int
    why: str
    pause_s: float
    give_up: tuple[int, ...] = ()


class RetryNotices(Struct, frozen=True):
    """`hpcdl notices --retry`."""


class DropNotice(Struct, frozen=True):
    """`hpcdl notices --drop`."""

    notice: int


class Tick(Struct, frozen=True):
    """The monitoring interval: leases are looked at, and the policy is asked again.

    `still`: what does not move. `idle`: GPUs that their jobs do not use. `memory`: what jobs that share take of theirs.
    """

    still: tuple[StallMeasurement, ...] = ()
    idle: tuple[IdleMeasurement, ...] = ()
    memory: tuple[MemoryMeasurement, ...] = ()


class PlanMade(Struct, frozen=True):
    """A plan that was made beside the Controller is there, or the attempt failed."""


class Retire(Struct, frozen=True):
    """Finished jobs beyond so many leave the world (`rules.retention`). Answered with how many did, some at a time."""

    keep: int


class Outlooks(Struct, frozen=True):
    """What forecasts say of deadlines."""

    outlooks: tuple[DeadlineForecast, ...]


Command = (
    Submit | Retry | Hold | Release | Cancel | ChoosePolicy | ChooseObjective | Stop | Hello | Inventory | AgentReport
    | Taken | AgentGone | NodeGone | Drain | BatchSeen | PilotTaken | PilotNotTaken | CancelPilot | Trouble | Tick
    | PilotBack | Preempt | Drilled | Avoid | Lift | NoticesTaken | NoticesNotTaken | RetryNotices | DropNotice
    | Outlooks | Retire | Annotate | SetPriority | PlanMade
)  # fmt: skip


class ExpectedIncarnation(Struct, frozen=True):
    """An incarnation that the daemon believes to live on the agent's node. `taken`: the agent has its start."""

    job: int
    incarnation: int
    membership: int
    taken: bool


class Welcome(Struct, frozen=True):
    """The answer to Hello. Whatever of ours the agent has that is not `expected`, it ends."""

    fence: int
    reports_seen: int
    expected: tuple[ExpectedIncarnation, ...]


class Joined(Struct, frozen=True):
    """The answer to Inventory."""

    pending: tuple[Request, ...]
