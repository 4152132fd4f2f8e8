"""When jobs start and are done, with bands, and what became of those that are finished."""

from dataclasses import replace

import pytest

from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import MemoryJournal
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause, Placement, Purpose, Share
from hpcdl.core.model.job import Drill, JobSpec
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import GpuInfo, JobEnd, JobState, LastAttempt
from hpcdl.daemon.api.estimates import when, when_json, when_text
from hpcdl.daemon.api.post_mortem import aftermath, past_of
from hpcdl.policies import all_policies
from hpcdl.report.account import account, story_of
from tests.support.stage import running

NOW = 1_000_000.0
POINTS = ((1, 1, 1.0), (1, 2, 1.8), (1, 4, 3.0))
SURE, UNSURE = Profile("p", POINTS, startup_s=10.0), Profile("q", POINTS, startup_s=10.0, spread=0.3)
VAGUE = Profile("v", POINTS, startup_s=10.0, spread=1.5)
PROFILES = Profiles({"p": SURE, "q": UNSURE, "v": VAGUE})


@pytest.fixture
def controller() -> Controller:
    """Four idle GPUs under the daemon's own policy."""
    controller = Controller(MemoryJournal(), all_policies(), PROFILES)
    gpus = tuple(GpuInfo(index, f"n1-{index}", "Tesla V100-SXM2-16GB") for index in range(4))
    chosen: list[cmd.Command] = [cmd.ChoosePolicy("adaptive"), cmd.ChooseObjective("jct")]
    controller.step([*chosen, cmd.Inventory("n1", gpus, 8, 1, 1, "boot", "log", False)], NOW)
    return controller


def submit(controller: Controller, request: str, **more: object) -> int:
    values = {"command": ("train",), "name": "j", "gpus_min": 4, "gpus_max": 4, "profile": "p", "steps": 3600, **more}
    (ids,) = controller.step([cmd.Submit((JobSpec(**values),), request)], NOW)  # type: ignore[arg-type]
    assert isinstance(ids, tuple), ids
    controller.decide(NOW)
    return int(ids[0])


def test_a_rate_that_may_be_far_off_gives_no_time_before_now(controller: Controller) -> None:
    found = []
    for request in ("a", "b"):
        number = submit(controller, request, profile="v")
        found.append(when(controller.world, controller.world.jobs[number], PROFILES, NOW))
    runs, waits = found
    assert runs is not None
    assert waits is not None
    assert waits.starts is not None
    for band in (runs.ends, waits.starts, waits.ends):
        assert 0.0 < band.low_s < band.expected_s < band.high_s
    assert "(-" not in when_text(waits, "adaptive")


def test_one_waits_for_the_other_and_both_have_bands(controller: Controller) -> None:
    first, second = submit(controller, "a"), submit(controller, "b", steps=7200)
    one = when(controller.world, controller.world.jobs[first], PROFILES, NOW)
    two = when(controller.world, controller.world.jobs[second], PROFILES, NOW)
    assert one is not None
    assert two is not None
    assert one.starts is None
    assert one.ends.expected_s == pytest.approx(1210.0, rel=0.01)
    assert one.ends.low_s < one.ends.expected_s < one.ends.high_s
    assert two.starts is not None
    assert two.starts.expected_s == pytest.approx(one.ends.expected_s, rel=0.05)
    assert two.ends.expected_s == pytest.approx(one.ends.expected_s + 2410.0, rel=0.05)
    assert two.starts.low_s < two.starts.expected_s < two.starts.high_s
    assert two.ends.low_s < two.ends.expected_s < two.ends.high_s < 3 * two.ends.expected_s
    text = when_text(two, "adaptive")
    assert text.startswith("starts in about 20 min")
    assert ", done in about 1 h 00 min (" in text
    assert when_text(two, "fifo").endswith("; the policy fifo may take jobs in another order")
    assert when_json(two)["starts_in_s"] == two.starts.expected_s
    assert when_json(one)["starts_in_s"] is None
    assert set(when_json(None).values()) == {None}


def test_who_gets_nothing_now_is_not_told_to_start_at_once(controller: Controller) -> None:
    long = submit(controller, "long", steps=36_000)
    short = submit(controller, "short", steps=60)
    assert controller.world.jobs[long].running is not None
    job = controller.world.jobs[short]
    found = when(controller.world, job, PROFILES, NOW)
    assert found is not None
    assert found.starts is not None
    assert found.starts.expected_s > 3600.0, "the plan lets the long one go on"
    assert found.starts.high_s > found.starts.low_s
    assert found.ends.high_s > found.ends.expected_s >= found.ends.low_s


def test_what_is_less_sure_has_a_wider_band(controller: Controller) -> None:
    widths = []
    for profile in ("p", "q"):
        number = submit(controller, profile, profile=profile)
        found = when(controller.world, controller.world.jobs[number], PROFILES, NOW)
        assert found is not None
        widths.append((found.ends.high_s - found.ends.low_s) / found.ends.expected_s)
    assert widths[1] > 2 * widths[0] > 0.0


@pytest.mark.parametrize("more", [{"profile": None}, {"steps": None}, {"gpus_min": 64, "gpus_max": 64}])
def test_what_is_not_known_is_not_told(controller: Controller, more: dict[str, object]) -> None:
    number = submit(controller, "x", **more)
    assert when(controller.world, controller.world.jobs[number], PROFILES, NOW) is None


def test_a_held_job_has_no_eta_and_a_failure_to_foresee_is_none(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    submit(controller, "a")
    number = submit(controller, "b")
    job = controller.world.jobs[number]
    assert when(controller.world, job, PROFILES, NOW) is not None

    def fails(*_: object) -> None:
        raise IndexError("out of bounds")

    monkeypatch.setattr("hpcdl.adaptive.eta.candidates", fails)
    assert when(controller.world, job, PROFILES, NOW) is None
    assert "could not be predicted" in caplog.text
    monkeypatch.undo()
    controller.step([cmd.Hold(number)], NOW)
    assert when(controller.world, controller.world.jobs[number], PROFILES, NOW) is None


def test_a_measured_rate_comes_first(controller: Controller) -> None:
    stage = running(2, "1")
    stage.run(60.0)
    job = stage.job(1)
    found = when(stage.world, job, stage.profiles, stage.now)
    assert found is not None
    assert found.starts is None
    assert found.ends.low_s < found.ends.expected_s < found.ends.high_s


# --- what became of it ------------------------------------------------------------------------------------------------


def story(takers: tuple[int, ...] = ()) -> list[ev.Recorded]:
    """Waits 100 s, trains 50 s, is suspended for others (`takers`), waits 40 s, trains 60 s of which the last 20 steps
    are lost, and is done after 30 s more.
    """
    place = Placement((Share("n1", (0, 1)),))
    told: list[tuple[float, ev.Event]] = [
        (0.0, ev.JobSubmitted(1, JobSpec(("train",), "j"), "r")),
        (100.0, ev.StartRequested(1, 1, ("n1",), place)),
        (105.0, ev.Started(1, 1, 1, "n1", 0.1, 7)),
        (106.0, ev.Attached(1, 1, 1, "n1")),
        (110.0, ev.TrainerReady(1, 1, 1, "n1")),
        (140.0, ev.Saved(1, 1, 1, "n1", step=30, path="p", seconds=1.5)),
        (160.0, ev.SuspendRequested(1, 1, Purpose.PREEMPT, 60.0, takers)),
        (162.0, ev.Saved(1, 1, 1, "n1", step=50, path="p", seconds=2.5, final=True)),
        (163.0, ev.Exited(1, 1, 1, "n1", code=0, attached=True)),
        (164.0, ev.IncarnationEnded(1, 1, Cause.SUSPENDED, 50, 50)),
        (204.0, ev.StartRequested(1, 2, ("n1",), place)),
        (206.0, ev.Attached(1, 2, 1, "n1")),
        (214.0, ev.TrainerReady(1, 2, 1, "n1", step=50)),
        (244.0, ev.Saved(1, 2, 1, "n1", step=80, path="p", seconds=1.0)),
        (264.0, ev.Exited(1, 2, 1, "n1", code=1, attached=True)),
        (264.0, ev.IncarnationEnded(1, 2, Cause.INFRASTRUCTURE, 100, 80)),
        (265.0, ev.StartRequested(1, 3, ("n1",), place)),
        (270.0, ev.TrainerReady(1, 3, 1, "n1", step=80)),
        (300.0, ev.Exited(1, 3, 1, "n1", code=0, done=True)),
        (301.0, ev.IncarnationEnded(1, 3, Cause.DONE, 110, 80, 0, final=JobState.DONE)),
        (301.0, ev.JobEnded(1, JobState.DONE)),
    ]
    return [ev.Recorded(seq, at, seq, event) for seq, (at, event) in enumerate(told, 1)]


def test_the_account_of_a_finished_job() -> None:
    past = past_of(story(), 0.0)
    assert past.waited_s == pytest.approx(100.0 + 40.0 + 1.0)
    assert past.started_s == pytest.approx(10.0 + 10.0 + 5.0)
    assert past.trained_s == pytest.approx(50.0 + 50.0 + 30.0)
    assert past.saves == 3
    assert past.save_s == pytest.approx(5.0)
    assert past.suspends == {Purpose.PREEMPT: 1}
    assert past.starts == 3
    assert past.lost_steps == 20
    assert past.lost_s == pytest.approx(20.0)
    assert past.lost_gpu_s == account(story_of(story()), jobs=[1]).shares.lost == pytest.approx(2 * 20.0)


def test_the_account_of_warm_starts_cancels_and_retries() -> None:
    place = Placement((Share("n1", (0,)),))
    told: list[tuple[float, ev.Event]] = [
        (10.0, ev.StartRequested(1, 1, ("n1",), place)),
        (20.0, ev.StartRequested(1, 2, ("n1",), None)),
        (30.0, ev.IncarnationEnded(1, 2, Cause.CANCELLED, None, None)),  # a warm start that was not needed
        (50.0, ev.Exited(1, 1, 1, "n1", code=0)),
        (50.0, ev.IncarnationEnded(1, 1, Cause.SUSPENDED, 5, 5)),
        (80.0, ev.JobEnded(1, JobState.CANCELLED)),
        (1000.0, ev.JobRetried(1)),
        (1007.0, ev.StartRequested(1, 3, ("n1",), place)),
    ]
    past = past_of([ev.Recorded(seq, at, seq, event) for seq, (at, event) in enumerate(told, 1)], 0.0)
    assert past.waited_s == pytest.approx(10.0 + 30.0 + 7.0)
    assert past.starts == 2


def test_the_account_in_words() -> None:
    stage = running(1, "1")
    stage.finish()
    job = stage.job(1)
    mine = [record for record in stage.journal.records if isinstance(record.event, ev.JobEvent)]
    lines = aftermath(job, past_of(mine, job.submitted_at))
    assert lines[0].startswith("waited ")
    assert "; started 1 time, which took " in lines[0]
    assert lines[1] == f"held {job.held_gpu_s / 3600:.3f} GPU-hours"
    assert aftermath(replace(job, held_gpu_s=1.0), past_of(mine, 0.0))[1] == "held <0.001 GPU-hours"
    assert past_of(mine, job.submitted_at).to_json(job)["gpu_s"] == job.held_gpu_s
    told = aftermath(job, past_of(story(), 0.0))
    assert "saved 3 times, which took 5.0 s in all" in told
    assert "suspended 1 time: 1 for other jobs" in told
    drilled = replace(job, drill=Drill(True))
    assert "suspended 1 time: 1 for other jobs or a preemption test" in aftermath(drilled, past_of(story(), 0.0))
    assert "suspended 1 time: 1 for jobs 4,7" in aftermath(job, past_of(story(takers=(4, 7)), 0.0))
    assert "lost 20 steps, 20 s of training, 0.011 GPU-hours, to ends without a new checkpoint" in told


@pytest.mark.parametrize(
    "cause, detail, words",
    [
        (Cause.USER_ERROR, "", "hpcdl logs 1"),
        (Cause.OUT_OF_MEMORY, "exit code 1: torch.OutOfMemoryError: CUDA out of memory", "smaller batch"),
        (Cause.OUT_OF_MEMORY, "ended by SIGKILL", "its node had no memory left for it"),
        (Cause.INFRASTRUCTURE, "", "not the job"),
        (Cause.STALLED, "", "stood still"),
    ],
)
def test_the_next_step_of_a_failed_job(controller: Controller, cause: Cause, detail: str, words: str) -> None:
    number = submit(controller, "a")
    job = replace(controller.world.jobs[number], end=JobEnd(JobState.FAILED, NOW), last=LastAttempt(cause, detail))
    (line,) = [line for line in aftermath(job, past_of([], NOW)) if "hpcdl retry 1" in line]
    assert words in line
    assert "never ran" in aftermath(job, past_of([], NOW))[0]
