"""What jobs show while they run, and what is made of it."""

from dataclasses import replace
from functools import lru_cache

import pytest

from hpcdl.core.controller.view_builder import Views, build_view
from hpcdl.core.fold import observations
from hpcdl.core.fold.fold import fold
from hpcdl.core.model import events as ev
from hpcdl.core.model.frozen import from_json, to_json
from hpcdl.core.model.incarnation import Cause, Placement, Purpose, Role, Share
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.profile import MetricCurve, MetricPoints, Observation, Observations, Profile, Timing
from hpcdl.core.model.world import GpuInfo, Target, World

KEY = "vgg @ train.py"


class Story:
    """Events of one world, each at its time."""

    def __init__(self) -> None:
        self.world = World()
        for name, kind in (("n1", "Tesla V100"), ("n2", "Tesla V100")):
            gpus = tuple(GpuInfo(index, f"{name}-{index}", kind) for index in range(4))
            self.then(0, ev.NodeJoined(name, gpus, log_id=name))

    def then(self, at: float, event: ev.Event) -> None:
        self.world = fold(self.world, [ev.Recorded(self.world.seq + 1, at, 1, event)])

    def submit(self, number: int = 1, model: str = "VGG", **more: object) -> None:
        spec = JobSpec(("python", "/x/train.py"), "a name", model=model, gpus_max=4, steps=10_000, **more)  # type: ignore[arg-type]
        self.then(0, ev.JobSubmitted(number, spec, f"request {number}"))

    def start(self, at: float, incarnation: int, node: str, gpus: int, ready_after: float, step: int = 0) -> None:
        placement = Placement((Share(node, tuple(range(gpus))),), Role.PRIMARY)
        self.then(at, ev.StartRequested(1, incarnation, (node,), placement))
        self.then(at, ev.Started(1, incarnation, 1, node, pid=7))
        self.then(at + ready_after, ev.TrainerReady(1, incarnation, 1, node, step=step))

    def progress(self, at: float, incarnation: int, step: int, node: str = "n1", **more: float) -> None:
        self.then(at, ev.Progressed(1, incarnation, 1, node, step=step, **more))  # type: ignore[arg-type]

    def suspend(self, at: float, incarnation: int, after: float, step: int, node: str = "n1") -> None:
        self.then(at, ev.SuspendRequested(1, incarnation, Purpose.RESCALE, 60.0))
        self.then(at + after, ev.Progressed(1, incarnation, 1, node, step=step))
        self.then(at + after, ev.Saved(1, incarnation, 1, node, step=step, final=True))
        self.then(at + after, ev.Exited(1, incarnation, 1, node, code=0, ended_by="suspend"))
        self.then(at + after, ev.GpusFreed(1, incarnation, 1, node))
        self.then(at + after, ev.IncarnationEnded(1, incarnation, Cause.SUSPENDED, step=step))

    def aim(self, at: float, node: str, gpus: int) -> None:
        placement = Placement((Share(node, tuple(range(gpus))),), Role.PRIMARY)
        self.then(at, ev.PlanAdopted("adaptive", (Target(1, placement, "why"),), (), False, None, None))

    @property
    def seen(self) -> Observations:
        return self.world.observed[KEY]


def test_rates_and_times_are_kept_under_model_and_script() -> None:
    story = Story()
    story.submit()
    story.start(10, 1, "n1", 2, ready_after=30)
    assert story.seen == Observations((), (Timing("startup_s", 1, 30),))
    assert observations.observations_of(story.world, KEY) is None  # nothing is known of its speed yet
    story.progress(50, 1, 100)
    story.progress(60, 1, 200)
    assert story.seen.rates == (Observation("v100", 1, 2, 200, 20),)
    story.aim(70, "n1", 4)
    story.suspend(70, 1, after=4, step=310)  # the last ten steps are as old as the request to suspend
    assert story.seen.rates == (Observation("v100", 1, 2, 310, 30),)
    story.start(75, 2, "n1", 4, ready_after=12, step=310)
    story.progress(97, 2, 510)
    story.aim(100, "n2", 4)
    story.suspend(100, 2, after=6, step=540)
    assert story.seen.rates[-1] == Observation("v100", 1, 4, 200, 10)  # three seconds before a suspend say nothing
    story.start(106, 3, "n2", 4, ready_after=50, step=540)
    assert {each.what: (each.times, each.seconds) for each in story.seen.times} == {
        "startup_s": (1, 30),
        "save_s": (1, 4),
        "resume_up_s": (1, 12),
        "move_save_s": (1, 6),
        "move_s": (1, 50),
    }
    assert story.world.usual_times == story.seen.times


def test_a_program_that_knows_nothing_of_hpcdl_shows_its_rate() -> None:
    """Its steps are found in what it prints (`--progress-regex`), and it never says that it is ready."""
    story = Story()
    story.submit(progress_regex="step ([0-9]+)")
    placement = Placement((Share("n1", (0, 1)),), Role.PRIMARY)
    story.then(10, ev.StartRequested(1, 1, ("n1",), placement))
    story.then(10, ev.Started(1, 1, 1, "n1", pid=7))
    story.progress(40, 1, 10)
    story.progress(50, 1, 110)
    story.progress(60, 1, 210)
    assert story.seen.rates == (Observation("v100", 1, 2, 200, 20),)
    assert story.seen.times == ()  # how much of its start the first steps took is not known


def test_what_an_attached_trainer_reports_before_it_is_ready_shows_no_rate() -> None:
    story = Story()
    story.submit()
    placement = Placement((Share("n1", (0, 1)),), Role.PRIMARY)
    story.then(10, ev.StartRequested(1, 1, ("n1",), placement))
    story.then(10, ev.Started(1, 1, 1, "n1", pid=7))
    story.then(11, ev.Attached(1, 1, 1, "n1"))
    story.progress(12, 1, 10)
    story.progress(22, 1, 110)
    assert KEY not in story.world.observed


def test_another_model_has_the_usual_times_where_it_showed_none() -> None:
    story = Story()
    story.submit(1)
    story.start(10, 1, "n1", 2, ready_after=30)
    story.progress(50, 1, 100)
    story.aim(70, "n1", 4)
    story.suspend(70, 1, after=4, step=300)
    assert observations.observations_of(story.world, "other @ train.py") is None
    story.world.observed["other @ train.py"] = Observations((Observation("", 1, 1, 9, 9),), (Timing("save_s", 2, 20),))
    other = observations.observations_of(story.world, "other @ train.py")
    assert other is not None
    assert sorted((each.what, each.seconds) for each in other.times) == [("save_s", 10), ("startup_s", 30)]


def test_long_ago_counts_less() -> None:
    times: tuple[Timing, ...] = observations._with((), "save_s", 10.0)
    for _ in range(500):
        times = observations._with(times, "save_s", 10.0)
    assert times[0].times < observations.MEMORY_TIMES + 2
    for _ in range(100):
        times = observations._with(times, "save_s", 2.0)
    assert times[0].seconds / times[0].times < 2.5


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observations, "KEPT", 3)
    story = Story()
    for number, name in enumerate(("a", "b", "c", "a", "d"), 1):
        spec = JobSpec(("python", "train.py"), "j", model=name)
        story.then(0, ev.JobSubmitted(number, spec, f"r{number}"))
        placement = Placement((Share("n1", (0,)),), Role.PRIMARY)
        story.then(number, ev.StartRequested(number, 1, ("n1",), placement))
        story.then(number, ev.TrainerReady(number, 1, 1, "n1", step=0))
        story.then(number + 0.5, ev.Progressed(number, 1, 1, "n1", step=5))
        story.then(number + 0.6, ev.Exited(number, 1, 1, "n1", code=0))
        story.then(number + 0.6, ev.GpusFreed(number, 1, 1, "n1"))
        story.then(number + 0.6, ev.IncarnationEnded(number, 1, Cause.DONE))
    assert [key.split()[0] for key in story.world.observed] == ["c", "a", "d"]


def test_a_profile_is_learnt_again_only_after_more_was_seen() -> None:
    asked: list[tuple[str, Observations]] = []

    @lru_cache
    def learn(key: str, seen: Observations) -> Profile:
        asked.append((key, seen))
        return Profile(key, ((1, 1, seen.rates[0].steps / seen.rates[0].seconds),))

    story, profiles, views = Story(), Profiles(learn=learn), Views()
    story.submit()
    story.start(10, 1, "n1", 1, ready_after=30)
    assert views.build(story.world, profiles, 41).jobs[0].profile is None
    story.progress(50, 1, 100)
    first = views.build(story.world, profiles, 51).jobs[0].profile
    assert first is not None
    assert first.rate(1) == pytest.approx(10)
    assert views.build(story.world, profiles, 55).jobs[0].profile is first
    assert len(asked) == 1
    story.progress(60, 1, 220)
    second = views.build(story.world, profiles, 61).jobs[0]
    assert second.profile is not None
    assert second.profile.rate(1) == pytest.approx(12), "what was slower at first is most likely its warm-up"
    assert second == build_view(story.world, profiles, 61).jobs[0]
    assert second.steps(70) == pytest.approx(340)  # carried on at what was learnt


def test_what_is_no_news_changes_nothing() -> None:
    story = Story()
    story.submit()
    story.start(10, 1, "n1", 1, ready_after=30)
    for report in range(1, 41):
        story.progress(40 + 25 * report, 1, 2500 * report)
    before = observations.observations_of(story.world, KEY)
    story.progress(1050, 1, 101_001)
    assert observations.observations_of(story.world, KEY) == before
    story.progress(2050, 1, 201_000)
    after = observations.observations_of(story.world, KEY)
    assert after is not None
    assert after != before
    assert after.rates[0].steps / after.rates[0].seconds == pytest.approx(100)
    assert after.rates[0].seconds == pytest.approx(2010, rel=0.12)


def test_a_metric_says_how_long_a_job_is() -> None:
    asked: list[tuple[MetricPoints, float]] = []

    def foresee(points: MetricPoints, target: float, earlier: MetricPoints) -> float | None:
        assert earlier == ()
        asked.append((points, target))
        return 400.2 if len(points) > 1 else None

    story, profiles, views = Story(), Profiles(foresee=foresee), Views()
    spec = JobSpec(("python", "train.py"), "j", accuracy_target=0.9)
    story.then(0, ev.JobSubmitted(1, spec, "r"))
    story.start(10, 1, "n1", 1, ready_after=30)
    assert views.build(story.world, profiles, 41).jobs[0].total is None
    assert asked == []
    story.progress(50, 1, 100, metric=0.5)
    assert views.build(story.world, profiles, 51).jobs[0].total is None
    story.progress(60, 1, 200, metric=0.7)
    assert views.build(story.world, profiles, 61).jobs[0].total == 401
    story.progress(70, 1, 300)
    assert views.build(story.world, profiles, 71).jobs[0].total == 401
    assert len(asked) == 2
    story.progress(80, 1, 500, metric=0.85)  # further than was foreseen
    job = views.build(story.world, profiles, 81).jobs[0]
    assert (job.total, job.accuracy[-1]) == (501, (500, 0.85))
    story.progress(90, 1, 600, total=800)  # the trainer knows better
    assert views.build(story.world, profiles, 91).jobs[0].total == 800


def test_the_metric_of_an_earlier_job_says_how_long_a_later_one_is_from_its_start() -> None:
    def foresee(points: MetricPoints, target: float, earlier: MetricPoints) -> float | None:
        return 10.0 * len(points) + earlier[-1][0] if earlier else None

    story, views = Story(), Views()
    named = Profile("Told", ((1, 1, 1.0),), accuracy=((5, 0.1), (70, 0.4)))
    profiles = Profiles({"told": named}, foresee=foresee)
    spec = JobSpec(("python", "train.py"), "j", accuracy_target=0.9)
    for number, profile in ((1, None), (2, None), (3, "told")):
        story.then(0, ev.JobSubmitted(number, replace(spec, profile=profile), f"r{number}"))

    def totals(now: float) -> list[int | None]:
        jobs = views.build(story.world, profiles, now).jobs
        assert jobs == build_view(story.world, profiles, now).jobs
        return [job.total for job in jobs]

    def run(number: int, at: float, *points: tuple[int, float]) -> None:
        placement = Placement((Share("n1", (0,)),), Role.PRIMARY)
        story.then(at, ev.StartRequested(number, 1, ("n1",), placement))
        story.then(at + 1, ev.TrainerReady(number, 1, 1, "n1", step=0))
        for place, (step, metric) in enumerate(points):
            story.then(at + 10 * place + 2, ev.Progressed(number, 1, 1, "n1", step=step, metric=metric))

    def end(number: int, at: float) -> None:
        story.then(at, ev.Exited(number, 1, 1, "n1", code=0))
        story.then(at, ev.GpusFreed(number, 1, 1, "n1"))
        story.then(at, ev.IncarnationEnded(number, 1, Cause.DONE))

    run(1, 10, (300, 0.7), (200, 0.65))  # it went back
    assert totals(40) == [None, None, 70]
    end(1, 50)
    assert story.world.observed["j @ train.py"].metric == MetricCurve(1, ((200, 0.65), (300, 0.7)))
    assert totals(51) == [None, 300, 300], "of itself it knows nothing more"
    run(2, 60, (140, 0.8))
    assert totals(70) == [None, 310, 300]
    end(2, 80)
    assert story.world.observed["j @ train.py"].metric == MetricCurve(1, ((200, 0.65), (300, 0.7))), "it went too short"
    run(3, 90, (100, 0.2), (150, 0.3))
    end(3, 120)
    assert totals(121) == [201, 160, 151]
    seen = story.world.observed["j @ train.py"]
    assert seen.metric == MetricCurve(3, ((100, 0.2), (150, 0.3)))
    assert from_json(Observations, to_json(seen)) == seen
    assert (
        from_json(Observations, {key: value for key, value in to_json(seen).items() if key != "metric"}).metric is None
    )


def test_a_profile_that_says_too_little_of_starts_is_corrected() -> None:
    said = Profile("told", ((1, 1, 1.0),), startup_s=2.0, save_s=1.0, resume_s=1.0, move_s=3.0)
    seen = Observations((), (Timing("startup_s", 2, 80.0), Timing("save_s", 1, 9.0)))
    found = observations.slower(said, seen)
    assert (found.startup_s, found.resume_s, found.move_s, found.save_s) == (40.0, 20.0, 3.0, 1.0)
    assert (
        observations.slower(said, Observations((), (Timing("startup_s", 1, 1.0),))) is said
    )  # a part was done at the gate
    story, profiles, views = Story(), Profiles({"told": said}), Views()
    story.submit(profile="told")
    assert views.build(story.world, profiles, 5).jobs[0].profile is said
    story.start(10, 1, "n1", 2, ready_after=40)
    story.submit(2, profile="told")
    view = views.build(story.world, profiles, 60)
    assert [job.profile.startup_s for job in view.jobs if job.profile is not None] == [40.0, 40.0]
    assert view.jobs == build_view(story.world, profiles, 60).jobs


def test_what_a_start_takes_others_says_nothing_of_a_job_whose_own_is_known() -> None:
    story = Story()
    story.submit()
    story.start(10, 1, "n1", 2, ready_after=40)
    story.progress(60, 1, 100)
    story.world.usual_times = (*story.world.usual_times, Timing("resume_s", 1, 2.0))
    seen = observations.observations_of(story.world, KEY)
    assert seen is not None
    assert [each.what for each in seen.times] == ["startup_s"]


def test_first_steps_of_milliseconds_are_no_rate() -> None:
    story = Story()
    story.submit()
    story.start(10, 1, "n1", 1, ready_after=1)
    story.progress(11.006, 1, 1)  # what it does after its report belongs to the step, too
    assert observations.observations_of(story.world, KEY) is None
    story.progress(11.012, 1, 2)  # as another member of its array would report
    assert observations.observations_of(story.world, KEY) is None
    story.progress(15.0, 1, 20)
    seen = observations.observations_of(story.world, KEY)
    assert seen is not None
    assert [round(rate.steps / rate.seconds, 1) for rate in seen.rates] == [4.5]
    slow = Story()
    slow.submit()
    slow.start(10, 1, "n1", 1, ready_after=1)
    slow.progress(12.5, 1, 1)
    assert observations.observations_of(slow.world, KEY) is None, "it may have compiled"
    slow.progress(14, 1, 2)
    assert observations.observations_of(slow.world, KEY) is not None, "two long steps are a rate"


def test_the_last_steps_count_though_the_report_before_them_came_at_once() -> None:
    """What was found: an agent reports the newest step that it knows and the end together; the last steps were lost."""
    story = Story()
    story.submit()
    story.start(10, 1, "n1", 1, ready_after=1)
    story.progress(11.2, 1, 1)
    story.progress(13.0, 1, 16)
    story.then(12.99, ev.TrainingDone(1, 1, 1, "n1", step=20))
    seen = observations.observations_of(story.world, KEY)
    assert seen is not None
    assert [rate.steps / rate.seconds for rate in seen.rates] == pytest.approx([10.0], rel=0.06)
