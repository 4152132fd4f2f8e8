"""What heartbeats tell of trainers that do not move, and what of that the core is shown."""

from dataclasses import replace

from hpcdl.core.model.commands import StallMeasurement
from hpcdl.core.model.incarnation import Incarnation, IncarnationState, Part, Stall
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.world import Job, World
from hpcdl.core.rules.stalls import LEAST_S
from hpcdl.daemon.agents import measured
from hpcdl.wire.messages import HeartbeatMessage, TrainerLine

SPEC = JobSpec(("train",), "j")
LIVE = Incarnation(2, IncarnationState.RUNNING, (Part("n1"), Part("n2")), None)


def world(spec: JobSpec = SPEC, stall: Stall | None = None) -> World:
    return World(jobs={1: Job(1, spec, 0.0, live=(replace(LIVE, stall=stall),))})


def beats(**lines: TrainerLine) -> dict[str, HeartbeatMessage]:
    return {name: HeartbeatMessage((), (line,)) for name, line in lines.items()}


def line(step_s: float | None, idle_s: float | None = None, started_s: float = 9e9) -> TrainerLine:
    return TrainerLine(4711, 1, 2, 4710, step_s, idle_s, started_s)


def test_what_moves_on_one_node_moves() -> None:
    found = measured(world(), beats(n1=line(900.0), n2=line(None, 3.0, 800.0)), None)
    assert found == (StallMeasurement(1, 2, ("n1", "n2"), 900.0, 3.0, 800.0),)
    assert measured(world(), beats(n1=line(LEAST_S - 1)), None) == ()


def test_each_job_has_its_own_patience() -> None:
    assert measured(world(), beats(n1=line(30.0)), 20.0) != ()
    assert measured(world(replace(SPEC, stall_s=40.0)), beats(n1=line(30.0)), 20.0) == ()
    assert measured(world(replace(SPEC, stall_s=0.0)), beats(n1=line(1e9)), 20.0) == ()
    assert measured(world(), beats(n1=line(1e9)), 0.0) == ()
    assert measured(world(), beats(n1=line(None, 1.0, 50.0)), 20.0) != (), "it may never get ready"


def test_one_that_was_found_to_stall_is_always_looked_at() -> None:
    assert measured(world(stall=Stall(1.0, "no step")), beats(n1=line(0.0)), None) != ()


def test_what_is_over_is_not() -> None:
    other = TrainerLine(1, 9, 1, 2, 1e9)
    old = TrainerLine(1, 1, 1, 2, 1e9)
    assert measured(world(), beats(n1=other, n2=old), None) == ()
