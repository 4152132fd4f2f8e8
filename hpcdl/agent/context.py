"""What all parts of a node share, and the stages of a part.

It holds values and decides nothing. agent.py makes it; part.py and grant.py use it.
"""

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from hpcdl.agent.folder import EMULATED
from hpcdl.agent.gpus import Gpus, Grants
from hpcdl.agent.metrics import MetricBuffer
from hpcdl.agent.orphans import Orphans
from hpcdl.agent.report_log import Key, ReportLog
from hpcdl.agent.shell import Shells
from hpcdl.config.settings import Config
from hpcdl.wire.messages import RequestMessage

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

    `home`: the daemon's folder. `run`: the agent's own. `absence_s`: for so long its supervisors go on without an
    agent. `stderr`: a descriptor for what they say. `allocation`: the id of the batch job that all this is in, ""
    outside of any. `interval_s`: seconds between reports of progress. `connected`: a daemon is there. `address`: the IP
    by which this node reaches the daemon, and other nodes this one. `goes`: why the node is wanted back, "" while it is
    not. `changed`: a trainer came or went. `orphans`: what came to this agent when who had started it died. `metrics`:
    what trainers report until the next heartbeat. `shells`: commands beside its trainers.
    """

    node: str
    instance: str
    home: Path
    run: Path
    settings: Config
    absence_s: float
    reports: ReportLog
    gpus: Gpus
    stderr: int
    allocation: str = ""
    interval_s: float = 10.0
    connected: bool = False
    address: str = LOOPBACK
    goes: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    orphans: Orphans = field(default_factory=Orphans)
    metrics: MetricBuffer = field(default_factory=MetricBuffer)
    grants: Grants = field(init=False)
    shells: Shells = field(init=False)

    def __post_init__(self) -> None:
        self.grants = Grants(self.run)
        self.shells = Shells(self.orphans, self.run)

    @property
    def emulated(self) -> Path | None:
        """The folder of emulated GPUs, None with real ones."""
        return self.run / EMULATED if self.gpus.emulated else None

    def tag(self, key: Key) -> str:
        """How HPCDL_TAG begins in every process of the part; the node is in it, for two may share a machine."""
        return f"{self.instance}:{key[0]}:{key[1]}:{self.node}"

    def start_tag(self, key: Key) -> str:
        """All of HPCDL_TAG in every process of the part: the nonce of its start is in it, for two homes of one name may
        share a machine. As `tag` where it is not known what was started."""
        order = self.reports.requests.get(key, {}).get("start")
        return self.tag(key) if order is None else tag_of(self.tag(key), order)


def tag_of(part: str, order: RequestMessage) -> str:
    """HPCDL_TAG of what the order starts. `part`: how it begins."""
    return f"{part}:{order.identity}:{order.nonce}".rstrip(":")
