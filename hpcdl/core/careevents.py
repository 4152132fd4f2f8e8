"""The events of jobs that make no progress, and of GPUs and nodes that are avoided. See `events`."""

from dataclasses import dataclass

from hpcdl.core.eventbase import IncarnationEvent, NodeEvent


@dataclass(frozen=True, slots=True)
class JobStalled(IncarnationEvent):
    """No progress of it was seen since `since`; `what`: of which kind. `restart`: it is to be started again.

    `step`: where it stands.
    """

    since: float
    what: str
    step: int | None = None
    restart: bool = False


@dataclass(frozen=True, slots=True)
class StallOver(IncarnationEvent):
    """It makes progress again."""


@dataclass(frozen=True, slots=True)
class GpuFaulted(NodeEvent):
    """An agent saw a fault of a GPU: `xid 79`, or one of `health.CONDITIONS`. What follows is an event of its own."""

    index: int
    fault: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class GpuAvoided(NodeEvent):
    """Nobody is given this GPU (None: any of the node) until then. `moves`: what runs there is to leave it.

    `by_user`: `hpcdl avoid`.
    """

    index: int | None
    until: float
    reason: str
    times: int = 1
    moves: bool = False
    by_user: bool = False


@dataclass(frozen=True, slots=True)
class AvoidLifted(NodeEvent):
    """It may be granted again: its time is over, or its user says so."""

    index: int | None
    reason: str


CARE_EVENTS = (JobStalled, StallOver, GpuFaulted, GpuAvoided, AvoidLifted)
"""The events of this module."""
