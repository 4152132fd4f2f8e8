"""What agents measured of trainers that do not move, from their heartbeats; `stalls` in the core decides."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hpcdl.core.model import World
from hpcdl.core.stalls import LEAST_S, Still
from hpcdl.wire.messages import HeartbeatMessage


@dataclass(slots=True)
class _Seen:
    """One incarnation on its nodes; what moves on one of them moves."""

    nodes: list[str] = field(default_factory=list)
    step_s: float | None = None
    idle_s: float | None = None
    started_s: float = 0.0


def _least(*values: float | None) -> float | None:
    return min((value for value in values if value is not None), default=None)


def measured(world: World, beats: Mapping[str, HeartbeatMessage], setting: float | None) -> tuple[Still, ...]:
    """Those that have been still for so long that the core should look, or that were found to stall."""
    seen: dict[tuple[int, int], _Seen] = {}
    for name, beat in beats.items():
        for line in beat.trainers:
            each = seen.setdefault((line.job, line.incarnation), _Seen(started_s=line.started_s))
            each.nodes.append(name)
            each.step_s = _least(each.step_s, line.step_s)
            each.idle_s = _least(each.idle_s, line.idle_s)
            each.started_s = min(each.started_s, line.started_s)
    return tuple(_worth_a_look(world, seen.items(), setting))


def _worth_a_look(
    world: World, seen: Iterable[tuple[tuple[int, int], _Seen]], setting: float | None
) -> Iterable[Still]:
    for (number, incarnation), each in seen:
        job = world.jobs.get(number)
        live = None if job is None else job.incarnation(incarnation)
        if job is None or live is None:
            continue
        wanted = setting if job.spec.stall_s is None else job.spec.stall_s
        quiet_s = max(each.idle_s or 0.0, each.started_s if each.step_s is None else each.step_s)
        if live.stalled_at is not None or (wanted != 0 and quiet_s >= (LEAST_S if wanted is None else wanted)):
            yield Still(number, incarnation, tuple(each.nodes), each.step_s, each.idle_s, each.started_s)
