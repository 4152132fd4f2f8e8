"""Jobs that hold GPUs which they do not use."""

from hpcdl.core.model.commands import IdleMeasurement
from hpcdl.core.model.incarnation import Incarnation, IncarnationState, Part, Placement, Share, TrainingStart
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import GpuInfo, Job, Node, World
from hpcdl.daemon.api.rows import RowBuilder
from hpcdl.daemon.idle_gpus import WATCH_S, IdleGpus
from hpcdl.wire.messages import GpuLine, HeartbeatMessage

SPEC = JobSpec(("python", "train.py"), "train", gpus_min=4, gpus_max=4)


def world_of(trains: bool = True, gpus: int = 4) -> World:
    start = TrainingStart(10.0, 5.0) if trains else None
    held = Placement((Share("n1", tuple(range(gpus))),))
    running = Incarnation(
        1, IncarnationState.RUNNING, (Part("n1", held.shares[0].gpus, started=True),), held, training_start=start
    )
    node = Node("n1", tuple(GpuInfo(index, f"u{index}") for index in range(4)), connected=True)
    return World(jobs={1: Job(1, SPEC, 0.0, live=(running,))}, active={1: None}, nodes={"n1": node}, next_job=2)


def beats(*utils: int | None) -> dict[str, HeartbeatMessage]:
    return {"n1": HeartbeatMessage(tuple(GpuLine(index, util, None, None) for index, util in enumerate(utils)), ())}


def test_three_of_four_gpus_idle_for_two_minutes_are_said_to_be() -> None:
    found, world = IdleGpus(), world_of()
    for at in (0.0, WATCH_S - 1.0):
        assert found.look(world, beats(90, 0, 1, 0), at) == ()
        assert found.notes == {}, "not for long enough"
    (measured,) = found.look(world, beats(90, 0, 0, 0), WATCH_S)
    assert measured == IdleMeasurement(1, 1, (GpuRef("n1", 1), GpuRef("n1", 2), GpuRef("n1", 3)))
    assert found.notes[1].startswith("uses 1 of its 4 GPUs: nothing runs on n1:1, n1:2, n1:3; --gpus 1 does")
    row = RowBuilder(world, Profiles(), {}, 20.0, idle=found.notes).job(world.jobs[1])
    assert row["reason"] == found.notes[1]
    found.look(world, beats(90, 5, 0, 0), WATCH_S + 1.0)
    assert found.notes[1].startswith("uses 2 of its 4 GPUs"), "GPU 1 does something"


def test_what_waits_for_data_or_is_not_measured_is_left_alone() -> None:
    for world, utils in (
        (world_of(), (0, 0, 0, 0)),  # none of them: it stalls, or loads data
        (world_of(), (90, None, 0, 0)),
        (world_of(), (90, 80, 70, 60)),
        (world_of(trains=False), (90, 0, 0, 0)),
        (world_of(gpus=1), (0, 0, 0, 0)),
    ):
        found = IdleGpus()
        for at in (0.0, WATCH_S, 2 * WATCH_S):
            assert found.look(world, beats(*utils), at) == ()
        assert found.notes == {}
    gone = IdleGpus()
    gone.look(world_of(), {}, 0.0)
    assert gone.notes == {}, "no heartbeat says nothing"
