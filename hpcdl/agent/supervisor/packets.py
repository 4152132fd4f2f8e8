"""What may come to a supervisor over the side channel, checked once, at the border.

What each packet means is in docs/protocols.md; times are seconds, steps count those that are done.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

VERSION = 1
LIMIT = 65536  # bytes in a packet
TEXT_LIMIT = 4096
NUMBER_LIMIT = 1 << 53
GPUS_LIMIT = 64
NODES_LIMIT = 8192  # of a membership; the packet's limit comes sooner where their names are long
SUSPENDERS = ("daemon", "agent")


class MalformedPacket(ValueError):
    """Not a packet of ours; it is counted and ignored."""


class WrongVersion(ValueError):
    """The peer speaks another version; it is refused."""


@dataclass(frozen=True, slots=True)
class AttachPacket:
    pid: int
    rank: int
    incarnation: int
    membership: int
    handler: bool
    says_loop: bool = False


@dataclass(frozen=True, slots=True)
class GatePacket:
    warm_s: float
    cuda: bool


@dataclass(frozen=True, slots=True)
class OpenedPacket:
    gpus: tuple[str, ...] | None
    ok: bool | None


@dataclass(frozen=True, slots=True)
class ReadyPacket:
    step: int


@dataclass(frozen=True, slots=True)
class LoopPacket:
    """The rank's training loop has begun: from now on it can save when it is asked to suspend."""


@dataclass(frozen=True, slots=True)
class ProgressPacket:
    """`metric`: what it is trained for, as it was at this step, where that is said."""

    step: int
    total: int | None
    samples: int | None
    metric: float | None = None


@dataclass(frozen=True, slots=True)
class SavingPacket:
    step: int


@dataclass(frozen=True, slots=True)
class SavedPacket:
    incarnation: int
    membership: int
    step: int
    path: str
    seconds: float
    final: bool


@dataclass(frozen=True, slots=True)
class SaveFailedPacket:
    step: int
    errno: int | None
    why: str


@dataclass(frozen=True, slots=True)
class DamagedPacket:
    """A checkpoint that is not what was written is kept at `path`; `step` None: none is left that is whole."""

    step: int | None
    path: str
    why: str


@dataclass(frozen=True, slots=True)
class DonePacket:
    step: int | None


@dataclass(frozen=True, slots=True)
class JoinPacket:
    """A rank waits to be taken into a membership, which could meet at `address` (the node's lead rank names one)."""

    address: str


@dataclass(frozen=True, slots=True)
class ReformedPacket:
    membership: int
    step: int
    seconds: float


@dataclass(frozen=True, slots=True)
class BrokenPacket:
    step: int
    why: str


@dataclass(frozen=True, slots=True)
class HelloPacket:
    """The agent's first packet: it has the records up to number `after`."""

    after: int


@dataclass(frozen=True, slots=True)
class OpenPacket:
    gpu_env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SuspendPacket:
    grace_s: float | None
    by: str


@dataclass(frozen=True, slots=True)
class EndPacket:
    grace_s: float | None


@dataclass(frozen=True, slots=True)
class RescalePacket:
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

    @property
    def body(self) -> dict[str, object]:
        """As keys of a packet."""
        return {
            "membership": self.membership,
            "nodes": list(self.nodes),
            "ranks": list(self.ranks),
            "address": self.address,
        }


@dataclass(frozen=True, slots=True)
class LeavePacket:
    """This node's ranks are to go, and the others to train on."""

    grace_s: float | None


@dataclass(frozen=True, slots=True)
class DrillPacket:
    """Kill what trains here, `after_s` seconds into the next save, or at once; forgotten after `within_s` seconds."""

    id: str
    saving: bool
    after_s: float
    within_s: float


FromRank = (
    GatePacket
    | OpenedPacket
    | JoinPacket
    | LoopPacket
    | ReadyPacket
    | ReformedPacket
    | BrokenPacket
    | ProgressPacket
    | SavingPacket
    | SavedPacket
    | SaveFailedPacket
    | DamagedPacket
    | DonePacket
)
FromAgent = OpenPacket | RescalePacket | LeavePacket | SuspendPacket | EndPacket | DrillPacket
Packet = AttachPacket | HelloPacket | FromRank | FromAgent


def parse(raw: bytes) -> Packet | None:
    """The packet, or None where its type is not known. Raises Malformed and WrongVersion."""
    if len(raw) > LIMIT:
        raise MalformedPacket(f"more than {LIMIT} bytes")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise MalformedPacket("not JSON") from None
    if not isinstance(body, dict):
        raise MalformedPacket("not an object")
    if body.get("v") != VERSION:
        raise WrongVersion(f"version {str(body.get('v'))[:20]} is not spoken here, {VERSION} is")
    kind = body.get("type")
    if not isinstance(kind, str):
        raise MalformedPacket("no type")
    read = _KINDS.get(kind)
    return None if read is None else read(body)


def encode(kind: str, **body: object) -> bytes:
    """A packet as it goes over the side channel."""
    return json.dumps({"v": VERSION, "type": kind, **body}, separators=(",", ":")).encode()


def _whole(body: Mapping[str, Any], name: str) -> int:
    value = body.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= NUMBER_LIMIT:
        raise MalformedPacket(f"{name} must be a whole number from 0 on")
    return value


def _whole_or_none(body: Mapping[str, Any], name: str) -> int | None:
    return None if body.get(name) is None else _whole(body, name)


def _seconds(body: Mapping[str, Any], name: str) -> float:
    value = body.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= NUMBER_LIMIT:
        raise MalformedPacket(f"{name} must be seconds from 0 on")  # NaN fails the comparison, too
    return float(value)


def _finite_or_none(body: Mapping[str, Any], name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not -math.inf < value < math.inf:
        raise MalformedPacket(f"{name} must be a finite number")
    return float(value)


def _seconds_or_none(body: Mapping[str, Any], name: str) -> float | None:
    return None if body.get(name) is None else _seconds(body, name)


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise MalformedPacket(f"{name} must be true or false")
    return value


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or len(value) > TEXT_LIMIT:
        raise MalformedPacket(f"{name} must be a text of at most {TEXT_LIMIT} characters")
    return value


def _texts_or_none(body: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > GPUS_LIMIT:
        raise MalformedPacket(f"{name} must be a list of at most {GPUS_LIMIT}")
    return tuple(_text({name: each}, name) for each in value)


def _list(body: Mapping[str, Any], name: str) -> list[Any]:
    value = body.get(name)
    if not isinstance(value, list) or len(value) > NODES_LIMIT:
        raise MalformedPacket(f"{name} must be a list of at most {NODES_LIMIT}")
    return value


def _variables(body: Mapping[str, Any], name: str) -> Mapping[str, str]:
    value = body.get(name)
    if not isinstance(value, dict):
        raise MalformedPacket(f"{name} must map names to texts")
    return {variable: _text(value, variable) for variable in value}


def _suspender(body: Mapping[str, Any]) -> str:
    by = body.get("by", SUSPENDERS[0])
    if by not in SUSPENDERS:
        raise MalformedPacket(f"by must be one of {', '.join(SUSPENDERS)}")
    return str(by)


_KINDS: Mapping[str, Callable[[Mapping[str, Any]], Packet]] = {
    "attach": lambda body: AttachPacket(
        _whole(body, "pid"),
        _whole(body, "rank"),
        _whole(body, "incarnation"),
        _whole(body, "membership"),
        _flag(body, "handler"),
        _flag(body, "says_loop"),
    ),
    "gate": lambda body: GatePacket(_seconds_or_none(body, "warm_s") or 0.0, _flag(body, "cuda")),
    "opened": lambda body: OpenedPacket(
        _texts_or_none(body, "gpus"), None if body.get("ok") is None else _flag(body, "ok")
    ),
    "loop": lambda body: LoopPacket(),
    "ready": lambda body: ReadyPacket(_whole(body, "step")),
    "progress": lambda body: ProgressPacket(
        _whole(body, "step"),
        _whole_or_none(body, "total"),
        _whole_or_none(body, "samples"),
        _finite_or_none(body, "metric"),
    ),
    "saving": lambda body: SavingPacket(_whole(body, "step")),
    "saved": lambda body: SavedPacket(
        _whole(body, "incarnation"),
        _whole(body, "membership"),
        _whole(body, "step"),
        _text(body, "path"),
        _seconds(body, "seconds"),
        _flag(body, "final"),
    ),
    "save_failed": lambda body: SaveFailedPacket(
        _whole(body, "step"), _whole_or_none(body, "errno"), _text(body, "why")
    ),
    "damaged": lambda body: DamagedPacket(_whole_or_none(body, "step"), _text(body, "path"), _text(body, "why")),
    "done": lambda body: DonePacket(_whole_or_none(body, "step")),
    "join": lambda body: JoinPacket(_text(body, "address")),
    "reformed": lambda body: ReformedPacket(
        _whole(body, "membership"), _whole(body, "step"), _seconds(body, "seconds")
    ),
    "broken": lambda body: BrokenPacket(_whole(body, "step"), _text(body, "why")),
    "agent": lambda body: HelloPacket(_whole_or_none(body, "after") or 0),
    "open": lambda body: OpenPacket(_variables(body, "gpu_env")),
    "rescale": lambda body: RescalePacket(
        _whole(body, "membership"),
        tuple(_text({"nodes": each}, "nodes") for each in _list(body, "nodes")),
        tuple(_whole({"ranks": each}, "ranks") for each in _list(body, "ranks")),
        _text(body, "address"),
    ),
    "leave": lambda body: LeavePacket(_seconds_or_none(body, "grace_s")),
    "suspend": lambda body: SuspendPacket(_seconds_or_none(body, "grace_s"), _suspender(body)),
    "end": lambda body: EndPacket(_seconds_or_none(body, "grace_s")),
    "drill": lambda body: DrillPacket(
        _text(body, "id"), _flag(body, "saving"), _seconds(body, "after_s"), _seconds(body, "within_s")
    ),
}
