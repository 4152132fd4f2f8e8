"""`fold`: the only way in which the world changes, live, on restart and in tests.

`effects` says what each event does, `transitions` when it may. The world is pure at its border: the outer dicts that
events write to are copied first, and the frozen values inside are replaced.
"""

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field

from hpcdl.core import events as ev
from hpcdl.core.effects import EFFECTS, WRITES
from hpcdl.core.model import World

_OF_ANY_JOB = (ev.NodeLost, ev.DaemonStarted, ev.DaemonStopping)
_DICTS = ("jobs", "active", "nodes", "holders", "request_ids", "observed", "live", "awaited")


@dataclass(slots=True)
class Touched:
    """What events were about: `jobs` by id, None where it may be any; `nodes`: whether nodes came, went or changed."""

    jobs: set[int] | None = field(default_factory=set)
    nodes: bool = False

    def add(self, event: ev.Event) -> None:
        """Notes what an event is about."""
        if isinstance(event, ev.JobEvent):
            if self.jobs is not None:
                self.jobs.add(event.job)
        elif isinstance(event, ev.PlanAdopted):
            if self.jobs is not None:
                self.jobs.update([target.job for target in event.targets])
        elif isinstance(event, ev.NodeEvent | ev.DaemonStarted):
            self.nodes = self.nodes or not isinstance(event, ev.ReportsSeen)
        if isinstance(event, _OF_ANY_JOB):
            self.jobs = None

    def merge(self, other: "Touched") -> None:
        """Notes what others were about."""
        self.jobs = None if self.jobs is None or other.jobs is None else self.jobs | other.jobs
        self.nodes = self.nodes or other.nodes


class Draft:
    """A world that events are being added to, before they are recorded. Thrown away when recording fails."""

    def __init__(self, world: World) -> None:
        """Shares everything with `world` until an event writes to it."""
        self.world = copy(world)
        self.events: list[tuple[float, ev.Event]] = []
        self.touched = Touched()
        self._shared = set(_DICTS)

    def add(self, event: ev.Event, at: float) -> None:
        """Applies one event as the next in the journal. Raises IllegalEvent and changes nothing."""
        kind = type(event)
        for name in WRITES[kind]:
            if name in self._shared:
                self._shared.remove(name)
                setattr(self.world, name, dict(getattr(self.world, name)))
        EFFECTS[kind](self.world, event, at)
        self.world.seq += 1
        self.world.at = max(self.world.at, at)
        self.events.append((at, event))
        self.touched.add(event)


def copied(world: World) -> World:
    """A world of its own: what is done to it does not show in `world`."""
    own = copy(world)
    for name in _DICTS:
        setattr(own, name, dict(getattr(world, name)))
    return own


def fold(world: World, records: Iterable[ev.Recorded]) -> World:
    """The world after these records, in order. `world` is left as it was. Raises IllegalEvent."""
    folded = copied(world)
    for record in records:
        EFFECTS[type(record.event)](folded, record.event, record.at)
        folded.seq = record.seq
        folded.at = max(folded.at, record.at)
    return folded
