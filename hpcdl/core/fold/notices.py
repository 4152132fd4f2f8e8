"""Effects of the events of notifications: what is due, what was delivered, which destinations fail.

The daemon delivers (`daemon/delivery`); which events people want to hear of is decided in `rules/notices.py`.
"""

from dataclasses import replace

from hpcdl.core.fold.effect import Decision, effect
from hpcdl.core.fold.write import story
from hpcdl.core.model import events as ev
from hpcdl.core.model.notice import Notice, Route
from hpcdl.core.model.world import World

KEPT = 1_000
"""Notices that were given up and are remembered."""


@effect(ev.NoticeDue, writes=("notices", "routes"), decides=Decision.NONE)
def notice_due(world: World, event: ev.NoticeDue, at: float) -> None:
    if event.notice != world.next_notice:
        raise story(world, event, f"the next notification is {world.next_notice}, not {event.notice}")
    world.next_notice += 1
    waiting = tuple(dict.fromkeys(event.destinations))
    world.notices[event.notice] = Notice(
        event.notice, event.what, event.about, event.name, event.state, event.cause, event.detail, at, waiting
    )


def _settle(world: World, destination: str, numbers: tuple[int, ...], *, given_up: bool) -> None:
    for number in numbers:
        notice = world.notices.get(number)
        if notice is None or destination not in notice.waiting:
            continue  # it was dropped meanwhile, or sent twice
        waiting = tuple(each for each in notice.waiting if each != destination)
        over = (*notice.given_up, destination) if given_up else notice.given_up
        if waiting or over:
            world.notices[number] = replace(notice, waiting=waiting, given_up=over)
        else:
            del world.notices[number]


@effect(ev.NoticesSent, writes=("notices", "routes"), decides=Decision.NONE)
def notices_sent(world: World, event: ev.NoticesSent, at: float) -> None:
    _settle(world, event.destination, event.notices, given_up=False)
    world.routes.pop(event.destination, None)


@effect(ev.NoticesFailed, writes=("notices", "routes"), decides=Decision.NONE)
def notices_failed(world: World, event: ev.NoticesFailed, at: float) -> None:
    before = world.routes.get(event.destination)
    since = at if before is None else before.since
    world.routes[event.destination] = Route(event.attempt, since, event.retry_at, event.why)


@effect(ev.NoticesGivenUp, writes=("notices", "routes"), decides=Decision.NONE)
def notices_given_up(world: World, event: ev.NoticesGivenUp, at: float) -> None:
    _settle(world, event.destination, event.notices, given_up=True)
    over = [number for number, notice in world.notices.items() if not notice.waiting]
    for number in over[: max(0, len(over) - KEPT)]:
        del world.notices[number]
    _forget_routes(world)


@effect(ev.NoticesRetried, writes=("notices", "routes"), decides=Decision.NONE)
def notices_retried(world: World, event: ev.NoticesRetried, at: float) -> None:
    world.routes.clear()
    for number, notice in list(world.notices.items()):
        if notice.given_up:
            # `at` is when it happened, which does not change; what it has waited since is counted anew.
            waiting = (*notice.waiting, *notice.given_up)
            world.notices[number] = replace(notice, waiting=waiting, given_up=())


@effect(ev.NoticeDropped, writes=("notices", "routes"), decides=Decision.NONE)
def notice_dropped(world: World, event: ev.NoticeDropped, at: float) -> None:
    if world.notices.pop(event.notice, None) is None:
        raise story(world, event, f"no notification {event.notice} waits")
    _forget_routes(world)


def _forget_routes(world: World) -> None:
    """Of destinations for which nothing waits any more, nothing need be known."""
    wanted = {destination for notice in world.notices.values() for destination in notice.waiting}
    for destination in [each for each in world.routes if each not in wanted]:
        del world.routes[destination]
