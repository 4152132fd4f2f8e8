"""EASY backfill: a plain count beside it, its rules by hand, and the sample that comes with hpcdl."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from hpcdl.config.layers import conf_folder
from hpcdl.sim import WorkloadError
from hpcdl.sim.idle.easy import HOUR_S, BatchArrival, BatchLoad, _Machine, arrivals, backfilled
from hpcdl.sim.readers import read_idle_trace
from hpcdl.sim.replay import chosen, idle_of, read_idle, table2
from hpcdl.sim.replay.bound import ReplayBound
from hpcdl.sim.replay.run import BestThroughput

SAMPLE = conf_folder() / "workloads" / "idle_sample.csv.gz"


def starts(jobs: Sequence[BatchArrival], nodes: int) -> list[float]:
    """When each job starts, by the plainest EASY backfill there is: at each second that something happens."""
    began: dict[int, float] = {}
    events = sorted({job.at for job in jobs})
    while events:
        now = events.pop(0)
        waits = [n for n, job in enumerate(jobs) if job.at <= now and n not in began]
        while waits and jobs[waits[0]].nodes <= free(jobs, nodes, began, now, now):
            began[waits.pop(0)] = now
        if waits:
            first = jobs[waits[0]]
            ends = sorted({max(now, began[n] + jobs[n].walltime_s) for n in running(jobs, began, now)})
            until = next(at for at in ends if free(jobs, nodes, began, now, at) >= first.nodes)
            for n in waits[1:]:
                if jobs[n].nodes <= free(jobs, nodes, began, now, now):
                    began[n] = now
                    if free(jobs, nodes, began, now, until) < first.nodes:
                        del began[n]
        events = sorted({*events, *(began[n] + jobs[n].runtime_s for n in running(jobs, began, now))})
    return [began[n] for n in range(len(jobs))]


def running(jobs: Sequence[BatchArrival], began: Mapping[int, float], now: float) -> list[int]:
    return [n for n in began if began[n] + jobs[n].runtime_s > now]


def free(jobs: Sequence[BatchArrival], nodes: int, began: Mapping[int, float], now: float, at: float) -> int:
    """Nodes that are free now, or at a later time if each job that runs now takes its walltime."""
    held = [n for n in running(jobs, began, now) if at == now or began[n] + jobs[n].walltime_s > at]
    return nodes - sum(jobs[n].nodes for n in held)


@pytest.mark.parametrize("seed", range(60))
def test_it_idles_as_a_plain_count_says(seed: int) -> None:
    rng = random.Random(seed)
    nodes = rng.randint(1, 9)
    at, jobs = 0.0, []
    for _ in range(rng.randint(1, 25)):
        at += rng.choice((0, 0, 1, 5, 20))
        runtime_s = float(rng.randint(1, 60))
        jobs.append(BatchArrival(at, rng.randint(1, nodes), runtime_s, runtime_s * rng.choice((1, 1, 1.5, 3))))
    machine = _Machine(nodes)
    for job in jobs:
        machine.until(job.at)
        machine.submit(job)
    end = sum(job.runtime_s for job in jobs) + at + 1
    machine.until(end)
    spells = machine.spells(0.0, end)
    began = starts(jobs, nodes)
    for second in range(int(end)):
        busy = sum(j.nodes for j, b in zip(jobs, began, strict=True) if b <= second < b + j.runtime_s)
        assert sum(spell.from_s <= second < spell.until_s for spell in spells) == nodes - busy, second


def test_a_job_is_backfilled_where_it_delays_nobody() -> None:
    machine = _Machine(4)
    for nodes, runtime_s, walltime_s in ((3, 100, 100), (4, 50, 50), (1, 50, 200), (1, 60, 100)):
        machine.submit(BatchArrival(0.0, nodes, float(runtime_s), float(walltime_s)))
    machine.until(1000.0)
    # The third would keep the second from starting at 100, the fourth does not.
    spells = [(each.name, each.from_s, each.until_s) for each in machine.spells(0.0, 201.0)]
    assert spells == [
        ("n4", 60.0, 100.0),
        ("n2", 150.0, 201.0),
        ("n3", 150.0, 201.0),
        ("n4", 150.0, 201.0),
        ("n1", 200.0, 201.0),
    ]


def test_jobs_ask_for_the_load() -> None:
    load = BatchLoad(load=0.5)
    jobs = list(arrivals(load, 512, 200 * HOUR_S, 3))
    assert sum(job.nodes * job.runtime_s for job in jobs) / 512 / (200 * HOUR_S) == pytest.approx(0.5, rel=0.15)
    assert max(job.nodes for job in jobs) == 204
    assert all(job.runtime_s <= job.walltime_s <= 12 * HOUR_S for job in jobs)
    assert {job.walltime_s % 600 for job in jobs} == {0.0}


def test_the_same_seed_gives_the_same_trace() -> None:
    assert backfilled(BatchLoad(), 40, 30, 5) == backfilled(BatchLoad(), 40, 30, 5)
    assert backfilled(BatchLoad(), 40, 30, 5) != backfilled(BatchLoad(), 40, 30, 6)


@pytest.mark.parametrize("value", [{"load": 0}, {"slack": 0.5}, {"largest": 1.5}, {"sigma": float("inf")}])
def test_laws_that_make_no_sense_are_refused(value: dict[str, float]) -> None:
    with pytest.raises(WorkloadError, match=next(iter(value))):
        replace(BatchLoad(), **value)


def test_the_sample_is_what_its_command_makes() -> None:
    assert read_idle_trace(SAMPLE, 1) == backfilled(BatchLoad(), 1024, 168, 1)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rescaling_for_nothing_reaches_as_much_as_on_summit(seed: int) -> None:
    idle = read_idle(SAMPLE, None) if seed == 1 else idle_of(backfilled(BatchLoad(), 1024, 168, seed))
    mix = chosen("ShuffleNet", table2()) * 10
    bound = ReplayBound(idle, BestThroughput(idle.most, 1, 64), ((0.0, mix),))
    assert 0.90 < bound.free / bound.static < 0.95
