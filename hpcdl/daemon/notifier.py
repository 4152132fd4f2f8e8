"""Delivery of notifications in time: one thread hands each destination what waits for it, bundled, until it takes it.

What is due is in the ledger before anything is sent, and what became of it is recorded after; so a notification may
come twice, and is never lost. A destination that hangs holds up nobody: each delivery has a thread of its own.
Neighbours: `delivery` has the ways (commands, mail, servers), `core/rules/notices` what is due.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass

from hpcdl.core.controller.journal import JournalError
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.notice import Notice
from hpcdl.core.model.world import World
from hpcdl.daemon.delivery import Letter, NotDelivered, Ways, deliver, end_commands
from hpcdl.daemon.loop import ControllerLoop

log = logging.getLogger("hpcdl.daemon")

BUNDLE_S = 60.0
"""A destination gets one message in this time; what comes meanwhile is in the next one."""

COLLECT_S = 1.0
"""What comes so soon after the first is in the same message."""

MOST = 1_000
"""Notifications in one message, at most."""

AT_ONCE = 8
"""Deliveries at the same time, at most."""

LIMIT_S = 60.0
"""After so long a delivery counts as failed, whatever it does."""

PAUSE_S, PAUSE_MAX_S = 15.0, 3600.0
"""Until the second attempt; doubled from then on."""

RECORD_S = 5.0
"""What could not be recorded (a disk is full) is recorded again after this time."""


@dataclass(slots=True)
class _Flight:
    """A delivery under way. `abandoned`: it took too long, and its outcome is not waited for."""

    notices: tuple[Notice, ...]
    began: float
    thread: threading.Thread | None = None
    abandoned: bool = False


@dataclass(slots=True)
class _Outbox:
    """When a destination was sent something; none of it matters after a restart."""

    first_at: float | None = None
    sent_at: float | None = None
    flight: _Flight | None = None


class Notifier:
    """The thread that delivers, from `start` to `stop`. Other threads call `changed`."""

    def __init__(
        self,
        loop: ControllerLoop,
        ways: Ways,
        for_s: float,
        *,
        send: Callable[[str, Letter, Ways], None] = deliver,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`for_s`: so long a destination that takes nothing is tried. `send`: as `deliver`."""
        self._loop = loop
        self._ways = ways
        self._for_s = for_s
        self._send = send
        self._monotonic = monotonic
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._ended = False
        self._seen: dict[int, Notice] | None = None
        self._boxes: dict[str, _Outbox] = {}
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)

    def start(self) -> None:
        """Starts the thread. Commands that an earlier daemon has left behind end."""
        end_commands(f"{self._ways.instance}:notice")
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and the commands that run. Waits for no destination: the next daemon goes on."""
        self._ended = True
        self._wake.set()
        end_commands(f"{self._ways.instance}:notice")

    def changed(self, world: World) -> None:
        """Something was committed: maybe a notification is due."""
        if world.notices is not self._seen:
            self._seen = world.notices
            self._wake.set()

    def _run(self) -> None:
        while not self._ended:
            try:
                pause_s = self.turn()
            except Exception:  # a fault of ours must not end the thread, nor be tried without a pause
                log.exception("the thread of the notifications failed")
                pause_s = BUNDLE_S
            if self._wake.wait(pause_s):
                self._wake.clear()

    def turn(self) -> float | None:
        """Begins what is due; how long nothing will be unless something changes, in seconds, None for ever."""
        now, clock = self._monotonic(), self._loop.now()
        world = self._loop.world
        waiting = _waiting(world)
        for destination in [each for each, box in self._boxes.items() if each not in waiting and box.flight is None]:
            if now - (self._boxes[destination].sent_at or -BUNDLE_S) >= BUNDLE_S:
                del self._boxes[destination]
        pauses: list[float] = []
        flying = self._look_at_flights(now, pauses)
        for destination, notices in waiting.items():
            box = self._boxes.setdefault(destination, _Outbox())
            if box.flight is not None:
                continue
            route = world.routes.get(destination)
            box.first_at = now if box.first_at is None else box.first_at
            after = box.first_at + COLLECT_S
            if box.sent_at is not None:
                after = max(after, box.sent_at + BUNDLE_S)
            if route is not None:
                after = now + route.retry_at - clock
            if after > now:
                pauses.append(after - now)
            elif flying < AT_ONCE:
                flying += 1
                self._begin(destination, box, tuple(notices[:MOST]), now)
                pauses.append(LIMIT_S)
        return max(0.01, min(pauses)) if pauses else None

    def _look_at_flights(self, now: float, pauses: list[float]) -> int:
        """How many are under way; those that take too long are recorded as failed."""
        with self._lock:
            flights = [(to, box.flight) for to, box in self._boxes.items() if box.flight is not None]
        for destination, flight in flights:
            if flight.abandoned:
                if flight.thread is not None and flight.thread.is_alive():
                    pauses.append(BUNDLE_S)
                else:
                    self._boxes[destination].flight = None
            elif now - flight.began >= LIMIT_S:
                flight.abandoned = True
                self._record(self._failed(destination, flight.notices, f"no end of it within {LIMIT_S:g} s"))
                pauses.append(BUNDLE_S)
            else:
                pauses.append(flight.began + LIMIT_S - now)
        return sum(1 for _, flight in flights if not flight.abandoned)

    def _begin(self, destination: str, box: _Outbox, notices: tuple[Notice, ...], now: float) -> None:
        flight = box.flight = _Flight(notices, now)
        name = f"notices {notices[0].id}"
        flight.thread = threading.Thread(target=self._fly, args=(destination, box, flight), name=name, daemon=True)
        flight.thread.start()

    def _fly(self, destination: str, box: _Outbox, flight: _Flight) -> None:
        """One delivery, and its record."""
        numbers = tuple(notice.id for notice in flight.notices)
        try:
            letter = Letter(self._ways.instance, flight.notices, _folder(self._loop.world, flight.notices))
            self._send(destination, letter, self._ways)
            command: cmd.Command = cmd.NoticesTaken(destination, numbers)
        except NotDelivered as error:
            command = self._failed(destination, flight.notices, str(error))
        except Exception as error:  # a fault of ours; it is tried again like any other
            log.exception("a notification could not be sent")
            command = self._failed(destination, flight.notices, type(error).__name__)
        if flight.abandoned or self._ended:
            return  # what a stop cut off has not failed: the next daemon tries it
        while not self._record(command) and not self._ended:
            time.sleep(RECORD_S)
        with self._lock:
            box.flight = None
            box.sent_at, box.first_at = self._monotonic(), None
        self._wake.set()

    def _failed(self, destination: str, notices: tuple[Notice, ...], why: str) -> cmd.NoticesNotTaken:
        route, now = self._loop.world.routes.get(destination), self._loop.now()
        attempt = 1 if route is None else route.failed + 1
        pause_s = min(PAUSE_MAX_S, PAUSE_S * 2.0 ** min(attempt - 1, 20))
        old = route is not None and now - route.since >= self._for_s
        over = tuple(notice.id for notice in notices if old and now - notice.at >= self._for_s)
        return cmd.NoticesNotTaken(destination, tuple(each.id for each in notices), attempt, why, pause_s, over)

    def _record(self, command: cmd.Command) -> bool:
        """Whether it is in the ledger: what was sent and is not recorded would be sent again."""
        try:
            self._loop.send(command).result(LIMIT_S)
        except (JournalError, NotInTime) as error:
            log.warning("the outcome of a notification is not recorded yet: %s", error)
            return False
        return True


def _folder(world: World, notices: tuple[Notice, ...]) -> str:
    """That in which their jobs run, if it is one."""
    folders = {world.jobs[each.job].spec.cwd for each in notices if each.job in world.jobs}
    return folders.pop() if len(folders) == 1 else ""


def _waiting(world: World) -> dict[str, list[Notice]]:
    found: dict[str, list[Notice]] = {}
    for notice in world.notices.values():
        for destination in notice.waiting:
            found.setdefault(destination, []).append(notice)
    return found
