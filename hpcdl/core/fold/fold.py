"""`fold`: the only way in which the world changes, while the daemon runs, on restart and in tests.

Pure at its border: of the world's outer dicts, which effects write to, those that an event writes are copied first; the
values inside are frozen, and replaced. What each event does is said in the other modules of this folder (`effect`).
"""

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field

# They register their effects.
import hpcdl.core.fold.incarnations
import hpcdl.core.fold.jobs
import hpcdl.core.fold.nodes
import hpcdl.core.fold.notices
import hpcdl.core.fold.pilots  # noqa: F401
from hpcdl.core.fold.effect import EFFECTS
from hpcdl.core.model import events as ev
from hpcdl.core.model.world import World

DICTS = (
    "jobs", "active", "nodes", "holders", "backgrounds", "request_ids", "observed", "live", "awaited", "pilots",
    "notices", "routes", "awaited_batch", "batch_ends",
)  # fmt: skip


@dataclass(slots=True)
class ChangeSet:
    """What events were about: `jobs` by id, `nodes` that came, went or changed, by name; None where it may be any."""

    jobs: set[int] | None = field(default_factory=set)
    nodes: set[str] | None = field(default_factory=set)

    def add(self, jobs: Iterable[int] | None, nodes: Iterable[str] | None) -> None:
        """Notes what an event is about."""
        if jobs is None:
            self.jobs = None
        elif self.jobs is not None:
            self.jobs.update(jobs)
        if nodes is None:
            self.nodes = None
        elif self.nodes is not None:
            self.nodes.update(nodes)

    def merge(self, other: "ChangeSet") -> None:
        """Notes what others were about."""
        self.add(other.jobs, other.nodes)


class Draft:
    """A world that events are being added to, before they are recorded. Thrown away when recording fails."""

    def __init__(self, world: World) -> None:
        """Shares everything with `world` until an event writes to it."""
        self.world = copy(world)
        self.events: list[tuple[float, ev.Event]] = []
        self.touched = ChangeSet()
        self._shared = set(DICTS)

    def add(self, event: ev.Event, at: float) -> None:
        """Applies one event as the next in the journal. Raises IllegalEvent and changes nothing."""
        effect = EFFECTS[type(event)]
        for name in effect.writes:
            if name in self._shared:
                self._shared.remove(name)
                setattr(self.world, name, dict(getattr(self.world, name)))
        jobs, nodes = effect.jobs(self.world, event), effect.nodes(self.world, event)
        effect.apply(self.world, event, at)
        self.world.seq += 1
        self.world.at = max(self.world.at, at)
        self.events.append((at, event))
        self.touched.add(jobs, nodes)


def copied(world: World) -> World:
    """A world of its own: what is done to it does not show in `world`."""
    own = copy(world)
    for name in DICTS:
        setattr(own, name, dict(getattr(world, name)))
    return own


def fold(world: World, records: Iterable[ev.Recorded]) -> World:
    """The world after these records, in order. `world` is left as it was. Raises IllegalEvent."""
    folded = copied(world)
    for record in records:
        EFFECTS[type(record.event)].apply(folded, record.event, record.at)
        folded.seq = record.seq
        folded.at = max(folded.at, record.at)
    return folded
