"""The decorator of effects: the functions that say what one kind of event does to the world.

With it each says, once, where its event is legal, which dicts of the world it writes, which jobs and nodes it is about,
what it asks of the next decision, and whether people are notified. All tables of events follow from that. An effect
replaces entries of the world's outer dicts, which are a draft's own; it never changes the frozen values inside.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import IncarnationState
from hpcdl.core.model.notice import NoticeKind
from hpcdl.core.model.world import World

E = TypeVar("E", bound=ev.Event)
Apply = Callable[[World, E, float], None]
GATED, RUNNING, SAVING, EXITED = IncarnationState


class Decision(IntEnum):
    """What an event asks of the next decision; of several events the most counts."""

    NONE = 0  # nothing has to be done that had not to be done before
    CARRY_ON = 1  # the last plan was waiting for it: that is carried on, and the policy is not asked
    ASK = 2  # the policy is asked


@dataclass(frozen=True, slots=True)
class Effect:
    """What one kind of event does; the fields are those of `effect`."""

    apply: Apply[Any]
    writes: tuple[str, ...]
    jobs: Callable[[World, Any], Iterable[int] | None]
    nodes: Callable[[World, Any], Iterable[str] | None]
    decides: Callable[[World, Any], Decision]
    notifies: Callable[[Any], NoticeKind | None]


EFFECTS: dict[type[ev.Event], Effect] = {}
"""By kind of event; complete once `fold.py` is imported."""

TRANSITIONS: dict[tuple[IncarnationState | None, type[ev.Event]], IncarnationState] = {}
"""(state of the incarnation before, kind of event) -> its state after; what is not in it is illegal. When the last part
of an incarnation is gone, it becomes EXITED by itself. None: there is no such incarnation yet."""


def effect(
    kind: type[E],
    *,
    writes: tuple[str, ...] = ("jobs",),
    during: Sequence[IncarnationState | None] = (),
    then: IncarnationState | None = None,
    jobs: Callable[[World, E], Iterable[int] | None] | None = None,
    nodes: Callable[[World, E], Iterable[str] | None] | None = None,
    decides: Decision | Callable[[World, E], Decision] = Decision.ASK,
    notifies: NoticeKind | Callable[[E], NoticeKind | None] | None = None,
) -> Callable[[Apply[E]], Apply[E]]:
    """The function applies events of this kind: (world, event, at), raising IllegalEvent before it changes anything.

    `writes`: the dicts of the world in which it replaces entries; it leaves the others alone. `during`: the states of
    an incarnation in which the event is legal; `then`: its state after it, None: the same. `jobs`, `nodes`: what the
    event is about, as views have to be made anew for it, from the world before it; None is any. Without them: the job
    that it names, the node that it names. `decides`: what it asks of the next decision, from the world before the
    batch. `notifies`: of which kind the notification is that people may want of it. Raises ValueError for a kind that
    has an effect.
    """
    if kind in EFFECTS:
        raise ValueError(f"{kind.__name__} has an effect already")

    def register(apply: Apply[E]) -> Apply[E]:
        EFFECTS[kind] = Effect(
            apply,
            writes,
            jobs or (_its_job if issubclass(kind, ev.JobEvent) else nothing),
            nodes or (_its_node if issubclass(kind, ev.NodeEvent) else nothing),
            decides if callable(decides) else _always(decides),
            notifies if callable(notifies) else _of_any(notifies),
        )
        for state in during:
            after = then or state
            assert after is not None, f"{kind.__name__} leads to no state"
            TRANSITIONS[state, kind] = after
        return apply

    return register


def _its_job(world: World, event: ev.JobEvent) -> tuple[int, ...]:
    return (event.job,)


def _its_node(world: World, event: ev.NodeEvent) -> tuple[str, ...]:
    return (event.node,)


def nothing(world: World, event: ev.Event) -> tuple[()]:
    """It is about no job, or no node."""
    return ()


def anything(world: World, event: ev.Event) -> None:
    """It may be about any job, or any node."""


def _always(decision: Decision) -> Callable[[World, ev.Event], Decision]:
    return lambda world, event: decision


def _of_any(kind: NoticeKind | None) -> Callable[[ev.Event], NoticeKind | None]:
    return lambda event: kind
