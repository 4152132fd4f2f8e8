"""Heartbeats to series of jobs: what is kept of them, what it costs, and what a daemon finds of the one before."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from hpcdl.core.model.series import MOST, MOST_NAMES, Point, divergence, sample
from hpcdl.core.model.units import GpuRef
from hpcdl.daemon import series as module
from hpcdl.daemon.api.series import series_rows
from hpcdl.daemon.series import FINISHED, SeriesKeeper
from hpcdl.ledger.series import SeriesChange
from hpcdl.wire.messages import GpuLine, HeartbeatMessage, MetricLine, TrainerLine
from tests.support.stage import Stage, running
from tests.support.waiting import until_async


class Ledger:
    """As much of one as a keeper uses."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.now, self.calls = stage, 5000.0, 0
        self.stored: dict[int, dict[str, list[Point]]] = {}

    def keep(self, changes: Sequence[SeriesChange]) -> None:
        self.calls += 1
        for change in changes:
            series = self.stored.setdefault(change.job, {}).setdefault(change.name, [])
            assert change.first <= len(series)
            series[change.first :] = change.points

    async def read(self, job: int) -> dict[str, list[Point]]:
        return {name: list(points) for name, points in self.stored.get(job, {}).items()}

    def keeper(self) -> SeriesKeeper:
        return SeriesKeeper(lambda: self.stage.world, lambda: self.now, self.keep, self.read, {}, self.means)

    async def means(self, names: Sequence[str]) -> dict[int, dict[str, float]]:
        return {9: {"gpu_util": 30.0, "gpu_memory": 1.0}, 1: {"gpu_util": 99.0}}


def within(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 180))


async def settled(keeper: SeriesKeeper) -> None:
    while keeper._loading:
        await asyncio.sleep(0)


def metric(job: int, attempt: int, name: str, *steps: int, value: float | None = 1.0) -> MetricLine:
    odd = int(value is None)
    return MetricLine(job, attempt, name, tuple((0.5, step, value, value, value, value, 1, odd) for step in steps))


@pytest.fixture(scope="module")
def stage() -> Stage:
    return running(2, "12")


def test_a_series_goes_on_where_the_daemon_before_had_it(stage: Stage) -> None:
    ledger, attempt = Ledger(stage), stage.world.jobs[1].last_incarnation

    async def test() -> None:
        keeper = ledger.keeper()
        for step in range(1, 4):
            keeper.heard("n1", HeartbeatMessage((), (), (), (metric(1, attempt, "loss", step),)))
        await settled(keeper)
        keeper.flush()
        after = ledger.keeper()  # the daemon was killed, and started again
        after.heard("n1", HeartbeatMessage((), (), (), (metric(1, attempt, "loss", 4, 5),)))
        await settled(after)
        assert [point.step for point in (await after.points(1))["loss"]] == [1, 2, 3, 4, 5]
        after.heard("n1", HeartbeatMessage((), (), (), (metric(1, attempt, "loss", 3),)))  # it was resumed at step 2
        after.flush()
        assert [(point.step, point.at) for point in ledger.stored[1]["loss"]] == [
            (1, 4999.5), (2, 4999.5), (3, 4999.5), (3, 4999.5),
        ]  # fmt: skip
        assert await ledger.keeper().points(1) == ledger.stored[1]
        calls = ledger.calls
        after.flush()
        assert ledger.calls == calls, "nothing has changed"

    within(test)


def test_means_of_use_are_those_in_memory_else_those_of_the_ledger(stage: Stage) -> None:
    ledger = Ledger(stage)
    placement = next(job.running.placement for job in [stage.world.jobs[1]] if job.running is not None)
    assert placement is not None
    share = placement.shares[0]

    async def test() -> None:
        keeper = ledger.keeper()
        for util in (40, 60):
            lines = tuple(GpuLine(gpu, util, 4_096, None) for gpu in share.gpus)
            keeper.heard(share.node, HeartbeatMessage(lines, ()))
        await settled(keeper)
        assert await keeper.means(("gpu_util", "gpu_memory")) == {
            9: {"gpu_util": 30.0, "gpu_memory": 1.0},
            1: {"gpu_util": 50.0, "gpu_memory": 4_096.0},
        }

    within(test)


def test_only_known_attempts_and_so_many_names_are_kept(stage: Stage) -> None:
    ledger, attempt = Ledger(stage), stage.world.jobs[1].last_incarnation

    async def test() -> None:
        keeper = ledger.keeper()
        lines = [metric(1, attempt, f"m{number}", 1) for number in range(MOST_NAMES + 9)]
        strange = [metric(1, attempt + 1, "late", 1), metric(99, 1, "x", 1), metric(1, attempt, "gpu_util", 1),
                   metric(1, attempt, "no name", 1)]  # fmt: skip
        for each in (*lines, *strange):
            keeper.heard("n1", HeartbeatMessage((), (), (), (each,)))
        await settled(keeper)
        keeper.flush()
        assert list(ledger.stored) == [1]
        assert sorted(ledger.stored[1]) == sorted(f"m{number}" for number in range(MOST_NAMES))
        keeper.heard("n1", HeartbeatMessage((), (), (), tuple(metric(1, attempt, "m1", each) for each in range(5000))))
        assert len((await keeper.points(1))["m1"]) <= MOST

    within(test)


def test_what_no_file_could_hold_is_left_out(stage: Stage) -> None:
    ledger, attempt = Ledger(stage), stage.world.jobs[1].last_incarnation
    nan, inf, huge = float("nan"), float("inf"), 10**400
    good = (1.0, 1, 2.0, 2.0, 2.0, 2.0, 1, 0)
    bad: list[Any] = [
        (nan, *good[1:]), (inf, *good[1:]), (1.0, -1, *good[2:]), (1.0, huge, *good[2:]), (*good[:6], huge, 0),
        (*good[:6], 0, 0), (*good[:6], 1, 2), (*good[:6], 1, -1), (1.0, 1, inf, *good[3:]),
        (1.0, 1, 2.0, nan, *good[4:]), (1.0, 1, 2.0, None, *good[4:]),
    ]  # fmt: skip
    gpus = (GpuLine(0, huge, huge, inf), GpuLine(1, None, None, nan))
    trainers = (TrainerLine(4711, 1, 1, 4710, cpu=inf, resident_mib=huge),)

    async def test() -> None:
        keeper = ledger.keeper()
        lines = [MetricLine(1, attempt, f"m{number}", (row,)) for number, row in enumerate(bad)]
        keeper.heard("n1", HeartbeatMessage(gpus, trainers, (), (*lines, MetricLine(1, attempt, "loss", (good,)))))
        await settled(keeper)
        assert list(await keeper.points(1)) == ["loss"]

    within(test)


def test_what_a_job_uses_is_the_mean_of_its_gpus(stage: Stage) -> None:
    ledger = Ledger(stage)
    assert stage.world.holders[GpuRef("n1", 0)][0] == 1
    gpus = (GpuLine(0, 90, 1000, 200.0), GpuLine(1, 10, 3000, None))
    trainers = (TrainerLine(4711, 1, 1, 4710, cpu=350.0, resident_mib=2048),)

    async def test() -> None:
        keeper = ledger.keeper()
        keeper.heard("n1", HeartbeatMessage(gpus, trainers))
        keeper.heard("elsewhere", HeartbeatMessage(gpus, ()))
        await settled(keeper)
        found = {name: (series[0].low, series[0].mean, series[0].high, series[0].step)
                 for name, series in (await keeper.points(1)).items()}  # fmt: skip
        assert found == {
            "gpu_util": (10.0, 50.0, 90.0, None),
            "gpu_memory": (1000.0, 2000.0, 3000.0, None),
            "gpu_power": (200.0, 200.0, 200.0, None),
            "cpu": (350.0, 350.0, 350.0, None),
            "memory": (2048.0, 2048.0, 2048.0, None),
        }

        metrics = {name: [sample(1.0, 1, 0.5)] for name in ("acc", "val_loss")}
        order = [each["name"] for each in series_rows({**metrics, **await keeper.points(1)}, 8)]
        assert order == ["val_loss", "acc", "gpu_util", "gpu_memory", "gpu_power", "cpu", "memory"]

        metrics["acc"].append(sample(2.0, 2, 0.6))
        metrics["diverged"] = [sample(1.0, 1, None), sample(2.0, 2, None)]
        metrics["a_lr"] = [sample(1.0, 1, 0.1), sample(2.0, 2, 0.1)]
        order = [each["name"] for each in series_rows(metrics, 8)]
        assert order == ["val_loss", "acc", "diverged", "a_lr"], "what stays the same comes last"

    within(test)


def test_a_loss_that_is_not_finite_any_more_is_noted_until_it_is_again(stage: Stage) -> None:
    ledger, attempt = Ledger(stage), stage.world.jobs[1].last_incarnation

    async def test() -> None:
        keeper = ledger.keeper()
        for step, value in ((1, 2.0), (2, None), (3, None)):
            keeper.heard("n1", HeartbeatMessage((), (), (), (metric(1, attempt, "loss", step, value=value),)))
        await settled(keeper)
        keeper.flush()
        assert keeper.not_finite == {1: {"loss": 2}}
        stored = {1: {name: where for name, points in ledger.stored[1].items() if (where := divergence(points))}}
        after = SeriesKeeper(lambda: stage.world, lambda: ledger.now, ledger.keep, ledger.read, stored)
        assert after.not_finite == keeper.not_finite, "of a daemon that starts anew"
        after.flush()
        assert after.not_finite == keeper.not_finite, "and is not forgotten"
        keeper.heard("n1", HeartbeatMessage((), (), (), (metric(1, attempt, "loss", 4),)))
        keeper.flush()
        assert keeper.not_finite == {}

    within(test)


def test_quiet_jobs_leave_the_memory_and_finished_ones_are_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GATHER_S", 0.01)
    stage = running(1, "1")
    ledger, attempt = Ledger(stage), stage.world.jobs[1].last_incarnation

    async def test() -> None:
        keeper = ledger.keeper()
        for step in range(1, 231):
            keeper.heard("n1", HeartbeatMessage((), (), (), (metric(1, attempt, "loss", step),)))
        await until_async(lambda: 1 in ledger.stored, "the first points")
        assert 1 in keeper._jobs
        ledger.now += 1000.0  # nothing was heard of it
        await until_async(lambda: not keeper._jobs, "a memory without the job")
        assert len((await keeper.points(1))["loss"]) == 230
        stage.finish()
        keeper.heard("n1", HeartbeatMessage((), (), (), (metric(1, attempt, "loss", 400),)))
        await until_async(lambda: not keeper._jobs, "a memory without the job")
        points = ledger.stored[1]["loss"]
        assert len(points) <= FINISHED
        assert (points[0].step, points[-1].step, sum(point.samples for point in points)) == (1, 400, 231)
        late = metric(1, attempt, "loss", 401, value=None)
        keeper.heard("n1", HeartbeatMessage((), (), (), (late,)))
        await until_async(lambda: not keeper._jobs, "a memory without the job")
        assert keeper.not_finite == {1: {"loss": 401}}, "it is said after the job's end, too"

    within(test)


def test_with_little_room_every_job_has_its_turn() -> None:
    stage = running(4, "12")
    stage.start("34")
    stage.until_trains(2, "34")
    ledger = Ledger(stage)

    async def test() -> None:
        keeper = ledger.keeper()
        for step in range(1, 4):
            for job in (1, 2):
                attempt = stage.world.jobs[job].last_incarnation
                keeper.heard("n1", HeartbeatMessage((), (), (), (metric(job, attempt, "loss", step),)))
            await settled(keeper)
            keeper.flush(1)
        assert sorted(ledger.stored) == [1, 2]
        assert [len(each["loss"]) for each in ledger.stored.values()] == [3, 2]

    within(test)
