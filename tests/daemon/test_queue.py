"""What is said of jobs that wait for GPUs, or give theirs up: what is in the way, their place, when, and for whom."""

from dataclasses import replace

import pytest

from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import MemoryJournal
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.incarnation import (
    Incarnation,
    IncarnationState,
    Part,
    Placement,
    Purpose,
    Share,
    StopRequest,
    TrainingProgress,
)
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import GpuInfo, Job, LastAttempt, Node, Target, World
from hpcdl.daemon.api.rows import RowBuilder
from hpcdl.daemon.api.why import explain, reason
from hpcdl.daemon.queue import PLACES, Queue, QueuePlace, Queues, new_holders, place_text
from hpcdl.policies import all_policies

NOW = 1_000_000.0
PROFILES = Profiles({"p": Profile("p", ((1, 1, 1.0), (1, 2, 1.8), (1, 4, 3.0)), startup_s=10.0)})
SPEC = JobSpec(("train",), "j")
ON_GPU_0 = Placement((Share("n1", (0,)),))
BEGUN = TrainingProgress(ready_at=1.0, ready_step=0, at=1.0, step=0)


class Cluster:
    """A controller with some nodes of four GPUs, and its queue."""

    def __init__(self, policy: str, nodes: int = 1) -> None:
        self.controller = Controller(MemoryJournal(), all_policies(), PROFILES)
        self.queues = Queues(PROFILES, monotonic=lambda: 0.0)
        chosen: list[cmd.Command] = [cmd.ChoosePolicy(policy), cmd.ChooseObjective("jct")]
        for name in (f"n{number}" for number in range(1, nodes + 1)):
            gpus = tuple(GpuInfo(index, f"{name}-{index}", "Tesla V100-SXM2-16GB") for index in range(4))
            chosen.append(cmd.Inventory(name, gpus, 8, 1, 1, "boot", "log", False))
        self.controller.step(chosen, NOW)

    def submit(self, **more: object) -> int:
        values = {"command": ("train",), "name": "j", "profile": "p", "steps": 3600, "gpus_max": 1, **more}
        request = str(len(self.controller.world.jobs))
        (ids,) = self.controller.step([cmd.Submit((JobSpec(**values),), request)], NOW)  # type: ignore[arg-type]
        assert isinstance(ids, tuple), ids
        self.controller.decide(NOW)
        return int(ids[0])

    def row(self, number: int, at: float = NOW) -> str:
        world = self.controller.world
        queue = self.queues.look(world, at)
        return str(
            RowBuilder(world, PROFILES, self.controller.reasons, at, queue=queue).job(world.jobs[number])["reason"]
        )

    def why(self, number: int) -> tuple[str, tuple[str, ...]]:
        world = self.controller.world
        answer = explain(world, world.jobs[number], self.controller.reasons, NOW, self.queues.look(world, NOW))
        return answer.reason, answer.details


@pytest.mark.parametrize("policy", ["adaptive", "marble", "fifo-exclusive", "srt", "genie", "bftrainer"])
def test_who_waits_is_told_for_what_in_which_place_and_how_long_under_every_policy(policy: str) -> None:
    cluster = Cluster(policy)
    cluster.submit(gpus_min=4, gpus_max=4)
    one, two = cluster.submit(gpus_min=2, gpus_max=2), cluster.submit(gpus_min=4, gpus_max=4)
    assert cluster.row(one) == "waiting for 2 GPUs: all 4 busy; 1st in the queue, starts in about 20 min 10 s"
    assert cluster.row(two).startswith("waiting for 4 GPUs: all 4 busy; 2nd in the queue, starts in about ")
    headline, details = cluster.why(one)
    assert headline.startswith("waiting for 2 GPUs: all 4 busy; 1st in the queue")
    assert details[0].startswith(f"policy {policy}: ")


def test_the_time_goes_down_between_two_looks() -> None:
    cluster = Cluster("adaptive")
    cluster.submit(gpus_min=4, gpus_max=4)
    waits = cluster.submit(gpus_min=2, gpus_max=2)
    first, later = cluster.row(waits), cluster.row(waits, NOW + 5.0)
    assert first.endswith("starts in about 20 min 10 s")
    assert later.endswith("starts in about 20 min 05 s")


def test_no_time_is_told_behind_a_job_of_unknown_length() -> None:
    cluster = Cluster("adaptive")
    cluster.submit(gpus_min=4, gpus_max=4, profile=None, steps=None)
    assert cluster.row(cluster.submit(gpus_min=2, gpus_max=2)) == "waiting for 2 GPUs: all 4 busy; 1st in the queue"


def test_what_is_in_the_way() -> None:
    def text(nodes: int, gpus: int, *there: tuple[int, int]) -> str:
        job = Job(1, replace(SPEC, nodes=nodes, gpus_min=gpus, gpus_max=gpus), 0.0)
        return Queue(there, frozenset({1})).text(job, NOW)

    assert text(1, 1, (1, 0)) == "waiting for 1 GPU: the only one is busy"
    assert text(1, 4, (4, 1)) == "waiting for 4 GPUs: 1 of 4 free"
    assert text(1, 4, (4, 3), (4, 2)) == "waiting for 4 GPUs: 5 of 8 free, at most 3 on a node"
    assert text(3, 2, (4, 3), (4, 1), (2, 2)) == "waiting for 2 GPUs on each of 3 nodes: 2 nodes of 3 have so many free"
    assert text(1, 2, (4, 3)) == "", "it fits: the policy knows why it waits"
    assert text(1, 8, (4, 0)) == "", "it fits nowhere: the policy says so"
    assert Queue(((4, 0),)).text(Job(1, SPEC, 0.0), NOW) == "", "it waits for something else"


def test_jobs_far_behind_have_no_place() -> None:
    places = {number: QueuePlace(number, NOW) for number in range(1, PLACES + 1)}
    queue = Queue(((4, 0),), frozenset(range(1, 200)), places)
    assert queue.text(Job(150, SPEC, 0.0), NOW) == (
        f"waiting for 1 GPU: all 4 busy; more than {PLACES} jobs are before it"
    )
    assert queue.text(Job(21, SPEC, 0.0), NOW) == "waiting for 1 GPU: all 4 busy; 21st in the queue, starts soon"


def test_places_in_words() -> None:
    assert [
        place_text(QueuePlace(number, None), NOW).split()[0] for number in (1, 2, 3, 4, 11, 12, 13, 22, 101, 111)
    ] == [*("1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "22nd", "101st", "111th")]
    assert place_text(QueuePlace(3, NOW + 46.0), NOW) == "3rd in the queue, starts in about 46 s"
    assert place_text(QueuePlace(1, NOW + 120.0, resumes=True), NOW) == "1st in the queue, resumes in about 2 min 00 s"


def world_of(*jobs: Job, targets: dict[int, Target] | None = None, **more: object) -> World:
    nodes = {"n1": Node("n1", (GpuInfo(0, "GPU-0"),), connected=True)}
    known = {job.id: job for job in jobs}
    return replace(World(nodes=nodes, jobs=known, targets=targets or {}), **more)  # type: ignore[arg-type]


def test_a_preempted_job_says_by_whom_and_when_it_resumes() -> None:
    trained = Incarnation(1, IncarnationState.RUNNING, (Part("n1", started=True),), ON_GPU_0, progress=BEGUN)
    saving = replace(trained, state=IncarnationState.SAVING, stop=StopRequest(1.0, Purpose.PREEMPT))
    low = Job(1, SPEC, 0.0, live=(saving,), first_start_at=1.0)
    high = Job(23, replace(SPEC, priority=10), 0.0)
    world = world_of(low, high, targets={23: Target(23, ON_GPU_0, "")})
    queue = Queue(places={1: QueuePlace(1, NOW + 120.0, resumes=True)})
    found = reason(world, low, {}, now=NOW, queue=queue)
    assert found == "being preempted by job 23 (priority 10); 1st in the queue, resumes in about 2 min 00 s"
    assert reason(world, low, {}, now=NOW) == "being preempted by job 23 (priority 10)"
    moved = world_of(low, high, targets={1: Target(1, Placement((Share("n2", (0, 1)),)), "")})
    assert reason(moved, low, {}, now=NOW) == "saving its checkpoint to move to 2 GPUs of n2"
    alone = world_of(low)
    assert reason(alone, low, {1: "its node leaves"}, now=NOW) == (
        "saving its checkpoint, then freeing its GPUs: its node leaves"
    )
    waits = world_of(low, high, targets={23: Target(23, ON_GPU_0, "")}, holders={GpuRef("n1", 0): (1, 1)})
    assert reason(waits, high, {}, now=NOW) == "waiting for 1 GPU: starts as soon as job 1 frees it"
    assert new_holders(waits, high, ON_GPU_0) == [1]


def test_who_has_the_gpus_of_a_job_that_was_preempted_is_told() -> None:
    cluster = Cluster("adaptive")
    number = cluster.submit(gpus_min=4, gpus_max=4)
    taker = cluster.submit(gpus_min=4, gpus_max=4)
    world = cluster.controller.world
    place = Placement((Share("n1", (0, 1, 2, 3)),))
    was = replace(world.jobs[taker], suspended=True, last=LastAttempt(placement=place), first_start_at=NOW)
    world = replace(world, jobs={**world.jobs, taker: was})
    found = cluster.queues.look(world, NOW).text(was, NOW)
    assert found == (
        f"waiting for 4 GPUs: all 4 busy, its own taken by job {number}; 1st in the queue, resumes in about 20 min 10 s"
    )


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ((1,), ", suspended for job 1"),
        ((3,), ", suspended for job 3 (priority 5), its own taken by job 1"),
    ],
)
def test_for_whom_a_job_was_preempted_is_told(others: tuple[int, ...], told: str) -> None:
    cluster = Cluster("adaptive")
    assert cluster.submit(gpus_min=4, gpus_max=4) == 1
    job = cluster.submit(gpus_min=4, gpus_max=4)
    high = cluster.submit(priority=5, gpus_min=4, gpus_max=4)
    world = cluster.controller.world
    place = Placement((Share("n1", (0, 1, 2, 3)),))
    was = replace(
        world.jobs[job], suspended=True, last=LastAttempt(placement=place), first_start_at=NOW, suspended_for=others
    )
    jobs = {**world.jobs, job: was, high: replace(world.jobs[high], held=True)}
    found = cluster.queues.look(replace(world, jobs=jobs), NOW).text(was, NOW)
    assert found.partition(";")[0] == f"waiting for 4 GPUs: all 4 busy{told}"


def test_a_job_that_trains_has_no_reason_and_why_has_the_policys() -> None:
    cluster = Cluster("adaptive")
    world = cluster.controller.world
    trains = Incarnation(1, IncarnationState.RUNNING, (Part("n1", started=True),), ON_GPU_0, progress=BEGUN)
    job = Job(1, SPEC, 0.0, live=(trains,))
    assert reason(world, job, {1: "keeps 1 of 4 GPUs"}, now=NOW) == ""
    assert explain(world, job, {1: "keeps 1 of 4 GPUs"}, NOW).reason == "keeps 1 of 4 GPUs"


def test_looks_are_bounded() -> None:
    cluster = Cluster("adaptive")
    times = iter([0.0, 1.0, 2.0, 100.0, 100.0])
    queues = Queues(PROFILES, monotonic=lambda: next(times))
    first = queues.look(cluster.controller.world, NOW)
    cluster.submit(gpus_min=4, gpus_max=4)
    cluster.submit()
    assert queues.look(cluster.controller.world, NOW) is first, "the last one took a second"
    assert queues.look(cluster.controller.world, NOW).waiting
