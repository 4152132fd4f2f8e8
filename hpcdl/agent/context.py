"""What all parts of a node share, and the stages of a part.

It holds values and decides nothing. agent.py makes it; part.py and grant.py use it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.agent.gpus import Gpus, Grants
from hpcdl.agent.orphans import Orphans
from hpcdl.agent.report_log import Key, ReportLog
from hpcdl.agent.shell import Shells
from hpcdl.agent.start_request import SupervisorLimits

if TYPE_CHECKING:
    from hpcdl.agent.part import AgentPart

LOOPBACK = "127.0.0.1"


class Stage(Enum):
    """How far a part is. ORDERED: no supervisor yet. EXITED: its GPUs are not seen free yet. FREED: nothing is left."""

    ORDERED = 1
    FOLLOWED = 2
    EXITED = 3
    FREED = 4


@dataclass(slots=True)
class AgentContext:
    """What all parts of a node share.

    `run`: the agent's folder. `emulated`: the folder of emulated GPUs, None with real ones. `stderr`: a descriptor for
    what supervisors say. `on_freed` is called with a part once nothing is left of it. `changed`: a trainer came or
    went. `interval_s`: seconds between reports of progress. `connected`: a daemon is there. `address`: the IP by which
    this node reaches the daemon, and other nodes this one. `goes`: why the node is wanted back, "" while it is not.
    `orphans`: what came to this agent when who had started it died. `shells`: commands beside its trainers.
    """

    node: str
    instance: str
    run: Path
    limits: SupervisorLimits
    reports: ReportLog
    gpus: Gpus
    grants: Grants
    emulated: Path | None
    stderr: int
    on_freed: Callable[["AgentPart"], None]
    changed: asyncio.Event
    interval_s: float = 10.0
    connected: bool = False
    address: str = LOOPBACK
    goes: str = ""
    orphans: Orphans = field(default_factory=Orphans)
    shells: Shells = field(init=False)

    def __post_init__(self) -> None:
        self.shells = Shells(self.orphans, self.run)

    def tag(self, key: Key) -> str:
        """What every process of the part has as HPCDL_TAG; the node is in it, for two may share a machine."""
        return f"{self.instance}:{key[0]}:{key[1]}:{self.node}"
