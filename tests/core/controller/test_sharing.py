"""Two jobs on a GPU: a foreground and a background that agreed to it, through a modelled cluster."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl.adaptive.policy import Adaptive
from hpcdl.core.controller.reconcile import reconcile
from hpcdl.core.controller.sharing import with_backgrounds, without_backgrounds
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Placement, Purpose, Role, Share
from hpcdl.core.model.job import JobSpec, Sharing
from hpcdl.core.model.plan import JobView, NodeView, Policy, View, check, share_refusal
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import JobEnd, JobState, Target
from hpcdl.core.rules.intake import Settings
from hpcdl.deeppool.policy import DeepPool
from hpcdl.marble import Marble
from tests.adaptive.views import job, running
from tests.support.model_cluster import Cluster
from tests.support.seeds import seeds

FOREGROUND = JobSpec(("a",), "front", profile="plain", steps=2_000, share=Sharing("foreground"), gpu_memory_mib=8_000)
BACKGROUND = JobSpec(("b",), "back", profile="plain", steps=200, share=Sharing("background"), gpu_memory_mib=6_000)
GPU = GpuRef("n1", 0)


def cluster(gpus: int = 1, *, sharing: bool = True, memory_mib: int = 16_384) -> Cluster:
    return Cluster({"n1": gpus}, settings=Settings(sharing=sharing), watched=True, gpu_memory_mib=memory_mib)


def pair() -> tuple[Cluster, int, int]:
    """Both jobs train on the one GPU."""
    model = cluster()
    front, back = model.submit(FOREGROUND, BACKGROUND)
    model.run_until(lambda: model.job(back).progress.step is not None, within_s=500.0)
    assert model.world.holders[GPU][0] == front
    assert model.world.backgrounds[GPU][0] == back
    return model, front, back


def test_two_jobs_that_agreed_train_on_one_gpu_and_both_finish() -> None:
    model, front, back = pair()
    assert model.job(back).running.placement.role is Role.BACKGROUND
    assert "beside job 1, which it may slow down by 10 %" in model.controller.reasons[back]
    model.run_to_end()
    assert {model.job(each).outcome for each in (front, back)} == {JobState.DONE}
    assert model.job(back).finished_at < model.job(front).finished_at
    assert model.shared == {(front, back)}
    model.check_replay((0.0, 0.5, 1.0))


@pytest.mark.parametrize(
    ("front", "back", "memory_mib"),
    [
        (replace(FOREGROUND, share=None), BACKGROUND, 16_384),
        (FOREGROUND, replace(BACKGROUND, share=None), 16_384),
        (FOREGROUND, replace(BACKGROUND, share=Sharing("foreground")), 16_384),
        (replace(FOREGROUND, share=Sharing("background")), BACKGROUND, 16_384),
        (replace(FOREGROUND, gpu_memory_mib=None), BACKGROUND, 16_384),
        (FOREGROUND, replace(BACKGROUND, gpu_memory_mib=None), 16_384),
        (FOREGROUND, replace(BACKGROUND, gpu_memory_mib=8_000), 16_384),
        (FOREGROUND, BACKGROUND, 0),
        (FOREGROUND, replace(BACKGROUND, gpus_min=2, gpus_max=2), 16_384),
        (FOREGROUND, replace(BACKGROUND, rescale="torchrun", nodes_max=2), 16_384),
    ],
)
def test_without_agreement_or_room_nobody_shares(front: JobSpec, back: JobSpec, memory_mib: int) -> None:
    model = cluster(memory_mib=memory_mib)
    model.submit(front, back)
    model.run(60.0)
    assert model.job(1).running is not None
    assert model.job(2).running is None
    assert not model.world.backgrounds


def test_nobody_shares_while_the_setting_is_off_or_under_another_policy() -> None:
    model = cluster(sharing=False)
    model.submit(FOREGROUND, BACKGROUND)
    model.run(60.0)
    assert not model.world.backgrounds
    model, _, back = pair()
    model.send(cmd.ChoosePolicy("fifo-exclusive"))
    model.run_until(lambda: model.job(back).running is None, within_s=60.0)
    assert not model.world.backgrounds
    assert model.job(back).suspended


def test_a_background_that_is_left_alone_becomes_the_foreground_where_it_is() -> None:
    model = cluster()
    front, back = model.submit(FOREGROUND, replace(BACKGROUND, steps=5_000))
    model.run_until(lambda: GPU in model.world.backgrounds, within_s=500.0)
    number = model.job(back).running.number
    model.send(cmd.Cancel(front))
    model.run_until(lambda: model.world.holders.get(GPU, (0, 0))[0] == back, within_s=60.0)
    assert not model.world.backgrounds
    assert model.job(back).running.number == number, "nothing was asked of its trainer"
    model.run_until(lambda: model.users == {GPU: (back, number)}, within_s=10.0)
    model.run_to_end()
    assert model.job(back).suspends == 0


def test_a_foreground_that_shares_starts_beside_the_background_at_once() -> None:
    model, front, back = pair()
    number = model.job(back).running.number
    model.send(cmd.Preempt(front))
    model.run_until(lambda: model.job(front).running is not None and model.job(front).suspends == 1, within_s=200.0)
    assert (back, number) in model.world.backgrounds.values()
    assert model.job(back).suspends == 0


def test_a_job_before_it_in_the_queue_never_waits_for_a_background() -> None:
    model = cluster()
    front, first, back = model.submit(
        FOREGROUND, replace(FOREGROUND, share=None, steps=100), replace(BACKGROUND, steps=5_000)
    )
    model.run_until(lambda: model.job(back).progress.step is not None, within_s=500.0)
    model.send(cmd.Cancel(front))
    model.run_until(lambda: model.world.holders.get(GPU, (0, 0))[0] == first, within_s=60.0)
    assert not model.world.backgrounds
    assert model.job(back).suspended
    asked = [each.event for each in model.journal.records if isinstance(each.event, ev.SuspendRequested)]
    assert [(each.job, each.purpose) for each in asked] == [(back, Purpose.PREEMPT)]
    model.run_to_end()
    assert model.job(back).outcome is JobState.DONE


@pytest.mark.parametrize("policy", ["marble", "adaptive"])
def test_a_foreground_does_not_wait_for_one_that_agreed_to_be_a_background(policy: str) -> None:
    """Also where that one came first and has the GPU by itself: it starts again beside it."""
    model = cluster()
    model.policies.add(Adaptive)
    model.send(cmd.ChoosePolicy(policy))
    (back,) = model.submit(replace(BACKGROUND, steps=5_000))
    model.run_until(lambda: model.job(back).progress.step is not None, within_s=500.0)
    assert model.world.holders[GPU][0] == back
    (front,) = model.submit(FOREGROUND)
    model.run_until(lambda: model.world.holders.get(GPU, (0, 0))[0] == front, within_s=200.0)
    model.run_until(lambda: model.world.backgrounds.get(GPU, (0, 0))[0] == back, within_s=200.0)
    model.run(600.0)
    assert model.job(front).suspends == 0, "the policy would rather have the other one run"
    assert model.job(back).suspends == 1
    model.run_to_end()
    assert {model.job(each).outcome for each in (front, back)} == {JobState.DONE}
    model.check_replay((0.0, 0.5, 1.0))


@pytest.mark.parametrize(
    ("front", "back"),
    [
        (replace(FOREGROUND, share=None), BACKGROUND),
        (FOREGROUND, replace(BACKGROUND, priority=1)),
        (FOREGROUND, replace(BACKGROUND, gpu_memory_mib=8_000)),
        (replace(FOREGROUND, gpus_min=2, gpus_max=2), BACKGROUND),
    ],
)
def test_one_that_could_not_share_keeps_its_gpu(front: JobSpec, back: JobSpec) -> None:
    model = cluster()
    (first,) = model.submit(replace(back, steps=5_000))
    model.run_until(lambda: model.job(first).progress.step is not None, within_s=500.0)
    model.submit(front)
    model.run(60.0)
    assert model.world.holders[GPU][0] == first
    assert model.job(first).suspends == 0


def test_a_free_gpu_is_better_than_a_shared_one() -> None:
    model = cluster(2)
    other, front, back = model.submit(replace(FOREGROUND, share=None, steps=300), FOREGROUND, BACKGROUND)
    model.run_until(lambda: bool(model.world.backgrounds), within_s=60.0)
    assert model.world.backgrounds[GpuRef("n1", 1)][0] == back
    model.send(cmd.Cancel(other))
    model.run_until(lambda: model.world.holders.get(GPU, (0, 0))[0] == back, within_s=60.0)
    assert model.world.holders[GpuRef("n1", 1)][0] == front
    assert not model.world.backgrounds


def test_a_new_foreground_takes_a_free_gpu_and_not_that_of_a_background() -> None:
    model = cluster(2)
    model.policies.add(DeepPool)
    model.send(cmd.ChoosePolicy("deeppool"))
    (back,) = model.submit(replace(BACKGROUND, steps=5_000))
    model.run_until(lambda: model.job(back).progress.step is not None, within_s=500.0)
    assert {gpu.number for gpu in model.world.backgrounds} == {0}
    (front,) = model.submit(replace(FOREGROUND, share=None))
    assert model.world.holders == {GpuRef("n1", 1): (front, 1)}, "it waited for the background"
    assert model.job(back).running.stop is None
    (second,) = model.submit(replace(FOREGROUND, share=None))
    assert model.job(back).running.stop.purpose is Purpose.PREEMPT
    model.run_until(lambda: model.world.holders.get(GpuRef("n1", 0), (0, 0))[0] == second, within_s=60.0)


def beside(number: int, node: str, *gpus: int, role: Role, share: Sharing | None, leaving: bool) -> JobView:
    held = Placement((Share(node, gpus),), role)
    return running(number, *gpus, on=node, placement=held, target=held, share=share, leaving=leaving, gpu_memory_mib=4)


@st.composite
def views(draw: st.DrawFn) -> View:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=2))
    nodes = [
        NodeView(f"n{n}", tuple(range(size)), memory=tuple((i, 10) for i in range(size)))
        for n, size in enumerate(sizes)
    ]
    agreed, jobs = (None, Sharing("foreground")), list[JobView]()
    for each in nodes:
        closed = set[int]()  # to backgrounds
        for role in (Role.PRIMARY, Role.BACKGROUND):
            left = list(each.gpus)
            while left:
                gpus = [left.pop(0) for _ in range(draw(st.integers(1, len(left))))]
                if draw(st.booleans()) or not closed.isdisjoint(gpus):
                    continue
                behind = Sharing("background")
                share = behind if role is Role.BACKGROUND else draw(st.sampled_from((*agreed, behind)))
                closed.update(gpus if share is None or (share.as_background and role is Role.PRIMARY) else ())
                leaving = draw(st.integers(0, 3)) == 0
                jobs.append(beside(len(jobs) + 1, each.name, *gpus, role=role, share=share, leaving=leaving))
    for _ in range(draw(st.integers(1, 3))):
        share = draw(st.sampled_from((*agreed, Sharing("background"))))
        memory = draw(st.sampled_from((None, 4, 8)))
        jobs.append(job(len(jobs) + 1, gpus_max=draw(st.integers(1, 3)), share=share, gpu_memory_mib=memory))
    return View(1000.0, tuple(nodes), tuple(jobs))


@settings(max_examples=seeds(200), deadline=None)
@given(view=views(), policy=st.sampled_from((Marble(), DeepPool())))
def test_no_new_foreground_waits_for_a_background_where_as_many_gpus_are_free(view: View, policy: Policy) -> None:
    seen = without_backgrounds(view)
    plan = with_backgrounds(view, seen, policy.decide(seen), on=True, spare=isinstance(policy, DeepPool))
    check(plan, view)
    targets = {each.job: each.placement for each in plan.targets if each.placement is not None}
    fronts = {gpu for place in targets.values() if place.role is not Role.BACKGROUND for gpu in place.gpus}
    behind = {gpu: each for each in view.jobs if each.is_background and each.placement for gpu in each.placement.gpus}
    nodes = {each.name: each for each in view.nodes}
    for number, place in targets.items():
        front = view.by_id[number]
        if front.placement is None and place.role is not Role.BACKGROUND:
            held = [gpu for gpu in place.gpus if gpu in behind]
            held = [gpu for gpu in held if share_refusal(nodes[gpu.node], gpu.number, front, behind[gpu])]
            free = [gpu for gpu in view.free[place.nodes[0]] if GpuRef(place.nodes[0], gpu) not in fronts]
            assert not held or len(free) < len(held)


@settings(max_examples=seeds(200), deadline=None)
@given(view=views())
def test_no_foreground_waits_for_what_could_run_beside_it(view: View) -> None:
    seen = without_backgrounds(view)
    plan = with_backgrounds(view, seen, Marble().decide(seen), on=True)
    check(plan, view)
    targets, nodes = plan.by_job(), {each.name: each for each in view.nodes}
    waits = [each for each in view.waiting if each.share == Sharing("foreground") and not targets[each.id].placement]
    for back in view.jobs:
        place = targets[back.id].placement
        if place is None or place.role is Role.BACKGROUND or back.share != Sharing("background"):
            continue
        if back.placement is not None and (back.is_background or not place.same_gpus(back.placement)):
            continue
        for front in waits:
            fits = len(place.gpus) in front.allowed(len(place.gpus))
            refused = any(share_refusal(nodes[gpu.node], gpu.number, front, back) for gpu in place.gpus)
            assert not fits or refused, (front, back)


def test_a_background_stays_where_a_new_foreground_takes_what_it_would_have_had() -> None:
    back = beside(2, "n1", 0, role=Role.BACKGROUND, share=Sharing("background"), leaving=False)
    view = View(1000.0, (NodeView("n1", (0, 1)),), (job(1, gpus_max=1), back))
    seen = without_backgrounds(view)
    first = Marble().decide(seen)
    assert [each.placement.shares[0].gpus for each in first.targets if each.placement] == [(0,), (1,)]
    plan = with_backgrounds(view, seen, first, on=True)
    check(plan, view)
    assert [each.placement.shares[0].gpus for each in plan.targets if each.placement] == [(1,), (0,)]
    assert Role.BACKGROUND not in [each.placement.role for each in plan.targets if each.placement]


@pytest.mark.parametrize("change", [{}, {"held": True}, {"cancelling": True}])
def test_a_background_that_is_to_end_is_not_promoted(change: dict[str, Any]) -> None:
    model, front, back = pair()
    world = model.world
    running = world.jobs[back].running
    assert running is not None
    assert running.placement is not None
    world.jobs[front] = replace(world.jobs[front], live=(), end=JobEnd(JobState.DONE, world.at))
    world.holders.clear()
    del world.live[front]
    world.jobs[back] = replace(world.jobs[back], **change)
    world.targets = {back: Target(back, replace(running.placement, role=Role.PRIMARY), "it is alone")}
    events = reconcile(world, world.at).events
    assert any(isinstance(event, ev.RoleChanged) for event in events) == (not change)
