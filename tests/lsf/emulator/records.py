"""What the emulator knows: how its cluster is made (`Config`), and its jobs (`Job`), as they lie in JSON files."""

from collections.abc import Sequence
from typing import Any

UNFINISHED = ("PEND", "PSUSP", "RUN", "USUSP", "SSUSP")
STARTED = ("RUN", "USUSP", "SSUSP")


class Record:
    """Values by name over the class's defaults; `dataclasses` would cost each command 20 ms at its start."""

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            if name not in type(self).__annotations__:
                raise TypeError(f"{type(self).__name__} has no {name}")
            setattr(self, name, value)


class Host(Record):
    """`resources`: what `select[...]` may ask for; a compute node of Summit has `CN`."""

    name: str = ""
    slots: int = 4
    gpus: int = 4
    model: str = "TeslaV100_SXM2_16GB"
    resources: Sequence[str] = ("CN",)


class Queue(Record):
    """`preempts`: queues whose jobs this one may take hosts from; `action`: what then happens to a job of *this* queue.

    `guaranteed_s`: so long a job of this queue is not preempted. `interruptible_s`: of INTERRUPTIBLE_BACKFILL, 0 none.
    `reserve`: whether its waiting jobs get a place and a time in the plan.
    """

    name: str = ""
    priority: int = 30
    description: str = "No description provided."
    limit_s: float = 0.0
    preempts: Sequence[str] = ()
    action: str = "suspend"  # or "requeue": TERMINATE_WHEN=PREEMPT
    guaranteed_s: float = 0.0
    backfill: bool = False
    interruptible_s: float = 0.0
    requeue_values: Sequence[int] = ()
    rerunnable: bool = False
    reserve: bool = True
    user_jobs: int = 0
    open: bool = True
    active: bool = True


class Config(Record):
    """The cluster. Periods are LSF's own unless a test shortens them; `minute_s`: how long a minute of `-W` is.

    `style`: `openlava` has no -o, no -json, no `bslots` and older words. `launch_node`: the host that every job gets
    first, with one slot, as on Summit. `script_file`: `bsub FILE` reads the file's #BSUB lines.
    """

    name: str = "emulated"
    style: str = "lsf"
    hosts: Sequence[Host] = ()
    queues: Sequence[Queue] = ()
    default_queue: str = "normal"
    launch_node: str = ""
    script_file: bool = False
    node_jobs: bool = False  # -nnodes is known
    project_needed: bool = False
    sequential_signal: bool = False  # LSB_USE_SEQUENTIAL_SIGNAL
    terminate_s: float = 10.0  # JOB_TERMINATE_INTERVAL
    limit_kill_s: float = 600.0  # from SIGUSR2 at the run limit to SIGKILL
    hold_s: float = 0.0  # a requeued job waits at least so long
    clean_s: float = 3600.0  # CLEAN_PERIOD
    minute_s: float = 60.0
    jobstat: str = "summit"
    short_hosts: bool = True  # LSB_SHORT_HOSTLIST: 4*h1, not h1:h1:h1:h1

    def queue(self, name: str) -> Queue | None:
        return next((queue for queue in self.queues if queue.name == name), None)

    def host(self, name: str) -> Host | None:
        return next((host for host in self.hosts if host.name == name), None)

    @property
    def openlava(self) -> bool:
        return self.style == "openlava"


class Job(Record):
    """A job, or one element of an array (`index` from 1). Times: seconds since the epoch, 0 where not yet.

    `hosts`: (name, slots) pairs in order, the launch node first. `gpu_ids`: (host, ids) pairs. `stages`: what is left
    of a terminate sequence, (signal, seconds until the next). `why`: the TERM_ reason of that. `again`: whether it is
    requeued when it has ended. `requests`: from commands, taken by the scheduler.
    """

    id: int = 0
    index: int = 0
    name: str = ""
    array: str = ""
    user: str = ""
    project: str = "default"
    queue: str = ""
    queue_named: bool = False
    command: str = ""
    run: Sequence[str] = ()
    cwd: str = ""
    from_host: str = "login1"
    description: str = ""
    dependency: str = ""
    resreq: str = ""
    slots: int = 1
    nodes: int = 0
    ptile: int = 0
    exclusive: bool = False
    gpus: int = 0
    wanted: Sequence[str] = ()
    asked_s: float = 0.0
    warn: str = ""
    warn_s: float = 0.0
    requeue_values: Sequence[int] = ()
    rerunnable: bool = False
    no_rerun: bool = False
    output: str = ""
    output_over: bool = False
    error: str = ""
    error_over: bool = False
    input: str = ""

    status: str = "PEND"
    since: float = 0.0
    submitted: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    eligible: float = 0.0
    limit_s: float = 0.0
    runs: int = 0
    ran_s: float = 0.0
    spent: Sequence[tuple[str, float]] = ()
    hosts: Sequence[tuple[str, int]] = ()
    gpu_ids: Sequence[tuple[str, Sequence[int]]] = ()
    pid: int = 0
    warned: bool = False
    limit_hit: float = 0.0
    stages: Sequence[tuple[str, float]] = ()
    next_stage: float = 0.0
    ending: bool = False
    why: str = ""
    again: bool = False
    code: int | None = None
    reason: str = ""
    pend_reason: str = ""
    suspend_reason: str = ""
    requests: Sequence[str] = ()
    events: Sequence[tuple[float, str]] = ()

    @property
    def key(self) -> str:
        return f"{self.id}[{self.index}]" if self.index else str(self.id)

    @property
    def parallel(self) -> bool:
        return sum(slots for _, slots in self.hosts) > 1 or len(self.hosts) > 1

    def note(self, now: float, text: str) -> None:
        self.events = (*self.events, (now, text))

    def turn(self, now: float, status: str) -> None:
        """The next status, and so long it was in the last one."""
        times = dict(self.spent)
        times[self.status] = times.get(self.status, 0.0) + max(0.0, now - self.since)
        if self.status == "RUN":
            self.ran_s += max(0.0, now - self.since)
        self.spent = tuple(times.items())
        self.status, self.since = status, now

    def run_s(self, now: float) -> float:
        """Seconds that this run has run; a suspended job's do not grow."""
        return self.ran_s + (max(0.0, now - self.since) if self.status == "RUN" else 0.0)

    def end_at(self, now: float) -> float:
        """When the run limit is reached, infinity without one; never in the past for a job that still runs."""
        if not self.limit_s:
            return float("inf")
        return max(now + 1.0, now + self.limit_s - self.run_s(now))


class Reservation(Record):
    """Where and when a waiting job is planned to start."""

    job: str = ""
    at: float = 0.0
    hosts: Sequence[tuple[str, int]] = ()


class State(Record):
    next_id: int = 101
    jobs: Sequence[Job] = ()
    reservations: Sequence[Reservation] = ()
    closed: Sequence[str] = ()
