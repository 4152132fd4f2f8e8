"""The events of nodes: joined, silent, lost, leaving, their GPUs. `events` has them with all the others."""

from dataclasses import dataclass

from hpcdl.core.eventbase import NodeEvent
from hpcdl.core.model import GpuInfo


@dataclass(frozen=True, slots=True)
class NodeJoined(NodeEvent):
    """Its agent connected, for the first time or again. `log_id` names the agent's report log.

    `until`: when the node goes, where the agent knows. `place`: where it is in the network, the outermost switch first.
    `allocation`: the id of the batch job that holds the node for us, "" outside of any.
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


@dataclass(frozen=True, slots=True)
class NodeSilent(NodeEvent):
    """The connection to its agent is gone. Concludes nothing."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeLost(NodeEvent):
    """Concluded: the batch system says so, or the agent's lease has run out."""

    reason: str


@dataclass(frozen=True, slots=True)
class NodeLeaves(NodeEvent):
    """It goes at `until` (None: nobody knows when). `now`: nothing starts there, and what runs there leaves it."""

    until: float | None
    now: bool
    reason: str


@dataclass(frozen=True, slots=True)
class GpuChanged(NodeEvent):
    """A GPU became ok, lost or dirty."""

    index: int
    state: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ReportsSeen(NodeEvent):
    """Reports up to `number` of the agent's log were taken in (or dropped as stale); it may forget them."""

    number: int
