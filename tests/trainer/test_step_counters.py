"""The step at which the ranks of a node stop: never two different ones, and nobody waits for ever."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hpcdl.trainer import step_counters
from hpcdl.trainer.step_counters import StepCounters
from tests.trainer.supervisor import until

PATIENCE_S = 30.0


class Model:
    """Real counters of several ranks, each in a thread of its own of which one at a time runs: `draw` chooses which, at
    each access to the shared memory. `coupled`: no rank ends a step that another has not begun, as in a collective."""

    def __init__(self, folder: Path, ranks: int, total: int, coupled: bool, requests: dict[int, int]) -> None:
        self.total, self.coupled, self.requests = total, coupled, requests
        self.counters = [StepCounters(folder, 1, rank) for rank in range(ranks)]
        self.begun = [0] * ranks  # the step that each has begun
        self.stopped: dict[int, int] = {}
        self.holder: int | None = None
        self.waits: list[Any] = [lambda: True] * ranks  # until it may go on
        self.turns = [threading.Semaphore(0) for _ in range(ranks)]
        self.parked = threading.Semaphore(0)
        self.ended: set[int] = set()
        for rank, each in enumerate(self.counters):
            each._words = Memory(each._words, self, rank)  # type: ignore[assignment]
            each._locked = partial(self.locked, rank)  # type: ignore[method-assign]

    def park(self, rank: int, until: Any = lambda: True) -> None:
        self.waits[rank] = until
        self.parked.release()
        self.turns[rank].acquire()

    @contextmanager
    def locked(self, rank: int) -> Iterator[None]:
        self.park(rank, lambda: self.holder is None)
        self.holder = rank
        yield
        self.holder = None

    def train(self, rank: int) -> None:
        self.turns[rank].acquire()
        try:
            self.steps(rank)
        finally:
            self.ended.add(rank)
            self.parked.release()

    def steps(self, rank: int) -> None:
        for step in range(1, self.total + 1):
            if self.counters[rank].arrive(self.requests.get(rank, self.total + 1) <= step):
                self.stopped[rank] = step
                break
            self.begun[rank] = step
            if self.coupled:
                self.park(rank, lambda step=step: min(self.begun) >= step)

    def run(self, draw: Any) -> None:
        threads = [threading.Thread(target=self.train, args=(rank,), daemon=True) for rank in range(len(self.begun))]
        for each in threads:
            each.start()
        while len(self.ended) < len(threads):
            ready = [rank for rank in range(len(threads)) if rank not in self.ended and self.waits[rank]()]
            assert ready, f"a deadlock: begun {self.begun}, stopped {self.stopped}"
            self.turns[draw(st.sampled_from(ready))].release()
            assert self.parked.acquire(timeout=PATIENCE_S)
        for each in threads:
            each.join(PATIENCE_S)


class Memory:
    """The shared words of one rank; each access is a point at which another may run."""

    def __init__(self, words: Any, model: Model, rank: int) -> None:
        self._words, self._model, self._rank = words, model, rank

    def __getitem__(self, word: int) -> int:
        self._model.park(self._rank)
        return int(self._words[word])

    def __setitem__(self, word: int, value: int) -> None:
        self._model.park(self._rank)
        self._words[word] = value


@given(st.data())
@settings(deadline=None, max_examples=60, phases=(Phase.generate,))
def test_ranks_stop_at_one_step_in_any_order(data: Any) -> None:
    ranks = data.draw(st.integers(1, 3), "ranks")
    requests = data.draw(st.dictionaries(st.integers(0, ranks - 1), st.integers(1, 5), min_size=1), "requests")
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_counters, "RANKS_LIMIT", ranks)
        patch.setattr(step_counters, "SIZE", 8 * (step_counters.FIRST + step_counters.WORDS * ranks))
        patch.setattr(step_counters, "SETTLE_S", 0.0)
        model = Model(Path(folder), ranks, 6, data.draw(st.booleans(), "coupled"), requests)
        model.run(data.draw)
    assert len(set(model.stopped.values())) <= 1, "two different steps"
    assert len(model.stopped) in (0, ranks), "one stops, and another trains on"
    if model.coupled:
        assert len(model.stopped) == ranks, "all of them are at most one step past the request"
    first = min(requests.values())
    assert all(step >= first for step in model.stopped.values())


def test_a_rank_that_comes_after_the_request_stops_with_the_others(tmp_path: Path) -> None:
    one, other = (StepCounters(tmp_path, 1, rank) for rank in (0, 1))
    assert [one.arrive(False) for _ in range(7)] == [False] * 7
    assert [one.arrive(True), one.arrive(False)] == [True, True]
    assert [other.arrive(False) for _ in range(8)] == [False] * 7 + [True]


def test_a_rank_stops_where_another_is_that_was_ahead(tmp_path: Path) -> None:
    slow, fast = (StepCounters(tmp_path, 1, rank) for rank in (3, 1000))
    assert not any(fast.arrive(False) for _ in range(20))
    assert [slow.arrive(True) for _ in range(21)] == [False] * 20 + [True]
    assert fast.arrive(False)


def test_ranks_that_hear_at_one_boundary_train_no_other_step(tmp_path: Path) -> None:
    one, other, holder = (StepCounters(tmp_path, 1, rank) for rank in range(3))
    assert not one.arrive(False)
    assert not other.arrive(False)
    with ThreadPoolExecutor(2) as threads, holder._locked():
        answers = [threads.submit(each.arrive, True) for each in (one, other)]
        until(lambda: [each._words[each._mine + step_counters.HEARD] for each in (one, other)] == [2, 2], "both")
        fcntl.flock(holder._file, fcntl.LOCK_UN)
        assert [each.result(PATIENCE_S) for each in answers] == [True, True]


def test_a_rank_alone_stops_where_it_hears(tmp_path: Path) -> None:
    counters = StepCounters(tmp_path, 1, 0)
    assert [counters.arrive(flag) for flag in (False, False, True)] == [False, False, True]


def test_processes_that_ended_are_forgotten(tmp_path: Path) -> None:
    """As torchrun starts all ranks anew within one attempt: what those before had agreed on is theirs."""
    script = "import sys; from pathlib import Path; from hpcdl.trainer.step_counters import StepCounters\n"
    script += "counters = StepCounters(Path(sys.argv[1]), 1, int(sys.argv[2])); print(counters.launch)\n"
    script += "[counters.arrive(False) for _ in range(9)]; assert counters.arrive(True)"
    for rank in ("0", "1"):
        done = subprocess.run([sys.executable, "-c", script, str(tmp_path), rank], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    counters = StepCounters(tmp_path, 1, 0)
    assert counters.launch == int(done.stdout) + 1
    assert [counters.arrive(False) for _ in range(20)] == [False] * 20
    other = StepCounters(tmp_path, 1, 1)
    assert other.launch == counters.launch, "the first one lives"
    assert other.lives(0)
    assert not other.lives(2)


def test_the_memory_is_its_users_alone(tmp_path: Path) -> None:
    StepCounters(tmp_path, 4, 0)
    assert os.stat(tmp_path / "steps.4").st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match="1024"):
        StepCounters(tmp_path, 4, 1024)
    (tmp_path / "steps.5").symlink_to(tmp_path / "steps.4")
    with pytest.raises(OSError):
        StepCounters(tmp_path, 5, 0)
