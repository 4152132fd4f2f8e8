"""What may come to a supervisor over the side channel, checked once, at the border.

The fields of a packet's class are the keys of its JSON object: what they mean is in docs/protocols.md. Times are in
seconds, steps count those that are done. Whatever a trainer or an agent sends, it must never end the supervisor.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields

from hpcdl.agent import strict_json
from hpcdl.core.model.frozen import from_json
from hpcdl.core.model.series import MOST_NAMES, NAME
from hpcdl.core.model.structure import ModelStructure

VERSION = 1
LIMIT = 65536  # bytes in a packet
TEXT_LIMIT = 4096
NUMBER_LIMIT = 1 << 53
GPUS_LIMIT = 64
SUSPENDERS = ("daemon", "agent")


class MalformedPacket(ValueError):
    """Not a packet of ours; it is counted and ignored."""


class WrongVersion(ValueError):
    """The peer speaks another version; it is refused."""


@dataclass(frozen=True, slots=True)
class Packet:
    """Base of all packets."""


@dataclass(frozen=True, slots=True)
class FromRank(Packet):
    """Base of what an attached rank reports."""


@dataclass(frozen=True, slots=True)
class FromAgent(Packet):
    """Base of what the agent requests."""


@dataclass(frozen=True, slots=True)
class AttachPacket(Packet):
    """A rank's first packet. `handler`: the suspend signal has one; `says_loop`: it reports when its loop begins."""

    pid: int
    rank: int
    incarnation: int
    membership: int
    handler: bool = False
    says_loop: bool = False


@dataclass(frozen=True, slots=True)
class HelloPacket(Packet):
    """The agent's first packet: it has the records up to number `after`."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class GatePacket(FromRank):
    """A warm start waits for its GPUs; `cuda`: CUDA was initialised meanwhile, so it begins again, cold."""

    warm_s: float = 0.0
    cuda: bool = False


@dataclass(frozen=True, slots=True)
class OpenedPacket(FromRank):
    """It passed the gate and sees these GPUs, by UUID; `ok` False: they are not those of its grant."""

    gpus: tuple[str, ...] | None = None
    ok: bool | None = None

    def __post_init__(self) -> None:
        if self.gpus is not None and len(self.gpus) > GPUS_LIMIT:
            raise MalformedPacket(f"gpus must be a list of at most {GPUS_LIMIT}")


@dataclass(frozen=True, slots=True)
class ReadyPacket(FromRank):
    """The training loop begins, at this step."""

    step: int


@dataclass(frozen=True, slots=True)
class LoopPacket(FromRank):
    """The rank's training loop has begun: from now on it can save when it is asked to suspend."""


@dataclass(frozen=True, slots=True)
class ProgressPacket(FromRank):
    """How far a rank is. `metric`: what it is trained for, as it was at this step, where that is said; `metrics`: other
    numbers of this step by name, None: not finite."""

    step: int
    total: int | None = None
    samples: int | None = None
    metric: float | None = None
    metrics: dict[str, float | None] | None = None

    def __post_init__(self) -> None:
        names = self.metrics or ()
        if len(names) > MOST_NAMES or not all(NAME.fullmatch(name) for name in names):
            raise MalformedPacket(f"metrics must be at most {MOST_NAMES} numbers by name")

    @property
    def measured(self) -> dict[str, float | None]:
        """All of its metrics by name."""
        return (self.metrics or {}) | ({} if self.metric is None else {"metric": self.metric})


@dataclass(frozen=True, slots=True)
class ModelPacket(FromRank):
    """What its model is made of: numbers of layers by kind, parameters, bytes of activations for each sample."""

    layers: tuple[tuple[str, int], ...]
    parameters: int
    activation_bytes: int | None = None

    def __post_init__(self) -> None:
        ModelStructure(self.layers, self.parameters, self.activation_bytes)


@dataclass(frozen=True, slots=True)
class SavingPacket(FromRank):
    """A save begins."""

    step: int


@dataclass(frozen=True, slots=True)
class SavedPacket(FromRank):
    """A checkpoint is durable; `final`: the trainer ends now, since it was asked to suspend."""

    incarnation: int
    membership: int
    step: int
    path: str
    seconds: float
    final: bool = False


@dataclass(frozen=True, slots=True)
class SaveFailedPacket(FromRank):
    """A save failed; the checkpoint before it stays."""

    step: int
    why: str
    errno: int | None = None


@dataclass(frozen=True, slots=True)
class DamagedPacket(FromRank):
    """A checkpoint that is not what was written is kept at `path`; `step` None: none is left that is whole. `attempt`:
    which saved it, 0: not said."""

    path: str
    why: str
    step: int | None = None
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class MissingPacket(FromRank):
    """It would begin at step 0, and `step` was saved: it ends."""

    step: int
    why: str


@dataclass(frozen=True, slots=True)
class DonePacket(FromRank):
    """Its training is complete."""

    step: int | None = None


@dataclass(frozen=True, slots=True)
class LeftPacket(FromRank):
    """Its script has come to its end: what follows is teardown."""


@dataclass(frozen=True, slots=True)
class JoinPacket(FromRank):
    """A rank waits to be taken into a membership, which could meet at `address` (the node's lead rank names one)."""

    address: str


@dataclass(frozen=True, slots=True)
class ReformedPacket(FromRank):
    """The ranks of this membership train, after so many seconds without progress."""

    membership: int
    step: int
    seconds: float


@dataclass(frozen=True, slots=True)
class BrokenPacket(FromRank):
    """The ranks of the membership lost each other."""

    step: int
    why: str


@dataclass(frozen=True, slots=True)
class OpenPacket(FromAgent):
    """The gate is to open onto these GPUs: the variables that name them."""

    gpu_env: dict[str, str]


@dataclass(frozen=True, slots=True)
class SuspendPacket(FromAgent):
    """The trainer is to save and end; `grace_s` None: within that of start.json."""

    grace_s: float | None = None
    by: str = SUSPENDERS[0]

    def __post_init__(self) -> None:
        if self.by not in SUSPENDERS:
            raise MalformedPacket(f"by must be one of {', '.join(SUSPENDERS)}")


@dataclass(frozen=True, slots=True)
class EndPacket(FromAgent):
    """The trainer is to end without a checkpoint; `grace_s` as in SuspendPacket."""

    grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class RescalePacket(FromAgent):
    """The ranks are to form this membership: so many `ranks` on each of `nodes`, in the order of their numbers."""

    membership: int
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    address: str

    def __post_init__(self) -> None:
        if self.membership < 1:
            raise MalformedPacket("membership must be 1 or more")
        if not self.nodes or len(set(self.nodes)) < len(self.nodes) or len(self.nodes) != len(self.ranks):
            raise MalformedPacket("nodes must be different ones, each with its number of ranks")
        if min(self.ranks) < 1:
            raise MalformedPacket("ranks must be numbers from 1 on")

    @property
    def size(self) -> int:
        """Ranks in all."""
        return sum(self.ranks)


@dataclass(frozen=True, slots=True)
class LeavePacket(FromAgent):
    """This node's ranks are to go, and the others to train on."""

    grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class DrillPacket(FromAgent):
    """Kill what trains here, `after_s` seconds into the next save, or at once; forgotten after `within_s` seconds."""

    id: str
    saving: bool
    after_s: float
    within_s: float


_KINDS: dict[str, type[Packet]] = {
    "attach": AttachPacket,
    "gate": GatePacket,
    "opened": OpenedPacket,
    "loop": LoopPacket,
    "ready": ReadyPacket,
    "progress": ProgressPacket,
    "model": ModelPacket,
    "saving": SavingPacket,
    "saved": SavedPacket,
    "save_failed": SaveFailedPacket,
    "damaged": DamagedPacket,
    "missing": MissingPacket,
    "done": DonePacket,
    "left": LeftPacket,
    "join": JoinPacket,
    "reformed": ReformedPacket,
    "broken": BrokenPacket,
    "agent": HelloPacket,
    "open": OpenPacket,
    "rescale": RescalePacket,
    "leave": LeavePacket,
    "suspend": SuspendPacket,
    "end": EndPacket,
    "drill": DrillPacket,
}


def parse(raw: bytes) -> Packet | None:
    """The packet, or None where its type is not known. Raises MalformedPacket and WrongVersion."""
    if len(raw) > LIMIT:
        raise MalformedPacket(f"more than {LIMIT} bytes")
    try:
        body = strict_json.loads(raw)
    except ValueError:
        raise MalformedPacket("not JSON") from None
    if not isinstance(body, dict):
        raise MalformedPacket("not an object")
    if body.get("v") != VERSION:
        raise WrongVersion(f"version {str(body.get('v'))[:20]} is not spoken here, {VERSION} is")
    kind = body.get("type")
    if not isinstance(kind, str):
        raise MalformedPacket("no type")
    if kind not in _KINDS:
        return None
    try:
        packet = from_json(_KINDS[kind], body)
    except ValueError as error:
        raise MalformedPacket(str(error)) from None
    _check_limits(packet)
    return packet


def _check_limits(packet: Packet) -> None:
    """Raises MalformedPacket for a number below 0 (a metric may be), and for what is too large or too long."""
    for name in (each.name for each in fields(packet)):
        match getattr(packet, name):
            case int(number) | float(number) if name != "metric" and not 0 <= number <= NUMBER_LIMIT:
                raise MalformedPacket(f"{name} must be a number from 0 on")
            case str(text) if len(text) > TEXT_LIMIT:
                raise MalformedPacket(f"{name} must be a text of at most {TEXT_LIMIT} characters")


def encode(kind: str, **body: object) -> bytes:
    """A packet as it goes over the side channel."""
    return json.dumps({"v": VERSION, "type": kind, **body}, separators=(",", ":")).encode()
