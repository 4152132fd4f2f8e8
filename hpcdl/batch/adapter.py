"""What talks with a batch system: the protocol of adapters, and the values that they take and give.

An adapter is pairs of pure functions, an argv and a parser of what that prints (`text.py` of `hpcdl.slurm` and
`hpcdl.lsf`), with `hpcdl.batch.command.run` between them. Commands are lists, never shell strings; one call answers for
all ids. What is known of a batch system before it is asked anything is in `system.py`.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hpcdl.batch.limits import PilotLimits
from hpcdl.core.model.pilot import BatchJob, Hole, PendingBatchJob, PilotSpec
from hpcdl.core.rules.batch_poll import agreed

TIMEOUT_S = 30.0
"""Seconds that a command of a batch system may take; Slurm's give up after 9 to 18 s when their daemon is down."""


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


@dataclass(frozen=True, slots=True)
class Allocation:
    """The nodes that the batch system gave this process, and until when.

    `id`: the batch job's, with `started_at` (None where it is not reported) the key of its state, for a requeued job
    has the same id. `nodes`: in the batch system's order, without the launch node; `gpus`: how many on each, None where
    that is not reported. `until`: seconds since the epoch, None where no end is known. `kind`: the batch system's name.
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


@dataclass(frozen=True, slots=True)
class SiteQueue:
    """A partition or queue as a site file has it. `usable`: batch jobs of this user start there. `told`: more of it,
    for people.

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
    """What a batch system reports of its limits. `jobs_max`: batch jobs that this user may have, None where nobody
    says; `notes`: for people, a line each.
    """

    kind: str
    version: str
    cluster: str
    queues: tuple[SiteQueue, ...]
    jobs_max: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IdleNodes:
    """The nodes on which nothing runs and that would take a batch job; kept ones are among them, for a hole is no less
    one because somebody waits for more. `nodes`: how many there are in all, None where nobody says.
    """

    names: frozenset[str]
    nodes: int | None = None


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


class BatchAdapter(Protocol):
    """Talks with a batch system by its commands. `kind`: the batch system's name.

    Each call but `allocation` and `launch` may take seconds: never from the controller's thread.
    All raise BatchError. Nothing is cached but what cannot change while the batch system runs (its version).
    """

    kind: str

    def capabilities(self) -> Capabilities:
        """What it is and can do, asked now."""

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """The allocation of this process, None outside of any. Raises HalfAnAllocation."""

    def holes(self, now: float, own: Collection[str]) -> tuple[Hole, ...]:
        """What idles, and until when. `own`: batch ids of our pilots, whose plans and nodes end no hole."""

    def idle_nodes(self) -> IdleNodes:
        """What idles, whoever may use it: by a command or two that cost little, for they are run for weeks."""

    def waiting(self, own: Collection[str]) -> tuple[PendingBatchJob, ...]:
        """Others' batch jobs that wait for nodes, the first to start first; pilots of anybody are none of them.

        As of the last call of `holes`. `own`: batch ids of our pilots.
        """

    def submit(self, spec: PilotSpec, script: PilotScript) -> str:
        """Submits a pilot; its batch id. Raises BatchError with the batch system's own words."""

    def poll(self, ids: Collection[str]) -> dict[str, BatchJob]:
        """All of these in one call; MISSING where they are not listed. Each id has a value.

        An answer that is not understood to its last line raises BatchError: half of one is none.
        """

    def confirm(self, ids: Collection[str]) -> dict[str, BatchJob]:
        """The same by another command, which is asked for each of these alone. Each id has a value.

        GONE: the batch system answers that there is no such batch job. UNKNOWN: nothing is known of it.
        """

    def marked(self, prefix: str) -> tuple[BatchJob, ...]:
        """This user's batch jobs whose mark begins with `prefix`."""

    def cancel(self, ids: Collection[str]) -> None:
        """Ends them. What is gone already is no error."""

    def signal(self, batch_id: str, name: str) -> None:
        """Sends a signal (`TERM`, `USR1`) to the steps of a batch job."""

    def launch(self, allocation: Allocation, node: str, argv: Sequence[str]) -> tuple[str, ...]:
        """The command that runs `argv` on one node of the allocation, with all its GPUs, from within it."""

    def topology(self, nodes: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Where nodes are in the network, the outermost switch first; those that it does not know are missing."""


def ask_twice(system: BatchAdapter, batch_id: str) -> BatchJob:
    """What two commands of the batch system say of a batch job; UNKNOWN where they differ. Raises BatchError."""
    return agreed(system.poll([batch_id])[batch_id], system.confirm([batch_id])[batch_id])
