"""Real step counters of several ranks, run in any order of their accesses to the shared memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hpcdl.trainer.group.step_counters import StepCounters

PATIENCE_S = 180.0


class Over(BaseException):
    """The run has ended, and this thread with it."""


class Model:
    """Ranks, each in a thread of its own of which one at a time runs: who is chosen at each access to the memory.
    `coupled`: no rank ends a step that another has not begun, as in a collective.

    `nodes`: the folder of each rank's node. `requests`: the step from which on a rank knows of a request to stop.
    """

    def __init__(self, nodes: Sequence[Path], total: int, coupled: bool, requests: dict[int, int]) -> None:
        ranks = len(nodes)
        self.total, self.coupled, self.requests = total, coupled, requests
        self.counters = [StepCounters(node, 1, nodes[:rank].count(node)) for rank, node in enumerate(nodes)]
        self.begun = [0] * ranks  # the step that each has begun
        self.stopped: dict[int, int] = {}
        self.over = False
        self.holder: int | None = None
        self.acts: list[Callable[[], None]] = [partial(self.steps, rank) for rank in range(ranks)]
        self.me = threading.local()
        self.parked = threading.Semaphore(0)
        self.ended: set[int] = set()
        for each in self.counters:
            each._words = Memory(each._words, self)  # type: ignore[assignment]
            each._locked = self.locked  # type: ignore[method-assign]

    def park(self, until: Callable[[], bool] = lambda: True) -> None:
        """Lets another go on; this one when it is chosen again, which it is not before `until`."""
        actor: int | None = getattr(self.me, "actor", None)
        if actor is None:
            return  # before the run, and after it
        self.waits[actor] = until
        self.parked.release()
        self.turns[actor].acquire()
        if self.over:
            raise Over

    @contextmanager
    def locked(self) -> Iterator[None]:
        self.park(lambda: self.holder is None)
        self.holder = self.me.actor
        yield
        self.holder = None

    def act(self, actor: int) -> None:
        self.turns[actor].acquire()
        self.me.actor = actor
        try:
            if not self.over:
                self.acts[actor]()
        except Over:
            pass
        finally:
            self.ended.add(actor)
            self.parked.release()

    def steps(self, rank: int) -> None:
        for step in range(1, self.total + 1):
            if self.counters[rank].arrive(self.requests.get(rank, self.total + 1) <= step):
                self.stopped[rank] = step
                break
            self.begun[rank] = step
            if self.coupled:
                self.park(lambda step=step: min(self.begun) >= step)  # type: ignore[misc]

    def ready(self) -> list[int]:
        """Who may be chosen."""
        return [actor for actor in range(len(self.acts)) if actor not in self.ended and self.waits[actor]()]

    def run(self, choose: Callable[[list[int]], int]) -> None:
        """Until all have ended, or `over` is set."""
        self.waits: list[Callable[[], bool]] = [lambda: True] * len(self.acts)
        self.turns = [threading.Semaphore(0) for _ in self.acts]
        threads = [threading.Thread(target=self.act, args=(actor,), daemon=True) for actor in range(len(self.acts))]
        for each in threads:
            each.start()
        try:
            while len(self.ended) < len(threads) and not self.over:
                ready = self.ready()
                assert ready, f"a deadlock: begun {self.begun}, stopped {self.stopped}"
                self.turns[choose(ready)].release()
                assert self.parked.acquire(timeout=PATIENCE_S)
        finally:
            self.over = True
            self.close(threads)

    def close(self, threads: Sequence[threading.Thread]) -> None:
        """Ends the threads, and gives the memory back."""
        for turn in self.turns:
            turn.release()
        for each in threads:
            each.join(PATIENCE_S)
        for counters in self.counters:
            counters._words = counters._words._words  # type: ignore[attr-defined]
            counters.close()


class Memory:
    """The shared words as a rank has them; each access is a point at which another may run."""

    def __init__(self, words: Any, model: Model) -> None:
        self._words, self._model = words, model

    def __getitem__(self, word: int) -> int:
        self._model.park()
        return int(self._words[word])

    def __setitem__(self, word: int, value: int) -> None:
        self._model.park()
        self._words[word] = value
