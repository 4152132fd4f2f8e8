"""What starts, saves and whole jobs took: whose it is taken from, with which spread, and what policies see of it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hpcdl.adaptive.eta import grounds_of
from hpcdl.adaptive.options import candidates
from hpcdl.core.controller import history
from hpcdl.core.controller.history import Histories, framework_of, groups_of, sample_of
from hpcdl.core.controller.view_builder import Views, build_view
from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import GpuInfo, Job, JobEnd, JobProgress, JobState, LastAttempt, MeasuredCosts, Node, World
from hpcdl.core.rules.exemption import PRIOR_S, expected_start_s

HELD = LastAttempt(placement=Placement((Share("n1", (0,)),)))


def spec(script: str = "train.py", model: str | None = None, user: str = "ann", **more: object) -> JobSpec:
    return JobSpec(("python", f"/x/{script}"), "a name", model=model, user=user, **more)  # type: ignore[arg-type]


def done(number: int, of: JobSpec, start_s: float, held_s: float = 600.0, steps: int = 100) -> Job:
    return Job(
        number,
        of,
        float(number),
        end=JobEnd(JobState.DONE, 900.0),
        progress=JobProgress(steps, steps),
        held_gpu_s=held_s,
        last=HELD,
        can_suspend=True,
        costs=MeasuredCosts(start_s, 2.0),
        first_start_at=1.0,
    )


def world_of(*jobs: Job) -> World:
    node = Node("n1", tuple(GpuInfo(index, f"u{index}", "V100") for index in range(4)), connected=True)
    active = {job.id: None for job in jobs if not job.finished}
    return World(jobs={job.id: job for job in jobs}, active=active, nodes={"n1": node}, next_job=len(jobs) + 1)


def learnt(world: World) -> Histories:
    found = Histories()
    found.look(world, None)
    return found


def test_the_narrowest_group_of_which_something_is_known_is_taken() -> None:
    known = learnt(
        world_of(
            done(1, spec(model="bert"), 20.0),
            done(2, spec(model="vgg"), 40.0),
            done(3, spec("other.py", "bert"), 80.0),
            done(4, spec("third.py", user="ann"), 160.0),
            done(5, JobSpec(("torchrun", "/x/fourth.py"), "n", user="bob"), 320.0),
        )
    )

    def start(of: JobSpec) -> tuple[float, str] | None:
        found = known.learnt(groups_of(of), "start")
        return None if found is None else (found.mean, found.whose)

    assert start(spec(model="bert")) == (20.0, "bert by train.py")
    assert start(spec("new.py", "bert")) == (50.0, "model bert")
    assert start(spec(model="new")) == (30.0, "train.py")
    assert start(JobSpec(("torchrun", "new.py"), "n", user="eve")) == (320.0, "torch jobs")
    assert start(spec("new.py")) == (75.0, "ann's jobs")
    assert start(spec("new.py", user="eve")) is None


def test_the_spread_is_what_was_seen_and_of_one_job_the_doubt_of_its_group() -> None:
    alike = learnt(world_of(*(done(number, spec(), seconds) for number, seconds in enumerate((18, 24, 41), 1))))
    found = alike.learnt(groups_of(spec()), "start")
    assert found is not None
    assert (found.low, found.high, found.times) == (18, 41, 3)
    assert found.text("start") == "about 28 s (18 s to 41 s, 3 starts of a name by train.py)"
    assert 0.25 < found.spread < 0.6
    alone = learnt(world_of(done(1, spec(), 24.0)))
    same, user = alone.learnt(groups_of(spec()), "start"), alone.learnt(groups_of(spec("new.py")), "start")
    assert same is not None
    assert user is not None
    assert same.spread < user.spread
    assert "(1 start of" in same.text("start")
    equal = learnt(world_of(done(1, spec(), 24.0), done(2, spec(), 24.01))).learnt(groups_of(spec()), "start")
    assert equal is not None
    assert "(2 starts of" in equal.text("start")


@pytest.mark.parametrize(
    ("command", "more", "framework"),
    [
        (("python", "t.py"), {"progress": "hf"}, "hf"),
        (("python", "t.py"), {"signal": "lightning"}, "lightning"),
        (("/venv/bin/torchrun", "--nproc-per-node", "2", "t.py"), {}, "torch"),
        (("deepspeed", "t.py"), {}, "deepspeed"),
        (("python", "t.py"), {}, ""),
    ],
)
def test_a_framework_is_known_by_options_or_command(
    command: tuple[str, ...], more: dict[str, str], framework: str
) -> None:
    assert framework_of(JobSpec(command, "n", **more)) == framework  # type: ignore[arg-type]


def test_a_length_leaves_starts_out_and_counts_gpus() -> None:
    one = sample_of(done(1, spec(), 100.0, held_s=700.0))
    assert one is not None
    assert (one.length, one.steps) == (600.0, 100.0)
    four = replace(done(1, spec(), 0.0, 1000.0), last=LastAttempt(placement=Placement((Share("n1", (0, 1, 2, 3)),))))
    wide = sample_of(four)
    assert wide is not None
    assert wide.length is not None
    assert 1000 / 4 < wide.length < 1000.0
    failed = replace(done(1, spec(), 9.0), end=JobEnd(JobState.FAILED, 1.0))
    assert sample_of(failed) == sample_of(replace(failed, end=None)) != one, "only whole jobs have a length"


def test_a_price_of_a_start_is_taken_from_jobs_like_it() -> None:
    waiting = Job(3, spec("new.py", "bert"), 3.0)
    world = world_of(done(1, spec(model="bert"), 90.0), done(2, spec(model="vgg"), 10.0), waiting)
    usual = learnt(world).usual(groups_of(waiting.spec))
    assert usual is not None
    assert usual.start_s == pytest.approx(90.0, rel=0.12)
    assert expected_start_s(world, waiting, None, usual) == usual.start_s
    assert expected_start_s(world, waiting, None) == PRIOR_S
    own = replace(waiting, costs=MeasuredCosts(7.0))
    assert expected_start_s(world, own, None, usual) == 7.0


def test_policies_see_how_long_a_job_without_a_profile_will_be() -> None:
    jobs = [done(number, spec(), 10.0, 3610.0) for number in (1, 2, 3)]
    waiting = Job(4, spec("train.py", "new"), 4.0, progress=JobProgress(total=120))
    view = build_view(world_of(*jobs, waiting), Profiles(), 1000.0)
    left_s = candidates(view).candidates[0].left_s
    assert left_s == pytest.approx(3600.0 * 120 / 100, rel=0.15), "by its own steps"
    found = grounds_of(view, view.jobs[0], "adaptive")
    assert found is not None
    assert found.eta().ends.low_s < found.eta().ends.expected_s < found.eta().ends.high_s
    longer = replace(view, jobs=(replace(view.jobs[0], total=5000),))
    assert grounds_of(longer, longer.jobs[0], "adaptive") is None, "jobs with 100 steps say little of 5,000"
    unknown = replace(view, jobs=(replace(view.jobs[0], usual=None),))
    assert candidates(unknown).candidates[0].left_s == 600.0
    assert grounds_of(unknown, unknown.jobs[0], "adaptive") is None


def test_a_job_that_says_no_steps_has_as_many_as_those_like_it() -> None:
    world = world_of(done(1, spec(), 10.0, steps=4000), Job(2, spec(), 4.0))
    profile = Profile("p", ((1, 1, 2.0),))
    view = build_view(world, Profiles({"p": profile}), 1000.0)
    job = replace(view.jobs[0], profile=profile)
    assert candidates(replace(view, jobs=(job,))).candidates[0].left_s == 2000.0
    beyond = replace(job, step=3900)
    assert candidates(replace(view, jobs=(beyond,))).candidates[0].left_s == 500.0, "it goes on for a while"


def test_a_builder_that_goes_on_says_what_one_says_that_starts_anew() -> None:
    goes_on, profiles = Views(), Profiles()
    jobs: list[Job] = []
    for number in range(1, 12):
        jobs.append(Job(number, spec(model=f"m{number % 3}"), float(number)))
        world = world_of(*jobs)
        assert goes_on.build(world, profiles, 1000.0) == build_view(world, profiles, 1000.0)
        jobs[-1] = done(number, jobs[-1].spec, 5.0 * number, 100.0 * number)
        if number > 6:
            jobs[number - 7] = replace(jobs[number - 7], costs=MeasuredCosts(1.0 + number))
    left = dict(enumerate(jobs[3:], 4))
    world = replace(world_of(*jobs, Job(12, spec(), 1.0)), retired={"DONE": 3})
    world.jobs = {number: job for number, job in world.jobs.items() if number in left or number == 12}
    assert goes_on.build(world, profiles, 1000.0) == build_view(world, profiles, 1000.0)


def test_papers_learn_as_they_did() -> None:
    world = world_of(done(1, spec(), 10.0), Job(2, spec(), 4.0))
    assert build_view(world, Profiles(), 1000.0, 0.0).jobs[0].usual is None
    assert build_view(world, Profiles(), 1000.0).jobs[0].usual is not None


def test_what_is_usual_of_a_user_is_counted_once_for_all_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of scripts may wait while every checkpoint is news."""
    counted: list[history.Group] = []
    count_one = history._learnt

    def counting(group: history.Group, what: str, values: Sequence[float]) -> history.Learnt:
        counted.append(group)
        return count_one(group, what, values)

    monkeypatch.setattr(history, "_learnt", counting)
    first = done(1, spec(), 20.0)
    world = world_of(first)
    known = learnt(world)
    scripts = [groups_of(spec(f"new{number}.py")) for number in range(200)]
    assert len({known.usual(groups) for groups in scripts}) == 1
    assert set(counted) == {("user", "ann")}
    assert len(counted) == len(history.FIELDS)
    slower = replace(world, jobs={1: replace(first, costs=MeasuredCosts(320.0, 2.0))})
    assert known.look(slower, [1])
    assert known.usual(scripts[0]) == learnt(slower).usual(scripts[0]) != learnt(world).usual(scripts[0])
    assert known.look(replace(slower, jobs={}, retired={}), [])
    assert known.usual(scripts[0]) is None
