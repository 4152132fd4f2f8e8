"""The Controller's thread: an inbox of commands, commits in batches, and decisions after the answers.

Commands that arrive together share a commit and a decision. Nobody else may call the Controller or write the ledger;
the world as it was committed last may be read by any thread, since it is never changed in place.
"""

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import JournalError, LeaseLost
from hpcdl.core.model.commands import Command, Request, Trouble
from hpcdl.core.model.events import Recorded
from hpcdl.core.model.pilot import Hole
from hpcdl.core.model.world import Job, World
from hpcdl.daemon.clock import WallClock
from hpcdl.daemon.memory import end_without_memory
from hpcdl.daemon.meter import Durations

log = logging.getLogger("hpcdl.daemon")
T = TypeVar("T")

MAX_BATCH = 2000
PAST = 1000
"""Retired jobs that are read in one go."""
RETRY_S = 1.0
"""After a commit that failed (a full disk), decisions are tried again this much later."""


@dataclass(frozen=True, slots=True)
class _Item:
    command: Command
    answer: "Future[Any]"


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[Controller], Any]
    answer: "Future[Any]"


class ControllerLoop:
    """Commands that arrive together are recorded together and decided together.

    `on_change(world)` and `on_requests(requests)` are called in this thread after each commit; `on_lost(why)` once,
    when the thread ends by itself: somebody else owns the ledger, or it failed.
    """

    def __init__(
        self,
        controller: Controller,
        clock: WallClock,
        debounce_s: float,
        on_change: Callable[[World], None],
        on_requests: Callable[[list[Request]], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """`debounce_s`: how long after a change the policy is asked; events that come together are seen together."""
        self._controller = controller
        self._clock = clock
        self._debounce_s = debounce_s
        self._on_change = on_change
        self._on_requests = on_requests
        self._on_lost = on_lost
        self._inbox: queue.SimpleQueue[_Item | _Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self._decide_at: float | None = None
        self._decide_took = 0.0
        self.planning = Durations()
        self._trouble = ""
        self._ended = False

    @property
    def world(self) -> World:
        """The world as last committed; never changed in place, so any thread may read it."""
        return self._controller.world

    @property
    def reasons(self) -> Mapping[int, str]:
        """Why each unfinished job stands where it stands, as the last plan put it."""
        return self._controller.reasons

    @property
    def holes(self) -> tuple[Hole, ...]:
        """What idled in the batch system when it was asked last."""
        return self._controller.holes

    @property
    def solver(self) -> str:
        """Which solver the last plan is of, and what it has proven, in words; "" where none is named."""
        return self._controller.solver

    @property
    def pilot_notes(self) -> tuple[str, ...]:
        """Why there are no more pilots than there are."""
        return self._controller.pilot_notes

    def now(self) -> float:
        """The daemon's time, in seconds since the epoch."""
        return self._clock.now()

    def retired(self, ids: Sequence[int] | None = None, before: int | None = None) -> list[Job]:
        """See `Journal.retired`. Any thread but that of the API, which must not wait for the disk."""
        return self._controller.journal.retired(ids, before, PAST if ids is None else max(1, len(ids)))

    def events(self, after: int, limit: int, job: int) -> list[Recorded]:
        """See `Journal.read`. As `retired`: archive files are read while the controller goes on."""
        return self._controller.journal.read(after, limit, job)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, within_s: float | None = None) -> bool:
        """Ends the thread after what is in the inbox; False where it has not ended within that time."""
        self._inbox.put(None)
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def send(self, command: Command) -> "Future[Any]":
        """Puts a command in the inbox. The future has its answer after the commit, CommandRefused or JournalError."""
        return self._put(_Item(command, Future()))

    def call(self, function: Callable[[Controller], T]) -> "Future[T]":
        """Runs a function in the controller's thread."""
        return self._put(_Call(function, Future()))

    def _put(self, item: _Item | _Call) -> "Future[Any]":
        # It is under way at once: whoever asked may stop waiting, and cannot cancel it under the controller's hands.
        item.answer.set_running_or_notify_cancel()
        if self._over():
            item.answer.set_exception(JournalError("the daemon is ending: try again in a moment"))
        else:
            self._inbox.put(item)
            if self._over():  # the thread may have looked for the last time just before
                self._refuse_rest()
        return item.answer

    def _over(self) -> bool:
        return self._ended

    def _run(self) -> None:
        try:
            while True:
                batch, more = self._collect()
                self._handle(batch)
                if not more:
                    return
                self._maybe_decide()
        except LeaseLost as error:
            log.error("lease lost: %s", error)
            self._on_lost(str(error))
        except BaseException as error:
            end_without_memory(error)
            # A daemon without its controller would only seem to live: the next one starts from the ledger.
            log.exception("the controller failed")
            self._on_lost(f"the controller failed: {error}")
        finally:
            self._ended = True
            self._refuse_rest()

    def _collect(self) -> tuple[list[_Item | _Call], bool]:
        """What is in the inbox, waiting for something until it is time to decide."""
        try:
            first = self._inbox.get(timeout=self._patience())
        except queue.Empty:
            return [], True
        batch: list[_Item | _Call] = []
        while first is not None and len(batch) < MAX_BATCH:
            batch.append(first)
            try:
                first = self._inbox.get_nowait()
            except queue.Empty:
                return batch, True
        if first is None:
            return batch, False
        batch.append(first)
        return batch, True

    def _patience(self) -> float | None:
        now = self._clock.now()
        times = [at for at in (self._decide_at, self._controller.wake_at) if at is not None]
        return max(0.0, min(times) - now) if times else None

    def _handle(self, batch: list[_Item | _Call]) -> None:
        items = [item for item in batch if isinstance(item, _Item)]
        if items:
            self._step(items)
        for call in batch:
            if isinstance(call, _Call):
                try:
                    call.answer.set_result(call.function(self._controller))
                except Exception as error:  # handed to whoever asked
                    end_without_memory(error)
                    call.answer.set_exception(error)

    def _step(self, items: list[_Item]) -> None:
        try:
            answers = self._controller.step([item.command for item in items], self._clock.now())
        except LeaseLost as error:
            self._fail(items, error)
            raise
        except JournalError as error:
            log.warning("not recorded: %s", error)
            self._fail(items, error)
            return
        except Exception as error:
            end_without_memory(error)
            if len(items) > 1:  # find the one at fault, and do the others
                for item in items:
                    self._step([item])
                return
            log.exception("%s failed", type(items[0].command).__name__)
            self._fail(items, error)
            return
        if self._controller.undecided and self._decide_at is None:
            # A slow policy must not starve the inbox: it gets at most a fifth of the thread.
            self._decide_at = self._clock.now() + max(self._debounce_s, 4 * self._decide_took)
        self._on_change(self._controller.world)
        for item, answer in zip(items, answers, strict=True):
            if isinstance(answer, Exception):
                item.answer.set_exception(answer)
            else:
                item.answer.set_result(answer)

    @staticmethod
    def _fail(items: list[_Item], error: Exception) -> None:
        for item in items:
            item.answer.set_exception(error)

    def _maybe_decide(self) -> None:
        now = self._clock.now()
        wake = self._controller.wake_at
        if not ((self._decide_at is not None and now >= self._decide_at) or (wake is not None and now >= wake)):
            return
        self._decide_at = None
        try:
            requests = self._controller.decide(now)
        except LeaseLost:
            raise
        except JournalError as error:
            log.warning("no decision recorded: %s", error)
            self._decide_later()
            return
        except Exception as error:
            end_without_memory(error)
            log.exception("a decision failed")
            self._decide_later()
            trouble = f"{type(error).__name__}: {error}"[:500]
            if trouble != self._trouble:
                self._trouble = trouble
                self.send(Trouble("decision", trouble))
            return
        self._trouble = ""
        self._decide_took = self._clock.now() - now
        self.planning.add(self._decide_took)
        self._on_change(self._controller.world)
        if requests:
            self._on_requests(requests)

    def _decide_later(self) -> None:
        """After a decision that failed. A wake-up time that has passed would have it tried again without a pause."""
        self._controller.wake_at = None
        self._decide_at = self._clock.now() + RETRY_S

    def _refuse_rest(self) -> None:
        while True:
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                item.answer.set_exception(JournalError("the daemon is ending: try again in a moment"))
