"""The batch systems that there are: what hpcdl knows of each before it asks it anything, and the registry of them.

Loads fast, as does each package's `system.py`: the agent and the command line read names and variables here. What talks
with a batch system is an adapter (`adapter.py`), which a `BatchSystem` makes. How to add one: docs/CONTRIBUTING.md.
"""

import importlib
import re
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hpcdl.config.layers import BATCH_SYSTEMS

if TYPE_CHECKING:
    from hpcdl.batch.adapter import AdapterSettings, BatchAdapter, CommandRunner, SiteReport
    from hpcdl.batch.script import SubmitCommand

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


QUEUE = "hpcdl"
"""What batch scripts that are jobs of hpcdl's see for their queue or partition."""

NONE = re.compile(r"(?!)")
"""Matches no name."""


class BatchSystem(ABC):
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
    idle_commands: tuple[str, ...] = ()
    """Of these one is enough to record which nodes idle."""
    job_variable: str
    """Names the batch job in each process of one."""
    queue_variable: str = ""
    """Names the queue there: QUEUE in a batch script that is a job of hpcdl's."""
    cluster_variable: str = ""
    """Names the cluster there; "" where no variable does."""
    job_variables: re.Pattern[str] = NONE
    """Those that a batch job has of its own: one that is submitted from there must not have them."""
    hidden_variables: re.Pattern[str] = NONE
    """Those that no trainer may see: a framework would take itself for a step of the batch job, and requeue itself, or
    wait for ranks that nobody starts.
    """
    output_variables: re.Pattern[str] = NONE
    """Those by which users have its commands print something else, list less, ask back, or not return."""
    gpu_lists: tuple[str, ...] = ()
    """Variables that list the GPUs which a process was granted on its node (`0,1`, `0-3`), the best first."""
    gpu_counts: tuple[str, ...] = ()
    """Variables that say how many these are."""
    end_signals: ClassVar[Mapping[signal.Signals, str]] = {}
    """What it sends when it wants a node back, or is about to, and when. Every agent leaves at every one of them."""
    submit_name: str
    """The command that submits batch jobs."""
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

    outlives_first_node: bool = False
    """Whether a batch job may stay when its first node is lost, with nothing of it begun again; see
    `requeue_without_first`.
    """

    hosts_variables: tuple[str, ...] = ()
    """Those of a batch script that name a file with its hosts, a line for each slot."""

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
        """Whether the batch job of this process has surely run before; False says nothing."""
        return False

    def scripts(self, environ: Mapping[str, str]) -> Sequence[str]:
        """Paths of copies of this batch job's script, the best first."""
        return ()

    def script_in(self, text: str) -> str:
        """The batch script that was submitted, of what is in such a copy."""
        return text

    def runs_scripts(self) -> bool:
        """Whether hpcdl runs its scripts as it would: by the three that follow."""
        return type(self).script_variables is not BatchSystem.script_variables

    def script_variables(
        self, batch: Mapping[str, Any], environ: Mapping[str, str], nodes: Sequence[str], here: int
    ) -> dict[str, str]:
        """Those of a batch script that is a job of hpcdl. `batch`: its `BatchTasks` as JSON; `environ`: of the agent's
        start; `nodes`: of the attempt, the script is on the one with the index `here`."""
        return {}

    def script_hosts(self, batch: Mapping[str, Any], nodes: Sequence[str]) -> Sequence[str]:
        """The lines of the file that `hosts_variables` name."""
        return ()

    def file_values(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """What the letters behind % in the names of output files stand for. `environ`: the script's."""
        return {}

    @abstractmethod
    def adapter(self, here: "AdapterSettings") -> "BatchAdapter":
        """What talks with it."""

    @abstractmethod
    def submit_command(self) -> "SubmitCommand":
        """How hpcdl reads that command, and the lines of its scripts."""

    def submit_next(self, run: "CommandRunner", batch_id: str, script: str, env: Sequence[str]) -> str:
        """Submits this batch job's script once more, to run when it has ended; the next one's batch id.

        `env`: an env(1) command for what is run. Raises BatchError.
        """
        raise Unsupported(f"hpcdl cannot have {self.title} run this batch script once more")

    def requeue_without_first(self, run: "CommandRunner", batch_id: str) -> bool | None:
        """Has a batch job requeued that has lost its first node; whether it has, None where it never will.

        Raises BatchError.
        """
        return None

    def waiting_next(self, run: "CommandRunner", batch_id: str, environ: Mapping[str, str]) -> Sequence[str]:
        """This user's batch jobs that wait for the end of this process's, and are called as it is.

        Raises BatchError also where the answer does not list this batch job itself: such an answer says nothing.
        """
        raise Unsupported(f"hpcdl cannot ask {self.title} which batch jobs wait for this one")

    def site_report(self, adapter: "BatchAdapter", run: "CommandRunner") -> "SiteReport":
        """Its limits, asked now. Raises BatchError."""
        from hpcdl.batch.adapter import SiteQueue, SiteReport

        found = adapter.capabilities()
        queues = (SiteQueue(name, True, not_preempted=found.not_preempted.get(name, "")) for name in found.queues)
        return SiteReport(self.name, found.version, "", tuple(queues))


def own_jobs(environ: Mapping[str, str]) -> frozenset[int]:
    """The ids of the job of hpcdl's that this process is in, and of its array. A batch job that such a job submitted
    has its variables, too, and is in none."""
    if any(each.inside(environ) and environ.get(each.queue_variable) != QUEUE for each in systems()):
        return frozenset()
    ids = (environ.get(name, "") for name in ("HPCDL_JOB", "HPCDL_ARRAY_JOB"))
    return frozenset(int(each) for each in ids if each.isdecimal())


def system_named(name: str) -> BatchSystem:
    """The batch system of that name. Raises BatchError in one line where there is none."""
    if name not in BATCH_SYSTEMS:
        raise BatchError(f"there is no batch system {name[:40]!r}: hpcdl knows {', '.join(BATCH_SYSTEMS)}")
    system: BatchSystem = importlib.import_module(BATCH_SYSTEMS[name]).SYSTEM
    return system


def systems() -> list[BatchSystem]:
    """All of them, in the order in which they are looked for."""
    return [system_named(name) for name in BATCH_SYSTEMS]
