"""What a job at the end of its script is to policies, stalls and estimates, by what its trainer has told."""

from dataclasses import replace

import pytest

from hpcdl.core.controller.view_builder import Views, build_view
from hpcdl.core.fold.observations import OF_AN_END
from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import StallMeasurement
from hpcdl.core.model.incarnation import NO_OUTPUT
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import JobView
from hpcdl.core.model.profile import Observations, Timing
from hpcdl.core.model.world import World
from hpcdl.core.rules.exemption import ENDS_CUT, lifted
from hpcdl.core.rules.stalls import LEAST_S, stall_events
from hpcdl.daemon.time_left import remaining
from tests.support.model_cluster import Cluster

SPEC = JobSpec(("train",), "j", steps=4000, profile="plain")


@pytest.fixture
def model() -> Cluster:
    """Job 1 has made its last step 20 s ago, and its trainer was heard to say so."""
    model = Cluster({"n1": 1})
    model.submit(SPEC)
    model.run_until(lambda: model.job(1).running is not None and model.job(1).running.progress is not None)
    model.run(30.0)
    model._report(model.agents["n1"], ev.TrainingDone(1, 1, 1, "n1", step=4000))
    model.run(20.0)
    return model


def with_job(model: Cluster, **more: object) -> World:
    job = replace(model.job(1), **more)
    return replace(model.world, jobs={**model.world.jobs, 1: job})


def seen(model: Cluster, world: World) -> JobView:
    return build_view(world, model.profiles, model.now).by_id[1]


def test_it_is_not_preempted_for_the_good_of_others_and_not_for_ever_by_priority(model: Cluster) -> None:
    job = seen(model, model.world)
    assert (job.in_end, job.exempt, job.can_suspend, job.in_place) == (True, True, False, False)
    assert Views(exempt_starts=0.0).build(model.world, model.profiles, model.now).by_id[1].exempt
    model.submit(replace(SPEC, priority=5))
    view = build_view(model.world, model.profiles, model.now)
    assert lifted(view) == {1}
    cut = with_job(model, ends_cut=ENDS_CUT)
    view = build_view(cut, model.profiles, model.now)
    assert lifted(view) == frozenset()
    assert not view.by_id[1].can_suspend


def test_its_time_left_is_what_ends_of_its_script_took(model: Cluster) -> None:
    assert remaining(model.world, model.job(1), model.profiles, model.now) is None, "none was seen"
    took = Observations(times=(Timing(OF_AN_END, 2.0, 160.0),))
    world = replace(model.world, observed={SPEC.learns_as: took})
    left = remaining(world, world.jobs[1], model.profiles, model.now)
    assert left is not None
    assert left.seconds == pytest.approx(60.0)
    job = seen(model, world)
    assert job.profile is not None
    assert job.remaining(model.now) == pytest.approx(60.0 * job.profile.rate(1))
    late = remaining(world, world.jobs[1], model.profiles, model.now + 100.0)
    assert late is not None
    assert late.seconds == 0.0


def test_an_end_makes_no_steps_and_stalls_only_where_nothing_moves(model: Cluster) -> None:
    long = 2 * LEAST_S
    assert stall_events(model.world, [StallMeasurement(1, 1, ("n1",), long, 0.0, long)], model.now, LEAST_S) == []
    (stalled,) = stall_events(model.world, [StallMeasurement(1, 1, ("n1",), long, long, long)], model.now, LEAST_S)
    assert isinstance(stalled, ev.JobStalled)
    assert stalled.what == NO_OUTPUT


def test_what_is_seen_of_an_end_is_learnt(model: Cluster) -> None:
    model.run_until(lambda: model.job(1).finished, within_s=5000.0)
    (took,) = [each for each in model.world.observed[SPEC.learns_as].times if each.what == OF_AN_END]
    assert took.seconds >= 20.0


def test_another_training_of_the_same_program_is_no_end_any_more(model: Cluster) -> None:
    agent = model.agents["n1"]
    model._report(agent, ev.Progressed(1, 1, 1, "n1", step=4000, total=4000))
    model.run(1.0)
    assert seen(model, model.world).in_end
    model._report(agent, ev.Progressed(1, 1, 1, "n1", step=4001, total=8000))
    model.run(1.0)
    assert not seen(model, model.world).in_end


def test_a_last_step_that_is_heard_of_after_its_checkpoint_is_no_step_beyond_it() -> None:
    """Of a trainer that never says that it is done."""
    other = Cluster({"n1": 1})
    other.submit(SPEC)
    other.run_until(lambda: other.job(1).running is not None and other.job(1).running.progress is not None)
    for report in (
        ev.Progressed(1, 1, 1, "n1", step=3999, total=4000),
        ev.Saved(1, 1, 1, "n1", step=4000),
        ev.Progressed(1, 1, 1, "n1", step=4000, total=4000),
    ):
        other._report(other.agents["n1"], report)
        other.run(1.0)
    assert seen(other, other.world).in_end


def test_another_nodes_ranks_may_be_done_before_the_writers(model: Cluster) -> None:
    both = Cluster({"n1": 1, "n2": 1})
    both.submit(replace(SPEC, nodes=2))
    both.run_until(lambda: both.job(1).running is not None and both.job(1).running.progress is not None)
    both._report(both.agents["n2"], ev.TrainingDone(1, 1, 1, "n2", step=4000))
    both.run(1.0)
    assert not seen(both, both.world).in_end
    both._report(both.agents["n1"], ev.TrainingDone(1, 1, 1, "n1", step=4000))
    both.run(1.0)
    assert seen(both, both.world).in_end
