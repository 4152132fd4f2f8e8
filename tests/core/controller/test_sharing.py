"""Two jobs on a GPU: a foreground and a background that agreed to it, through a modelled cluster."""

from dataclasses import replace

import pytest

from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Purpose, Role
from hpcdl.core.model.job import JobSpec, Sharing
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import JobState
from hpcdl.core.rules.intake import Settings
from tests.support.model_cluster import Cluster

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


def test_a_free_gpu_is_better_than_a_shared_one() -> None:
    model = cluster(2)
    other, front, back = model.submit(replace(FOREGROUND, share=None, steps=300), FOREGROUND, BACKGROUND)
    model.run_until(lambda: bool(model.world.backgrounds), within_s=60.0)
    assert model.world.backgrounds[GpuRef("n1", 1)][0] == back
    model.send(cmd.Cancel(other))
    model.run_until(lambda: model.world.holders.get(GPU, (0, 0))[0] == back, within_s=60.0)
    assert model.world.holders[GpuRef("n1", 1)][0] == front
    assert not model.world.backgrounds
