"""GPU memory utilisation by what jobs take: by hand on the paper's job set 3."""

import pytest

from hpcdl.report import read_history
from hpcdl.report.memory import ModelMemory, memory_use
from tests.report.story import rows, set_three

GIB = 1024.0


def test_of_set_three_by_hand() -> None:
    history = read_history(rows(set_three()))
    there_s = 6.0 * (history.end - history.begin)
    flat = memory_use(history, lambda job, gpus: 4 * GIB, lambda node: 16 * GIB, there_s)
    held = {job: sum(span.end_at - span.start_at for span in history.spans if span.job == job) for job in (1, 2, 3)}
    starting = {1: 3 * 37, 2: 3 * 37 + 4 * 51, 3: 500 - 3 * 37 - 3 * 37 - 4 * 51}
    for job in (1, 2, 3):
        assert flat.jobs[job] == pytest.approx(0.25 * (1 - starting[job] / held[job]))
    assert flat.run == pytest.approx(0.25 * (2056 + 45) / there_s)
    batch = ModelMemory(1 * GIB, 12 * GIB)
    assert [batch.on(gpus) / GIB for gpus in (1, 3, 6)] == [13, 5, 3]
    split = memory_use(history, lambda job, gpus: batch.on(gpus), lambda node: 16 * GIB, there_s)
    assert split.jobs[1] == pytest.approx(5 / 4 * (flat.jobs[1] or 0.0)), "it has three GPUs"


def test_what_is_not_known_is_not_guessed() -> None:
    history = read_history(rows(set_three()))
    some = memory_use(history, lambda job, gpus: None if job == 2 else 4 * GIB, lambda node: 16 * GIB, 3006.0)
    assert some.jobs[2] is None
    assert some.jobs[1] is not None
    assert some.run is None
    assert memory_use(history, lambda job, gpus: 4 * GIB, lambda node: 0.0, 3006.0).run is None
