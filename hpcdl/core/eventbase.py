"""What all events have: a kind, a stream, and their registration under the class's name. See `events`."""

from dataclasses import dataclass
from typing import Any, ClassVar

KINDS: dict[str, type["Event"]] = {}


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""

    stream_of: ClassVar[str] = "daemon"

    def __init_subclass__(cls, **extra: Any) -> None:
        # slots=True makes each class twice; the second, with slots, is the one that stays.
        KINDS[cls.__name__] = cls

    @property
    def kind(self) -> str:
        """The event's name in the ledger and in `hpcdl events`."""
        return type(self).__name__

    @property
    def stream(self) -> str:
        """`job/7`, `node/n1`, `pilot/3` or `daemon`: what the event's version counts within."""
        if self.stream_of == "job":
            return f"job/{self.job}"  # type: ignore[attr-defined]
        if self.stream_of == "node":
            return f"node/{self.node}"  # type: ignore[attr-defined]
        if self.stream_of == "pilot":
            return f"pilot/{self.pilot}"  # type: ignore[attr-defined]
        return "daemon"


@dataclass(frozen=True, slots=True)
class JobEvent(Event):
    """Base of the events of one job."""

    stream_of: ClassVar[str] = "job"
    job: int


@dataclass(frozen=True, slots=True)
class IncarnationEvent(JobEvent):
    """Base of the events of one incarnation."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class NodeEvent(Event):
    """Base of the events of one node."""

    stream_of: ClassVar[str] = "node"
    node: str


@dataclass(frozen=True, slots=True)
class PilotEvent(Event):
    """Base of the events of one pilot."""

    stream_of: ClassVar[str] = "pilot"
    pilot: int


for _base in (JobEvent, IncarnationEvent, NodeEvent, PilotEvent):
    KINDS.pop(_base.__name__, None)
