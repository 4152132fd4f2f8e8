"""The step at which the ranks of a node stop: never two different ones, and nobody waits for ever."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hpcdl.trainer.group import step_counters
from hpcdl.trainer.group.step_counters import StepCounters
from tests.support.seeds import seeds
from tests.support.waiting import until
from tests.trainer.group.interleaving import Model

PATIENCE_S = 180.0


@given(st.data())
@settings(deadline=None, max_examples=seeds(60), phases=(Phase.generate,))
def test_ranks_stop_at_one_step_in_any_order(data: Any) -> None:
    ranks = data.draw(st.integers(1, 3), "ranks")
    requests = data.draw(st.dictionaries(st.integers(0, ranks - 1), st.integers(1, 5), min_size=1), "requests")
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_counters, "RANKS_LIMIT", ranks)
        patch.setattr(step_counters, "SIZE", 8 * (step_counters.FIRST + step_counters.WORDS * ranks))
        patch.setattr(step_counters, "SETTLE_S", 0.0)
        model = Model([Path(folder)] * ranks, 6, data.draw(st.booleans(), "coupled"), requests)
        model.run(lambda ready: data.draw(st.sampled_from(ready)))
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
    script = "import sys; from pathlib import Path; from hpcdl.trainer.group.step_counters import StepCounters\n"
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
