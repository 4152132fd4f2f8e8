"""What `hpcdl why` and the tables say of a job, from values alone."""

from dataclasses import replace

import pytest

from hpcdl.core.controller.view_builder import blocked_why
from hpcdl.core.model.incarnation import (
    Cause,
    DurableCheckpoint,
    Incarnation,
    IncarnationState,
    Part,
    Placement,
    Purpose,
    Share,
    StopRequest,
    Throttle,
    TrainingProgress,
)
from hpcdl.core.model.job import JobSpec, Sharing
from hpcdl.core.model.pilot import BatchJob, BatchState, Pilot, PilotSpec
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import (
    FailureHistory,
    GpuInfo,
    Job,
    JobEnd,
    JobProgress,
    JobState,
    LastAttempt,
    Node,
    Setback,
    World,
    can_suspend,
)
from hpcdl.daemon.api.rows import RowBuilder
from hpcdl.daemon.api.why import explain, retries_used
from hpcdl.daemon.time_left import remaining

SPEC = JobSpec(("python", "train.py"), "train", steps=1000)
RUNNING = Incarnation(
    1,
    IncarnationState.RUNNING,
    (Part("n1", started=True),),
    Placement((Share("n1", (0,)),)),
    progress=TrainingProgress(100.0, 0, 100.0, 0),
)
NONE = Profiles({})
SAVED = JobProgress(saved_step=4)
FAILED = JobEnd(JobState.FAILED, 95.0)
HERE = World(nodes={"n1": Node("n1", connected=True)})


def job(**changes: object) -> Job:
    return replace(Job(1, SPEC, 90.0), **changes)  # type: ignore[arg-type]


def details(found: Job, now: float = 100.0) -> str:
    return "\n".join(explain(HERE, found, {}, now).details)


def test_an_estimate_needs_half_a_minute_of_training() -> None:
    def left(found: Job, now: float, world: World = HERE) -> float | None:
        known = remaining(world, found, NONE, now)
        return None if known is None else known.seconds

    told = replace(RUNNING, progress=TrainingProgress(100.0, 0, 130.0, 60))
    running = job(live=(told,), first_start_at=95.0, progress=JobProgress(60, 1000))
    early = replace(running, live=(replace(told, progress=TrainingProgress(100.0, 0, 102.0, 60)),))
    assert left(early, 102.0) is None
    assert left(running, 130.0) == pytest.approx(470.0)
    assert left(running, 134.0) == pytest.approx(466.0), "it goes on between reports"
    assert left(running, 130.0, World(nodes={"n1": Node("n1", connected=False)})) is None
    saving = replace(running, live=(replace(told, state=IncarnationState.SAVING),))
    assert left(saving, 130.0) is None


def test_the_end_of_a_jobs_node_and_pilots_on_their_way_are_told() -> None:
    goes = World(nodes={"n1": Node("n1", connected=True, until=400.0, reason="the walltime of batch job 7")})
    running, waiting = job(live=(RUNNING,), first_start_at=95.0), job()
    lines = explain(goes, running, {}, 100.0).details
    assert "n1 goes in 5 min 00 s (the walltime of batch job 7)" in lines
    left = World(nodes={"n1": Node("n1", connected=True, leaving=True, reason="drained")})
    assert "n1 is being left (drained)" in explain(left, running, {}, 100.0).details
    pending = BatchJob("12", BatchState.PENDING, reason="Priority")
    spec = PilotSpec(2, 600.0)
    pilots = {
        1: Pilot(1, spec, 90.0, 90.0),
        2: Pilot(2, spec, 90.0, 90.0, "12", pending),
        3: Pilot(3, spec, 90.0, 90.0, "13", replace(pending, state=BatchState.RUNNING, nodes=("n4", "n5"))),
        4: Pilot(4, spec, 90.0, 90.0, "14", how="ended"),
    }
    lines = explain(World(nodes=HERE.nodes, pilots=pilots), waiting, {}, 100.0).details
    assert [line for line in lines if "pilot" in line] == [
        "pilot p1 for 2 nodes waits (not submitted yet)",
        "pilot p2 for 2 nodes waits (batch job 12): Priority",
    ]


def test_the_wait_is_told_only_of_jobs_that_never_ran() -> None:
    assert "has waited 10 s since its submission" in details(job())
    suspended = job(first_start_at=95.0, suspended=True, held=True, last=LastAttempt(Cause.SUSPENDED), progress=SAVED)
    assert "waited" not in details(suspended)
    assert "suspended 2 times" in details(replace(suspended, suspends=2))
    assert "suspended 2 times" not in details(job(suspends=2, end=JobEnd(JobState.DONE, 95.0))), "it says why"


def test_work_that_is_lost_is_told() -> None:
    last = LastAttempt(Cause.PREEMPTED, "no checkpoint in time")
    ended = job(first_start_at=95.0, last_incarnation=1, last=last)
    assert "no checkpoint: it starts over" in details(ended)
    again = replace(ended, live=(replace(RUNNING, number=2),), last_incarnation=2)
    assert "no checkpoint yet: it started from the beginning" in details(again)
    assert "no checkpoint" not in details(replace(ended, last=LastAttempt(Cause.PREEMPTED), progress=SAVED))
    own = replace(ended, spec=replace(ended.spec, signal="SIGUSR1"))
    assert "hpcdl knows of no checkpoint of its program" in details(own)
    assert "starts over" not in details(own)
    held = "held by its user: hpcdl resume 1"
    assert explain(HERE, replace(ended, held=True), {}, 100.0).reason == f"{held}; it starts over"
    assert explain(HERE, replace(own, held=True), {}, 100.0).reason == held


def test_who_shows_no_way_to_checkpoint_is_told_so_while_it_runs() -> None:
    running = job(first_start_at=95.0, live=(RUNNING,), last_incarnation=1)
    assert "nothing shows yet that it can checkpoint" in details(running)
    assert "nothing shows yet" not in details(replace(running, can_suspend=True))
    assert "nothing shows yet" not in details(replace(running, spec=replace(running.spec, signal="SIGUSR2")))


def test_a_job_that_did_not_resume_where_it_was_saved_is_told() -> None:
    running = replace(RUNNING, number=2, attached=True, progress=TrainingProgress(100.0, 40, 100.0, 40))
    resumed = job(live=(running,), first_start_at=95.0, last_incarnation=2, last=LastAttempt(Cause.SUSPENDED))
    resumed = replace(resumed, progress=JobProgress(saved_step=40))
    assert "attempt 2 went on at step 40" in details(resumed).splitlines()
    told = "attempt 2 resumed at 40; 90 was saved by attempt 1: is its checkpoint folder the right one, is the step "
    assert told in details(replace(resumed, setback=Setback(2, 40, 90, 1)))
    progress = JobProgress(saved_step=60)
    saved = replace(resumed, progress=progress, live=(replace(running, checkpoint=DurableCheckpoint(60)),))
    assert "resumed at" not in details(saved)
    assert "went on" not in details(replace(resumed, live=(replace(running, attached=False),)))
    assert "went on" not in details(job(live=(RUNNING,), progress=SAVED))


def test_nodes_without_gpus_are_told() -> None:
    said = {1: "needs 1 GPU; no node is connected"}
    assert explain(HERE, job(), said, 100.0).reason.startswith("needs 1 GPU; no GPU was found on n1 (")
    some = World(nodes={"n1": Node("n1", (GpuInfo(0, "GPU-0"),), connected=True)})
    assert explain(some, job(), {1: "needs 1 GPU, 0 free"}, 100.0).reason == "needs 1 GPU, 0 free"
    away = World(nodes={"n1": Node("n1", connected=False)})
    assert explain(away, job(), said, 100.0).reason == said[1]


def test_who_holds_gpus_that_should_be_free_is_told() -> None:
    held = GpuInfo(0, "GPU-0", state="dirty", detail="held by process 887 (python of eve)")
    said = {1: "needs 1 GPU; all GPUs of n1 are lost, dirty, excluded or drained"}
    world = World(nodes={"n1": Node("n1", (held, GpuInfo(1, "GPU-1", state="lost")), connected=True)})
    found = explain(world, job(), said, 100.0).reason
    assert found == "needs 1 GPU; GPU n1:0: held by process 887 (python of eve): none is granted before that has gone"
    free = World(nodes={"n1": Node("n1", (held, GpuInfo(1, "GPU-1")), connected=True)})
    assert explain(free, job(), said, 100.0).reason == said[1]


def test_nodes_that_are_all_being_left_are_told() -> None:
    left = Node("n1", (GpuInfo(0, "GPU-0"),), connected=True, leaving=True, reason="a new disk")
    other = Node("n2", (GpuInfo(0, "GPU-1"),), connected=True)
    said = {1: "needs 1 GPU; all GPUs of n1 are lost, dirty, excluded or drained"}
    found = explain(World(nodes={"n1": left}), job(), said, 100.0).reason
    assert found == "needs 1 GPU; n1 is being left (a new disk): hpcdl undrain n1"
    assert explain(World(nodes={"n1": left, "n2": other}), job(), said, 100.0).reason == said[1]
    gone = replace(other, leaving=True, allocation="7", reason="the walltime of batch job 7")
    found = explain(World(nodes={"n2": gone}), job(), said, 100.0).reason
    assert found == "needs 1 GPU; n2 is being left (the walltime of batch job 7)"


def test_who_wants_a_suspend_is_told() -> None:
    def told(purpose: Purpose, held: bool = False, stopping: bool = False) -> str:
        saving = replace(RUNNING, state=IncarnationState.SAVING, stop=StopRequest(100.0, purpose))
        said = {1: "will move to 4 GPUs"}
        return explain(World(stopping=stopping), job(live=(saving,), held=held), said, 100.0).reason

    begin = "saving its checkpoint, then freeing its GPUs: "
    assert told(Purpose.HOLD, held=True) == begin + "its user suspended it"
    assert told(Purpose.HOLD) == begin + "its user suspended it, and lifted that since; it resumes then"
    assert told(Purpose.RESCALE, stopping=True) == begin + "the daemon is stopping"
    assert told(Purpose.STOP) == begin + "the daemon was stopped; its agent has not reported how that ended"
    assert told(Purpose.RESCALE, held=True) == begin + "its user holds it"
    assert told(Purpose.RESCALE) == begin + "will move to 4 GPUs"


def test_a_job_that_is_started_again_and_again_is_told() -> None:
    often = job(last=LastAttempt(Cause.INFRASTRUCTURE, "killed"), failures=FailureHistory(9), fruitless=7)
    assert "9 failures; the last 7 without a new checkpoint between" in details(often)
    once = job(last=LastAttempt(Cause.INFRASTRUCTURE, "killed"), failures=FailureHistory(9), fruitless=1)
    assert "without a new checkpoint" not in details(once)


def test_a_pause_between_failures_that_differ_is_told() -> None:
    pausing = FailureHistory(9, repeats=1, signature="x", retry_at=120.0)
    often = job(last=LastAttempt(Cause.INFRASTRUCTURE, "killed"), failures=pausing, fruitless=7)
    assert blocked_why(HERE, often, 100.0) == "pauses after 7 failures without a new checkpoint: killed"
    alike = replace(often, failures=replace(pausing, repeats=7))
    assert blocked_why(HERE, alike, 100.0) == "pauses after 7 equal failures: killed"


def test_no_more_retries_are_used_than_there_are() -> None:
    spec = replace(SPEC, retries=2)
    failed = job(spec=spec, end=FAILED, failures=FailureHistory(3, 3))
    assert retries_used(failed) == 2
    assert "3 failures; 2 of 2 retries used" in details(failed)
    none = job(end=FAILED, failures=FailureHistory(1, 1))
    assert details(none) == "1 failure"
    assert RowBuilder(World(), NONE, {}, 100.0).job(none)["retries_used"] == 0


@pytest.mark.parametrize(
    "signal, attached, expected",
    [("hpcdl", False, False), ("hpcdl", True, True), ("hf", False, True), ("none", True, False)],
)
def test_who_can_be_suspended(signal: str, attached: bool, expected: bool) -> None:
    found = job(spec=replace(SPEC, signal=signal), can_suspend=attached)
    assert can_suspend(found) is expected
    assert RowBuilder(World(), NONE, {}, 100.0).job(found)["can_suspend"] is expected


def test_a_start_says_where_it_waits_or_that_nothing_is_waited_for() -> None:
    ranks = tuple(Part(node, started=False) for node in ("n1", "n2", "n3"))
    starting = replace(RUNNING, parts=ranks, progress=None)
    elastic = replace(SPEC, nodes_max=3, rescale="in-process")
    assert explain(HERE, job(spec=elastic, live=(starting,)), {}, 95.0).reason == "its processes are starting on n[1-3]"
    begun = replace(starting, parts=tuple(replace(part, started=True) for part in ranks))
    assert explain(HERE, job(spec=elastic, live=(begun,)), {1: "keeps"}, 95.0).reason == (
        "its processes get ready to train"
    )


def test_without_a_gpu_here_it_says_where_one_may_come_from() -> None:
    def why(**changes: object) -> str:
        return explain(replace(HERE, **changes), job(), {}, 100.0).reason  # type: ignore[arg-type]

    spec = PilotSpec(1, 600.0)
    assert why().endswith("no GPU was found on n1 (hpcdl daemon start --emulate-gpus N emulates some)")
    assert why(pilots={3: Pilot(3, spec, 90.0, 90.0)}).endswith("(1 pilot may bring some: hpcdl pilots)")
    inside = {"n1": replace(HERE.nodes["n1"], allocation="7")}
    assert "(ask the batch system for some; HPCDL_EMULATE_GPUS=N" in why(nodes=inside)
    over = Pilot(3, spec, 90.0, 90.0, how="preempted")
    assert why(pilots={3: over}).endswith("(hpcdl pilots says why none is on its way)")


def test_a_background_that_waits_is_told_why_it_runs_beside_nobody() -> None:
    front = replace(SPEC, share=Sharing("foreground"), gpu_memory_mib=4096)
    back = replace(SPEC, share=Sharing("background"))
    fronts = {number: Job(number, front, 90.0, live=(RUNNING,)) for number in range(2, 9)}
    gpus = tuple(GpuInfo(index, f"GPU-{index}", memory_mib=8192) for index in range(7))
    holders = {GpuRef("n1", number - 2): (number, 1) for number in fronts}
    world = World(nodes={"n1": Node("n1", connected=True, gpus=gpus)}, jobs=fronts, holders=holders)

    def told(spec: JobSpec) -> str:
        return "\n".join(explain(world, job(spec=spec), {}, 100.0).details)

    assert "cannot run beside jobs 2, 3, 4, 5, 6 and 2 more: the memory of one of them is not known" in told(back)
    full = told(replace(back, gpu_memory_mib=6144))
    assert "and 2 more: 4 GiB and 6 GiB do not fit into 8 GiB" in full
    assert "beside" not in told(replace(back, gpu_memory_mib=1024))
    assert "beside" not in told(replace(back, share=None))
    assert "runs beside nobody: what is rescaled in place" in told(replace(back, rescale="in-process", nodes_max=2))


def test_both_sides_of_a_shared_gpu_are_told_what_the_step_gate_does() -> None:
    background = replace(RUNNING, throttle=Throttle(2, 0.23, 0.1, 0.0684))
    world = replace(HERE, jobs={1: job(live=(background,)), 2: replace(job(live=(RUNNING,)), id=2)})
    world.live.update({1: None, 2: None})
    said = "may run 23 % of its time: job 2 is slowed down by 6.8 % (limit 10 %)"
    assert f"as a background it {said}" in explain(world, world.jobs[1], {}, 100.0).details
    assert f"job 1, a background beside it, {said}" in explain(world, world.jobs[2], {}, 100.0).details
    closed = replace(background, throttle=Throttle(2, 0.0, 0.1, None))
    told = "as a background it is held at a step beside job 2: how fast that is alone is being measured"
    assert told in details(job(live=(closed,)))
    paused = replace(background, throttle=Throttle(2, 0.0, 0.1, 0.0))
    told = "as a background it is held at a step: job 2 is slowed down by 0.0 % now, and was by more (limit 10 %)"
    assert told in details(job(live=(paused,)))
    resumed = replace(background, throttle=Throttle(2, 0.05, 0.1, None))
    told = "as a background it may run 5 % of its time beside job 2: how much that slows it down is being measured"
    assert told in details(job(live=(resumed,)))
    assert "background" not in details(job(live=(RUNNING,)))
