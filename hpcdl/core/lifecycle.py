"""`fold`: the only way in which the world changes, live, on restart and in tests.

`effects` says what each event does, `transitions` when it may. The world is pure at its border: `fold` copies the outer
dicts once and replaces the frozen values inside.
"""

from collections.abc import Iterable
from dataclasses import replace

from hpcdl.core import events as ev
from hpcdl.core.effects import EFFECTS
from hpcdl.core.model import World


class Draft:
    """A world that events are being added to, before they are recorded. Thrown away when recording fails."""

    def __init__(self, world: World) -> None:
        """Copies the outer dicts of `world` once; the frozen values inside are shared."""
        self.world = replace(
            world,
            jobs=dict(world.jobs),
            active=dict(world.active),
            nodes=dict(world.nodes),
            holders=dict(world.holders),
            request_ids=dict(world.request_ids),
            observed=dict(world.observed),
        )
        self.events: list[tuple[float, ev.Event]] = []

    def add(self, event: ev.Event, at: float) -> None:
        """Applies one event as the next in the journal. Raises IllegalEvent and changes nothing."""
        EFFECTS[type(event)](self.world, event, at)
        self.world.seq += 1
        self.world.at = max(self.world.at, at)
        self.events.append((at, event))


def fold(world: World, records: Iterable[ev.Recorded]) -> World:
    """The world after these records, in order. `world` is left as it was. Raises IllegalEvent."""
    folded = Draft(world).world
    for record in records:
        EFFECTS[type(record.event)](folded, record.event, record.at)
        folded.seq = record.seq
        folded.at = max(folded.at, record.at)
    return folded
