"""`fold`: the only way in which the world changes, live, on restart and in tests.

`effects` says what each event does, `transitions` when it may. The world is pure at its border: the outer dicts that
events write to are copied first, and the frozen values inside are replaced.
"""

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field

from hpcdl.core import careevents as ce
from hpcdl.core import events as ev
from hpcdl.core.changing import jobs_on
from hpcdl.core.effects import EFFECTS, WRITES
from hpcdl.core.model import World

_OF_ANY = (ev.DaemonStarted, ev.DaemonStopping)
_OF_THEIR_JOBS = (ev.NodeJoined, ev.NodeSilent, ev.NodeLost, ev.NodeLeaves, ce.GpuAvoided, ce.AvoidLifted)
_DICTS = (
    "jobs", "active", "nodes", "holders", "request_ids", "observed", "live", "awaited", "pilots", "notices", "routes",
)  # fmt: skip


@dataclass(slots=True)
class Touched:
    """What events were about: `jobs` by id, `nodes` that came, went or changed, by name; None where it may be any."""

    jobs: set[int] | None = field(default_factory=set)
    nodes: set[str] | None = field(default_factory=set)

    def add(self, event: ev.Event, near: Iterable[int] = ()) -> None:
        """Notes what an event is about. `near`: the jobs that have to do with the node that it is about."""
        if isinstance(event, ev.JobEvent):
            if self.jobs is not None:
                self.jobs.update(event.members if isinstance(event, ev.ArraySubmitted) else (event.job,))
        elif isinstance(event, ev.PlanAdopted):
            if self.jobs is not None:
                self.jobs.update([target.job for target in event.targets])
        elif isinstance(event, ev.NodeEvent):
            if self.nodes is not None and not isinstance(event, ev.ReportsSeen):
                self.nodes.add(event.node)
            if self.jobs is not None:
                self.jobs.update(near)
        elif isinstance(event, _OF_ANY):
            self.jobs = self.nodes = None

    def merge(self, other: "Touched") -> None:
        """Notes what others were about."""
        self.jobs = None if self.jobs is None or other.jobs is None else self.jobs | other.jobs
        self.nodes = None if self.nodes is None or other.nodes is None else self.nodes | other.nodes


def _jobs_near(world: World, node: str) -> list[int]:
    """Those that live and have a part there, or are to have one."""
    found = jobs_on(world, node)
    for number in world.live:
        target = world.targets.get(number)
        if target is not None and target.placement is not None and node in target.placement.nodes:
            found.append(number)
    return found


class Draft:
    """A world that events are being added to, before they are recorded. Thrown away when recording fails."""

    def __init__(self, world: World) -> None:
        """Shares everything with `world` until an event writes to it."""
        self.world = copy(world)
        self.events: list[tuple[float, ev.Event]] = []
        self.touched = Touched()
        self._shared = set(_DICTS)

    def add(self, event: ev.Event, at: float) -> Iterable[int]:
        """Applies one event as the next in the journal. Raises IllegalEvent and changes nothing.

        Of what happens to a node, returns the jobs that had something there, or were to have.
        """
        kind = type(event)
        for name in WRITES[kind]:
            if name in self._shared:
                self._shared.remove(name)
                setattr(self.world, name, dict(getattr(self.world, name)))
        near = _jobs_near(self.world, event.node) if isinstance(event, _OF_THEIR_JOBS) else ()
        EFFECTS[kind](self.world, event, at)
        self.world.seq += 1
        self.world.at = max(self.world.at, at)
        self.events.append((at, event))
        self.touched.add(event, near)
        return near


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
