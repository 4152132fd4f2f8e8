"""The events of pilots: decided, taken or refused by the batch system, seen, ended. See `events`."""

from dataclasses import dataclass

from hpcdl.core.eventbase import PilotEvent
from hpcdl.core.pilot import BatchJob, PilotSpec


@dataclass(frozen=True, slots=True)
class PilotRequested(PilotEvent):
    """It is to be submitted; until the batch system has taken it, it is asked for again after every restart."""

    spec: PilotSpec


@dataclass(frozen=True, slots=True)
class PilotSubmitted(PilotEvent):
    """The batch system has taken it."""

    batch_id: str


@dataclass(frozen=True, slots=True)
class PilotRefused(PilotEvent):
    """The batch system did not take it; in its words. That is the pilot's end."""

    reason: str


@dataclass(frozen=True, slots=True)
class PilotSeen(PilotEvent):
    """What the batch system says of it is another thing than before."""

    job: BatchJob


@dataclass(frozen=True, slots=True)
class PilotFound(PilotEvent):
    """It was taken to be over, and its batch job is listed, with its mark: it goes on with that batch job."""

    job: BatchJob


@dataclass(frozen=True, slots=True)
class PilotCancelRequested(PilotEvent):
    """It is not wanted any more."""

    why: str


@dataclass(frozen=True, slots=True)
class PilotEnded(PilotEvent):
    """Concluded: its batch job is over, or gone. `job`: the last that was seen of it. To be preempted is no failure."""

    how: str
    job: BatchJob | None = None


PILOT_EVENTS: tuple[type[PilotEvent], ...] = (
    PilotRequested,
    PilotSubmitted,
    PilotRefused,
    PilotSeen,
    PilotFound,
    PilotCancelRequested,
    PilotEnded,
)
