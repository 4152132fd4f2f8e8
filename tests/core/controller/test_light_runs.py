"""Light runs: on GPUs that nobody else is to have, gone at once when somebody is, over once they are measured."""

import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from hpcdl.core.controller.light_runs import with_light_runs, without_light_runs
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause, Placement, Share
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import NodeView, View, check
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import JobState, validate
from hpcdl.core.rules.intake import Settings
from hpcdl.policies import all_policies
from tests.adaptive.views import job, running
from tests.support.model_cluster import Cluster
from tests.support.seeds import seeds

LIGHT = JobSpec(
    ("python", "train.py"),
    "light",
    model="net",
    profile="plain",
    steps=5_000,
    batch_size=32,
    light_steps=50,
    priority=-1000,
)
OTHER = JobSpec(("b",), "other", profile="plain", steps=300)


def cluster(gpus: int = 2, nodes: int = 1, policy: str = "adaptive") -> Cluster:
    model = Cluster({f"n{number}": gpus for number in range(1, nodes + 1)}, settings=Settings(), watched=True)
    known = all_policies()
    for name in set(known.names()) - set(model.policies.names()):
        model.policies.register(name, partial(known.make, name))
    assert model.send(cmd.ChoosePolicy(policy)) == [None]
    report_steps(model)
    return model


def report_steps(model: Cluster) -> None:
    """Trainers say every second how far they are."""

    def report() -> list[cmd.Command]:
        for trainer in model.trainers.values():
            if trainer.since is not None:
                step = trainer.step + (model.now - trainer.since) * model._rate(trainer)
                model._says(trainer, min(trainer.parts), ev.Progressed, step=int(step))
        model.at(model.now + 1.0, report)
        return []

    model.at(model.now + 1.0, report)


def told(model: Cluster, kind: type[ev.Event]) -> list[Any]:
    return [record.event for record in model.journal.records if isinstance(record.event, kind)]


@pytest.mark.parametrize("policy", ["adaptive", "genie", "marble", "fifo"])
def test_it_is_measured_on_an_idle_gpu_and_is_over_then(policy: str) -> None:
    model = cluster(policy=policy)
    (light,) = model.submit(LIGHT)
    model.run_until(lambda: model.job(light).finished, within_s=1000.0)
    found = model.job(light)
    assert found.outcome is JobState.CANCELLED
    assert found.last.detail.startswith("measured over "), found.last
    assert found.finished_at - found.submitted_at < 500, "its script would have gone on"
    assert model.world.observed["net batch 32 @ train.py"].rates
    model.run(60.0)
    model.check_replay()


def test_it_is_gone_at_once_where_another_job_is_to_have_its_gpu_and_comes_back() -> None:
    model = cluster(gpus=1)
    (light,) = model.submit(replace(LIGHT, light_steps=100_000, grace_s=60.0))
    model.run_until(lambda: (model.job(light).progress.step or 0) > 3, within_s=500.0)
    (other,) = model.submit(OTHER)
    model.run(0.5)
    (end,) = told(model, ev.EndRequested)
    assert (end.job, end.cause, end.grace_s) == (light, Cause.PREEMPTED, 0.0)
    assert not told(model, ev.SuspendRequested), "no checkpoint is waited for"
    model.run_until(lambda: model.world.holders.get(GpuRef("n1", 0), (0, 0))[0] == other, within_s=5.0)
    assert "waits until 1 GPU is idle" in model.controller.reasons[light]
    model.run_until(lambda: model.job(other).finished, within_s=5000.0)
    model.run_until(lambda: model.job(light).running is not None, within_s=100.0)
    after = model.job(light)
    assert (after.failures.total, after.failures.retries_used) == (0, 0)
    model.send(cmd.Cancel(light))
    model.run_to_end()
    assert model.job(light).last.detail == "cancelled by its user"
    model.check_replay()


def test_what_another_is_to_have_soon_is_not_idle() -> None:
    model = cluster(gpus=2)
    model.submit(replace(OTHER, gpus_min=2, gpus_max=2))
    (light,) = model.submit(LIGHT)
    model.run(5.0)
    assert model.job(light).running is None


def test_old_events_of_a_cancelled_job_are_read() -> None:
    assert ev.decode("CancelRequested", {"job": 1}) == ev.CancelRequested(1)


@pytest.mark.parametrize("seed", range(seeds(9)))
def test_whatever_happens_no_gpu_is_given_twice_and_a_replay_is_the_same(seed: int) -> None:
    draw = random.Random(seed)
    policy = draw.choice(("adaptive", "genie", "marble", "harvest", "fifo"))
    model = cluster(draw.choice((1, 2, 4)), draw.choice((1, 2, 3)), policy)
    for _ in range(20):
        what, jobs = draw.random(), [*model.world.active]
        if what < 0.4:
            gpus, nodes = draw.choice((1, 1, 2)), draw.choice((1, 1, 2))
            more = {"gpus_min": gpus, "gpus_max": gpus, "nodes": nodes, "light_steps": draw.choice((10, 200))}
            model.submit(replace(LIGHT, **more))  # type: ignore[arg-type]
        elif what < 0.75:
            model.submit(replace(OTHER, steps=draw.choice((20, 400)), gpus_max=draw.choice((1, 2, None))))
        elif what < 0.85 and jobs:
            model.send(cmd.Cancel(draw.choice(jobs)))
        elif what < 0.95:
            model.disconnect("n1")
            model.run(draw.uniform(0, 30))
            model.connect("n1")
        else:
            model.restart_daemon()
        model.run(draw.uniform(0, 60))
        validate(model.world)
    assert not told(model, ev.TroubleSeen)
    model.check_replay()


NODES = (NodeView("a", (0, 1), "v100"), NodeView("b", (0, 1), "v100"), NodeView("c", (0, 1), "k80"))


def test_policies_decide_as_if_there_were_none() -> None:
    waits = job(3, gpus_min=2, gpus_max=2)
    light = running(9, 0, on="a", only_idle=True)
    view = View(0.0, NODES, (waits, light, replace(job(10), only_idle=True)))
    seen = without_light_runs(view)
    assert [each.id for each in seen.jobs] == [3]
    assert seen.free["a"] == (0, 1)
    alone = View(0.0, NODES, (waits,))
    assert without_light_runs(alone) is alone
    for name in all_policies().names():
        policy = all_policies().make(name)
        plan = policy.decide(seen)
        assert plan == policy.decide(alone), name
        whole = with_light_runs(view, plan)
        check(whole, view)
        assert whole.by_job()[3] == plan.by_job()[3]
        taken = {gpu for target in whole.targets if target.placement for gpu in target.placement.gpus}
        given = [len(target.placement.gpus) for target in whole.targets if target.placement]
        assert len(taken) == sum(given), "no GPU twice"
        assert with_light_runs(alone, plan) is plan


def test_a_run_on_two_nodes_waits_for_idle_gpus_of_one_type() -> None:
    wide = replace(job(9, gpus_min=2, gpus_max=2, nodes=2), only_idle=True)
    holds = running(1, 0, on="b")
    view = View(0.0, NODES, (holds, wide))
    plan = all_policies().make("fifo").decide(without_light_runs(view))
    target = with_light_runs(view, plan).by_job()[9]
    assert (target.placement, target.reason) == (None, "waits until 2 GPUs are idle")
    free = View(0.0, NODES, (wide,))
    target = with_light_runs(free, all_policies().make("fifo").decide(without_light_runs(free))).by_job()[9]
    assert target.placement == Placement((Share("a", (0, 1)), Share("b", (0, 1))))


@pytest.mark.parametrize(
    "more, why",
    [
        ({"light_steps": 1}, "a light run measures 2 to"),
        ({"deadline": 1.0}, "has no deadline"),
        ({"rescale": "torchrun", "nodes_max": 2}, "without a gate"),
        ({"gate": True}, "without a gate"),
    ],
)
def test_what_is_no_light_run(more: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        replace(LIGHT, **more)
