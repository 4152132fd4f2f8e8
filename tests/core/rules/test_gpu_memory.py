"""What was measured of a job's GPU memory, and what follows of it."""

from dataclasses import replace

from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import MemoryMeasurement
from hpcdl.core.model.job import JobSpec, Sharing
from hpcdl.core.model.units import GpuRef
from hpcdl.core.rules.gpu_memory import TRAINED_S
from hpcdl.core.rules.intake import Settings
from hpcdl.daemon.gpu_memory import GpuMemory
from hpcdl.wire.messages import GpuLine, HeartbeatMessage
from tests.support.model_cluster import Cluster

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
