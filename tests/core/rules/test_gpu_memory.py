"""What was measured of a job's GPU memory, and what follows of it."""

from dataclasses import replace
from typing import Any

import pytest

from hpcdl.adaptive import POLICIES as ADAPTIVE
from hpcdl.core.controller.view_builder import blocked_why
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import CommandRefused, MemoryMeasurement
from hpcdl.core.model.job import JobSpec, Sharing
from hpcdl.core.model.pilot import Pilot, PilotSpec
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import GpuInfo, Node, World
from hpcdl.core.rules.gpu_memory import TRAINED_S, never_large_enough
from hpcdl.core.rules.intake import Settings
from hpcdl.core.rules.jobs import doubts_of
from hpcdl.daemon.gpu_memory import GpuMemory
from hpcdl.wire.messages import GpuLine, HeartbeatMessage
from tests.support.model_cluster import Cluster
from tests.support.model_parts import Agent

SPEC = JobSpec(("a",), "a", profile="plain", steps=2_000, share=Sharing("foreground"))
BACK = replace(SPEC, share=Sharing("background"), gpu_memory_mib=6_000)


def test_jobs_share_once_memory_was_measured_and_part_where_it_grows() -> None:
    model = Cluster({"n1": 1}, settings=Settings(sharing=True), gpu_memory_mib=16_384)
    front, back = model.submit(SPEC, BACK)
    model.run_until(lambda: model.job(front).running is not None, within_s=10.0)
    model.run_until(lambda: model.job(front).running.training_start is not None, within_s=100.0)
    model.send(cmd.Tick(memory=(MemoryMeasurement(front, 1, 5_000),)))
    assert model.job(front).gpu_memory_mib is None, "its allocator may not have all yet"
    model.run(TRAINED_S)
    model.send(cmd.Tick(memory=(MemoryMeasurement(front, 1, 5_000), MemoryMeasurement(9, 1, 7))))
    assert model.job(front).gpu_memory_mib == 5_000
    model.run_until(lambda: model.job(back).progress.step is not None, within_s=100.0)
    assert GpuRef("n1", 0) in model.world.backgrounds
    model.send(cmd.Tick(memory=(MemoryMeasurement(front, 1, 5_100),)))
    assert model.job(front).gpu_memory_mib == 5_000, "no news"
    model.send(cmd.Tick(memory=(MemoryMeasurement(front, 1, 12_000),)))
    model.run_until(lambda: model.job(back).running is None, within_s=60.0)
    assert not model.world.backgrounds
    measured = [each.event for each in model.journal.records if isinstance(each.event, ev.GpuMemoryMeasured)]
    assert measured == [ev.GpuMemoryMeasured(front, 1, 5_000), ev.GpuMemoryMeasured(front, 1, 12_000)]
    model.check_replay((0.0, 0.5, 1.0))


def test_of_a_job_beside_another_only_what_the_driver_says_is_measured() -> None:
    model = Cluster({"n1": 2}, settings=Settings(sharing=True), gpu_memory_mib=16_384)
    model.submit(replace(SPEC, gpu_memory_mib=4_000), replace(SPEC, share=None))
    model.run_until(lambda: len(model.world.holders) == 2, within_s=10.0)
    gpu_memory = GpuMemory()

    def beat(*used: int | None) -> dict[str, HeartbeatMessage]:
        return {"n1": HeartbeatMessage(tuple(GpuLine(index, 90, each, None) for index, each in enumerate(used)), ())}

    stale, beats = beat(9_000, 3_000), beat(3_000, 3_000)
    assert gpu_memory.measure(model.world, stale) == gpu_memory.measure(model.world, stale) == ()
    assert gpu_memory.measure(model.world, beats) == (MemoryMeasurement(1, 1, 3_000),)
    assert gpu_memory.measure(model.world, {}) == ()
    assert gpu_memory.measure(model.world, beat(None)) == ()
    (back,) = model.submit(BACK)
    model.run_until(lambda: bool(model.world.backgrounds), within_s=100.0)
    both = beat(9_000, 3_000)
    assert gpu_memory.measure(model.world, both) == ()
    lines = GpuLine(0, 90, 9_000, None, shares=((1, 1, 3_100), (back, 1, 5_900))), GpuLine(1, 90, 3_000, None)
    assert gpu_memory.measure(model.world, {"n1": HeartbeatMessage(lines, ())}) == (
        MemoryMeasurement(1, 1, 3_100),
        MemoryMeasurement(back, 1, 5_900),
    )
    model.send(cmd.Cancel(back))
    model.run_until(lambda: not model.world.backgrounds, within_s=60.0)
    assert gpu_memory.measure(model.world, both) == (), "a sample from when both were there"
    assert gpu_memory.measure(model.world, beats) == (MemoryMeasurement(1, 1, 3_000),)


def node(name: str, *mib: int, **more: Any) -> Node:
    return Node(name, tuple(GpuInfo(n, f"{name}-{n}", memory_mib=each) for n, each in enumerate(mib)), **more)


@pytest.mark.parametrize(
    "nodes, batch_system, why",
    [
        ([node("n1", 16_384, 16_384), node("n2", 24_576), node("n3", 24_576)], "", "largest has 24 GiB (n[2-3])"),
        ([node("n1", 16_384)], "slurm", ""),
        ([node("n1", 16_384, allocation="77")], "", ""),
        ([node("n1", 16_384), node("n2", 0)], "", ""),  # nobody knows how large that one is
        ([node("n1", 16_384), node("n2", 81_920, lost=True)], "", ""),  # it may come back
        ([node("n1", 16_384), node("n2")], "", "(n1)"),
        ([], "", ""),
    ],
)
def test_a_job_is_only_refused_where_no_larger_gpu_may_come(nodes: list[Node], batch_system: str, why: str) -> None:
    world = World(nodes={each.name: each for each in nodes})
    large = JobSpec(("a",), "a", gpu_memory_mib=81_920)
    said = never_large_enough(world, large, batch_system)
    assert why in said
    assert bool(why) == bool(said)
    assert not never_large_enough(world, replace(large, gpu_memory_mib=16_384), batch_system)
    assert not never_large_enough(world, replace(large, gpu_memory_mib=None), batch_system)
    pilot = Pilot(1, PilotSpec(1, 600.0), 0.0, 0.0)
    assert not never_large_enough(replace(world, pilots={1: pilot}), large, batch_system)
    over = never_large_enough(replace(world, pilots={1: replace(pilot, how="ended")}), large, batch_system)
    assert over == said


def test_what_no_gpu_has_is_refused_with_what_there_is() -> None:
    model = Cluster({"n1": 1}, gpu_memory_mib=16_384)
    model.run(1.0)
    (answer,) = model.send(cmd.Submit((replace(SPEC, gpu_memory_mib=40_960),), "x"))
    assert isinstance(answer, CommandRefused)
    assert answer.code == "gpu-memory"
    assert str(answer).startswith("it takes 40 GiB of each GPU, and the largest has 16 GiB (n1); no pilot or later")
    assert not model.world.jobs
    model.submit(replace(SPEC, gpu_memory_mib=16_384))
    model.run_to_end()


def test_a_job_waits_for_a_gpu_that_is_large_enough_and_no_smaller_one_will_do() -> None:
    adaptive = next(each for each in ADAPTIVE if each.name == "adaptive")
    model = Cluster({"n1": 2}, settings=Settings(batch_system="slurm"), gpu_memory_mib=16_384, watched=True)
    model.policies.add(adaptive)
    model.send(cmd.ChoosePolicy("adaptive"))
    large, small = model.submit(replace(SPEC, share=None, gpu_memory_mib=40_960), replace(SPEC, share=None))
    model.run_until(lambda: model.job(small).running is not None, within_s=100.0)
    why = blocked_why(model.world, model.job(large), model.now)
    assert why == "needs 40 GiB of each GPU, and the largest has 16 GiB (n1): it waits for a larger one"
    assert doubts_of(model.world, model.job(large).spec) == (
        "it takes 40 GiB of each GPU, and the largest has 16 GiB (n1): it waits for a larger one (hpcdl nodes)",
    )
    model.run_until(lambda: model.job(small).finished, within_s=10_000.0)
    assert model.job(large).running is None, "the GPU that is free is too small"
    model.agents["n2"] = Agent("n2", [GpuInfo(0, "n2-0", memory_mib=81_920)])
    model.connect("n2")
    model.run_until(lambda: model.job(large).running is not None, within_s=100.0)
    assert model.job(large).running.placement.nodes == ("n2",), "n1 is free, too, and its GPUs are too small"
    model.run_to_end()
    model.check_replay((0.0, 0.5, 1.0))
