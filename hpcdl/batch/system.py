"""Batch systems behind one protocol: the allocation hpcdl runs in, the holes it may fill, the pilots it submits.

An adapter is pairs of pure functions, an argv and a parser of what that prints (`text.py` of `hpcdl.slurm` and
`hpcdl.lsf`), with `run` between them. Commands are lists, never shell strings; one call answers for all ids.
"""

import contextlib
import importlib
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from hpcdl.batch.limits import PilotLimits
from hpcdl.config.layers import BATCH_SYSTEMS
from hpcdl.core.model.pilot import BatchJob, Hole, PendingBatchJob, PilotSpec
from hpcdl.core.rules.batch_poll import agreed

TIMEOUT_S = 30.0
"""Seconds that a command of a batch system may take; Slurm's give up after 9 to 18 s when their daemon is down."""

LARGEST = 256 << 20
"""Bytes that a command may print: a list of all nodes in JSON has some tens of MiB on the largest clusters."""

_STEP = re.compile(r"(PMIX?|OMPI|PRTE)_.*|(CUDA|ROCR)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL")
"""Variables of a process that a batch job started: its place among its like, and the mask of its node's GPUs."""


class BatchError(Exception):
    """The batch system did not do what was asked; the message is one line for people.

    `away`: it does not answer at all, or not in time, so nothing is known. Else it answered, and refused.
    `again`: the same may well be taken later.
    """

    def __init__(self, message: str, *, away: bool = False, again: bool = False) -> None:
        super().__init__(message)
        self.away = away
        self.again = again or away


class Unsupported(BatchError):
    """This batch system, or this version of it, cannot do that."""


class HalfAnAllocation(BatchError):
    """Some of an allocation's variables are here and some are missing; the message names them."""


@dataclass(frozen=True, slots=True)
class Completed:
    """What a command printed, and its exit code. `seconds`: how long it took."""

    out: str
    err: str
    code: int
    seconds: float = 0.0


class CommandRunner(Protocol):
    """Runs a command of the batch system; `run` is the real one, tests have theirs."""

    def __call__(
        self,
        argv: Sequence[str],
        timeout_s: float = TIMEOUT_S,
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """Raises BatchError (`away`) where the command is missing or does not end in time."""
        ...


def run(
    argv: Sequence[str],
    timeout_s: float = TIMEOUT_S,
    *,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    on_start: Callable[["subprocess.Popen[bytes]"], None] | None = None,
) -> Completed:
    """See `Run`. `env`: variables over those of `environment`. A command that is too late, or that prints more than
    LARGEST, is ended with what it started.

    `on_start` is called with the process once it runs.
    """
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment(os.environ), **(env or {})},
            start_new_session=True,
        )
    except OSError as error:
        raise BatchError(f"cannot run {argv[0]}: {error.strerror}", away=True) from None
    with process:
        if on_start is not None:
            on_start(process)
        try:
            out, err = _talk(process, stdin.encode(), began + timeout_s)
        except TimeoutError:
            _kill(process)
            raise BatchError(f"{argv[0]} has not answered within {timeout_s:g} s", away=True) from None
        except OverflowError:
            _kill(process)
            raise BatchError(f"{argv[0]} has printed more than {LARGEST >> 20} MiB: that is no answer") from None
    text = (out.decode(errors="replace"), err.decode(errors="replace"))
    return Completed(*text, process.returncode, time.monotonic() - began)


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What commands of a batch system are run with: nothing in it changes what they print."""
    shapes = [system.output_variables for system in systems()]
    kept = {name: value for name, value in environ.items() if not any(shape.fullmatch(name) for shape in shapes)}
    # Our own commands are never for the drop-ins of jobscripts/, which may be the first sbatch or bsub in PATH.
    return {**kept, "LC_ALL": "C", "HPCDL_BYPASS": "1"}


def _talk(process: "subprocess.Popen[bytes]", stdin: bytes, end: float) -> tuple[bytes, bytes]:
    """What it prints, until it has ended. Raises TimeoutError at `end` (monotonic), OverflowError above LARGEST."""
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None  # noqa: PT018
    printed = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as waiting:
        for stream in printed:
            waiting.register(stream, selectors.EVENT_READ)
        os.set_blocking(process.stdin.fileno(), False)
        waiting.register(process.stdin, selectors.EVENT_WRITE)
        while waiting.get_map():
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            for key, _ in waiting.select(left_s):
                if key.fileobj is process.stdin:
                    with contextlib.suppress(BrokenPipeError):
                        stdin = stdin[os.write(key.fd, stdin[:65536]) :] if stdin else b""
                        if stdin:
                            continue
                    waiting.unregister(process.stdin)
                    process.stdin.close()
                    continue
                piece = os.read(key.fd, 65536)
                if not piece:
                    waiting.unregister(key.fileobj)
                    continue
                for stream, text in printed.items():
                    if stream is key.fileobj:
                        text += piece
                if sum(map(len, printed.values())) > LARGEST:
                    raise OverflowError
    try:
        process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    out, err = printed.values()
    return bytes(out), bytes(err)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Ends a command that `run` started, with what it started: at some sites they are scripts around the real ones."""
    if process.returncode is None:  # nobody has waited for it, so its number is still its own
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class Commands:
    """A `Run` that counts what it runs, and that another thread can end, whatever runs just then."""

    def __init__(self, run: Callable[..., Completed] = run) -> None:
        """`run`: as the function of this module."""
        self.count = 0
        self._run = run
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False

    def __call__(
        self,
        argv: Sequence[str],
        timeout_s: float = TIMEOUT_S,
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """See `Run`. For one thread."""
        if self._ended:
            raise BatchError(f"{argv[0]} is not run any more: the daemon ends", away=True)
        self.count += 1
        try:
            return self._run(argv, timeout_s, stdin=stdin, env=env, on_start=self._started)
        finally:
            self._process = None

    def _started(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        if self._ended:
            _kill(process)

    def end(self) -> None:
        """Kills the command that runs, if one does, with what it started; later ones fail."""
        self._ended = True
        process = self._process
        if process is not None:
            _kill(process)


@dataclass(frozen=True, slots=True)
class Allocation:
    """The nodes that the batch system gave this process, and until when.

    `id`: the batch job's, with `started_at` (None where it is not told) the key of its state, for a requeued job has
    the same id. `nodes`: in the batch system's order, without the launch node; `gpus`: how many on each, None where
    that is not told. `until`: seconds since the epoch, None where no end is known. `kind`: the batch system's name.
    """

    kind: str
    id: str
    nodes: tuple[str, ...]
    gpus: int | None
    until: float | None = None
    started_at: float | None = None
    queue: str = ""
    here: str = ""
    """The node of this process as the batch system calls it, "" on a launch node."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a batch system here can do. `missing`: what it lacks and what that costs us, a line each. `not_preempted`:
    by queue why its batch jobs are not ended for others', "" where they are.
    """

    kind: str
    version: str
    json: bool
    preemption: str = ""
    limits: Mapping[str, str] = field(default_factory=dict)
    queues: tuple[str, ...] = ()
    commands: Mapping[str, bool] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    not_preempted: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """How an agent is started on a node from within an allocation: what is run, and variables over our own."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PilotScript:
    """What a pilot's batch job runs: `argv` on its first node, where the adapter adds what its batch system needs.

    `mark`: see `pilot_mark`. `output`: where what it prints goes. `options`: what the site wants on each submission
    (account, project, constraint), as arguments of sbatch or bsub. `notice_s`: how long before the walltime's end the
    batch system is to send its signal.
    """

    argv: tuple[str, ...]
    mark: str
    name: str
    output: str
    options: tuple[str, ...] = ()
    notice_s: float = 60.0


class BatchAdapter(Protocol):
    """Talks with a batch system by its commands. `kind`: the batch system's name.

    Each call but `allocation` and `launch` may take seconds: never from the controller's thread.
    All raise BatchError. Nothing is cached but what cannot change while the batch system runs (its version).
    """

    kind: str

    def capabilities(self) -> Capabilities:
        """What it is and can do, asked now."""
        ...

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """The allocation of this process, None outside of any. Raises HalfAnAllocation."""
        ...

    def holes(self, now: float, own: Collection[str]) -> tuple[Hole, ...]:
        """What idles, and until when. `own`: batch ids of our pilots, whose plans and nodes end no hole."""
        ...

    def waiting(self, own: Collection[str]) -> tuple[PendingBatchJob, ...]:
        """Others' batch jobs that wait for nodes, the first to start first; pilots of anybody are none of them.

        As of the last call of `holes`. `own`: batch ids of our pilots.
        """
        ...

    def submit(self, spec: PilotSpec, script: PilotScript) -> str:
        """Submits a pilot; its batch id. Raises BatchError with the batch system's own words."""
        ...

    def poll(self, ids: Collection[str]) -> dict[str, BatchJob]:
        """All of these in one call; MISSING where they are not listed. Each id has a value.

        An answer that is not understood to its last line raises BatchError: half of one is none.
        """
        ...

    def confirm(self, ids: Collection[str]) -> dict[str, BatchJob]:
        """The same by another command, which is asked for each of these alone. Each id has a value.

        GONE: the batch system answers that there is no such batch job. UNKNOWN: nothing is known of it.
        """
        ...

    def marked(self, prefix: str) -> tuple[BatchJob, ...]:
        """This user's batch jobs whose mark begins with `prefix`."""
        ...

    def cancel(self, ids: Collection[str]) -> None:
        """Ends them. What is gone already is no error."""
        ...

    def signal(self, batch_id: str, name: str) -> None:
        """Sends a signal (`TERM`, `USR1`) to the steps of a batch job."""
        ...

    def launch(self, allocation: Allocation, node: str, argv: Sequence[str]) -> AgentCommand:
        """How `argv` is run on one node of the allocation, with all its GPUs."""
        ...

    def topology(self, nodes: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Where nodes are in the network, the outermost switch first; those that it does not know are missing."""
        ...


def ask_twice(system: BatchAdapter, batch_id: str) -> BatchJob:
    """What two commands of the batch system say of a batch job; UNKNOWN where they differ. Raises BatchError."""
    return agreed(system.poll([batch_id])[batch_id], system.confirm([batch_id])[batch_id])


@dataclass(frozen=True, slots=True)
class SiteQueue:
    """A partition or queue as a site file has it. `usable`: batch jobs of this user start there. `told`: for people.

    `not_preempted`: why its batch jobs are not ended for others', "" where they are.
    """

    name: str
    usable: bool
    walltime_s: float | None = None
    nodes_max: int | None = None
    told: tuple[str, ...] = ()
    not_preempted: str = ""


@dataclass(frozen=True, slots=True)
class SiteReport:
    """What a batch system tells of its limits. `jobs_max`: batch jobs that this user may have, None where nobody says;
    `notes`: for people, a line each.
    """

    kind: str
    version: str
    cluster: str
    queues: tuple[SiteQueue, ...]
    jobs_max: int | None = None
    notes: tuple[str, ...] = ()


NONE = re.compile(r"(?!)")
"""Matches no name."""


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """What an adapter is made with. `run`: runs its commands. `now`: seconds since the epoch, as the daemon's clock has
    them. `site`, `keys`: what the site's file says, and of the batch system's `site_keys`. `environ`: this process's.
    """

    run: CommandRunner
    now: Callable[[], float]
    site: PilotLimits = field(default_factory=PilotLimits)
    keys: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)


class BatchSystem:
    """What hpcdl knows of a batch system before it asks it anything: its name, its variables, its hints for users.

    A batch system is a package with one subclass of this, of which `SYSTEM` in the module that `BATCH_SYSTEMS` names is
    the one object. That module loads fast: what runs commands and reads their answers is imported by its methods.
    """

    name: str
    """The setting `batch`, and a site file's `kind`."""
    title: str
    """What people call it."""
    commands: tuple[str, ...]
    """On PATH wherever it can be asked."""
    job_variable: str
    """Names the batch job in each process of one."""
    cluster_variable: str = ""
    """Names the cluster there; "" where no variable does."""
    job_variables: re.Pattern[str] = NONE
    """Those that a batch job has of its own."""
    output_variables: re.Pattern[str] = NONE
    """Those by which users have its commands print something else, list less, ask back, or not return."""
    job_script: str
    """hpcdl's batch script for it, in the checkout."""
    submit_line: str
    """What submits that."""
    gpu_line: str
    """A line of a batch script that asks for GPUs."""
    account_options: str
    """What most sites want with each submission, as `options` of a site file."""
    site_keys: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Keys of site files that only this one has: by name what may be chosen, the default first; () for any text."""

    def inside(self, environ: Mapping[str, str]) -> bool:
        """Whether this process is in one of its batch jobs."""
        return bool(environ.get(self.job_variable))

    def cluster(self, environ: Mapping[str, str]) -> str:
        """The cluster's name, "" where it is not told."""
        return environ.get(self.cluster_variable, "")

    def serves(self, environ: Mapping[str, str]) -> bool:
        """Whether its commands, which are on PATH, can have a cluster. Asked where another's are there, too."""
        return True

    def inherited(self, environ: Mapping[str, str]) -> list[str]:
        """Variables of the batch job that this process is in, which one that is submitted from here must not have."""
        inside = self.inside(environ)
        return sorted(
            name for name in environ if self.job_variables.fullmatch(name) or (inside and _STEP.fullmatch(name))
        )

    def requeued(self, environ: Mapping[str, str]) -> bool:
        """Whether the batch job of this process has run before."""
        return False

    def scripts(self, environ: Mapping[str, str]) -> Sequence[str]:
        """Paths of copies of this batch job's script, the best first."""
        return ()

    def script_in(self, text: str) -> str:
        """The batch script that was submitted, of what is in such a copy."""
        return text

    def adapter(self, here: AdapterSettings) -> BatchAdapter:
        """What talks with it."""
        raise NotImplementedError

    def submit_next(self, run: CommandRunner, batch_id: str, script: str, env: Sequence[str]) -> str:
        """Submits this batch job's script once more, to run when it has ended; the next one's batch id.

        `env`: an env(1) command for what is run. Raises BatchError.
        """
        raise Unsupported(f"hpcdl cannot have {self.title} run this batch script once more")

    def site_report(self, adapter: BatchAdapter, run: CommandRunner = run) -> SiteReport:
        """Its limits, asked now. Raises BatchError."""
        found = adapter.capabilities()
        queues = (SiteQueue(name, True, not_preempted=found.not_preempted.get(name, "")) for name in found.queues)
        return SiteReport(self.name, found.version, "", tuple(queues))


def system_named(name: str) -> BatchSystem:
    """The batch system of that name. Raises BatchError in one line where there is none."""
    if name not in BATCH_SYSTEMS:
        raise BatchError(f"there is no batch system {name[:40]!r}: hpcdl knows {', '.join(BATCH_SYSTEMS)}")
    system: BatchSystem = importlib.import_module(BATCH_SYSTEMS[name]).SYSTEM
    return system


def systems() -> list[BatchSystem]:
    """All of them, in the order in which they are looked for."""
    return [system_named(name) for name in BATCH_SYSTEMS]
