"""Whether a deadline will be met, as the API answers it."""

from dataclasses import replace
from typing import Any

import pytest

from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import MemoryJournal
from hpcdl.core.controller.view_builder import build_view
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.arrays import Array
from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.latency import LatencyModel, Stretch
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import GpuInfo, Job, JobEnd, JobState, LastAttempt
from hpcdl.daemon.api.estimates import forecast
from hpcdl.policies import all_policies

NOW = 1_000_000.0
PROFILES = Profiles({"p": Profile("p", ((1, 1, 1.0), (1, 2, 1.8), (1, 4, 3.0)), startup_s=10.0)})


@pytest.fixture
def controller() -> Controller:
    """Four idle GPUs under the daemon's own policy, with deadlines as the objective."""
    controller = Controller(MemoryJournal(), all_policies(), PROFILES)
    gpus = tuple(GpuInfo(index, f"n1-{index}", "Tesla V100-SXM2-16GB") for index in range(4))
    chosen: list[cmd.Command] = [cmd.ChoosePolicy("adaptive"), cmd.ChooseObjective("deadline")]
    controller.step([*chosen, cmd.Inventory("n1", gpus, 8, 1, 1, "boot", "log", False)], NOW)
    return controller


def submit(controller: Controller, **more: object) -> int:
    values = {"command": ("train",), "name": "j", "gpus_max": 4, "profile": "p", "steps": 3600, **more}
    (ids,) = controller.step([cmd.Submit((JobSpec(**values),), f"r{more}")], NOW)  # type: ignore[arg-type]
    assert isinstance(ids, tuple), ids
    controller.decide(NOW)
    return int(ids[0])


def foreseen(controller: Controller, number: int, now: float = NOW) -> dict[str, object] | None:
    return forecast(controller.world, controller.world.jobs[number], PROFILES, now)


def test_an_easy_deadline_is_likely(controller: Controller) -> None:
    found = foreseen(controller, submit(controller, deadline=NOW + 4 * 3600))
    assert found is not None
    assert found["probability"] >= 0.8  # type: ignore[operator]
    assert NOW + 1200 <= found["ends_at"] <= NOW + 4 * 3600  # type: ignore[operator]


def test_an_impossible_one_says_what_it_needs_and_what_would_help(controller: Controller) -> None:
    found = foreseen(controller, submit(controller, deadline=NOW + 600))
    assert found is not None
    assert found["probability"] == 0.0
    assert "cannot be met" in str(found["text"])
    assert any("later" in each for each in found["helps"])  # type: ignore[attr-defined]


def test_classes_are_reckoned_from_one_gpu(controller: Controller) -> None:
    for ect, factor in (("urgent", 0), ("prior", 1), ("normal", 2)):
        number = submit(controller, ect=ect)
        assert controller.world.jobs[number].spec.deadline == pytest.approx(NOW + factor * 3610)


def test_a_batch_size_counts_and_of_a_sweep_the_longest(controller: Controller) -> None:
    model = LatencyModel(
        (Stretch(16, 64, (0.0, 2.0, 0.0)),), 0.0, 0.0
    )  # twice the batch, twice the rate: as many steps
    flat = LatencyModel((Stretch(16, 64, (64.0, 0.0, 0.0)),), 0.0, 0.0)  # the same samples/s: half as many steps
    known = {
        name: Profile(name, ((1, 1, 1.0),), batch=64, latency=latency)
        for name, latency in (("grows", model), ("flat", flat))
    }
    controller.profiles = Profiles(known)
    number = submit(controller, ect="prior", profile="flat", batch_size=32)
    assert controller.world.jobs[number].spec.deadline == pytest.approx(NOW + 1800)
    number = submit(controller, ect="prior", profile="grows", batch_size=32)
    assert controller.world.jobs[number].spec.deadline == pytest.approx(NOW + 3600)
    spec = JobSpec(("train",), "s", profile="flat", steps=3600, ect="prior", batch_sweep="bs")
    entry = cmd.Entry(spec, Array(sweep=(("bs", ("16", "32")),)))
    (ids,) = controller.step([cmd.Submit((entry,), "sweep")], NOW)
    assert isinstance(ids, tuple), ids
    assert {controller.world.jobs[each].spec.deadline for each in ids} == {NOW + 1800}
    views = build_view(controller.world, controller.profiles, NOW)
    assert [views.by_id[each].profile.rate(1) for each in ids] == [pytest.approx(4.0), pytest.approx(2.0)]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "more, words",
    [
        ({"deadline": NOW - 60}, "1 min 00 s ago"),
        ({"ect": "prior", "profile": None}, "--profile and --steps"),
        ({"ect": "normal", "steps": None}, "--profile and --steps"),
    ],
)
def test_what_cannot_be_a_deadline_is_refused(controller: Controller, more: dict[str, object], words: str) -> None:
    values = {"command": ("train",), "name": "j", "gpus_max": 4, "profile": "p", "steps": 3600, **more}
    (answer,) = controller.step([cmd.Submit((JobSpec(**values),), "r")], NOW)  # type: ignore[arg-type]
    assert isinstance(answer, cmd.CommandRefused)
    assert words in str(answer)
    assert not controller.world.jobs


def test_a_slip_is_told_later_and_unknown_lengths_are_said_to_be(controller: Controller) -> None:
    number = submit(controller, deadline=NOW + 1300)
    late = foreseen(controller, number, NOW + 1200)
    assert late is not None
    assert late["probability"] == 0.0
    unknown = foreseen(controller, submit(controller, deadline=NOW + 9000, profile=None))
    assert unknown is not None
    assert (unknown["probability"], unknown["ends_at"]) == (None, None), "its steps alone say nothing"
    assert (
        unknown["text"] == "its deadline cannot be estimated yet: once it, or a job like it, shows how fast it trains"
    )
    both = foreseen(controller, submit(controller, deadline=NOW + 600, profile=None, steps=None))
    assert both is not None
    assert both["probability"] is None
    assert "estimated: that needs --steps, or a job like it that has ended" in str(both["text"])
    assert foreseen(controller, submit(controller)) is None


def test_steps_alone_do_once_such_a_job_has_ended(controller: Controller) -> None:
    """A band as wide as jobs of the script, or else of the user, differ; and none where all is known."""
    wide = JobSpec(("python", "train.py"), "new", user="ann", steps=500, gpus_max=4, deadline=NOW + 1200)
    controller.step([cmd.Submit((wide,), "r")], NOW)
    held = LastAttempt(placement=Placement((Share("n1", (0,)),)))
    ended = [
        Job(
            number,
            replace(wide, name=f"run {number}", deadline=None),
            NOW - 9000.0,
            end=JobEnd(JobState.DONE, NOW - 100),
            held_gpu_s=1800.0,
            last=held,
        )
        for number in range(101, 107)
    ]
    world = controller.world
    (number,) = world.active
    bands, found = [], None
    for others in (ended[:1], ended):
        jobs = {**{each.id: each for each in others}, number: world.jobs[number]}
        found = forecast(replace(world, jobs=jobs, next_job=200), world.jobs[number], PROFILES, NOW)
        assert found is not None
        bands.append((found["probability_low"], found["probability"], found["probability_high"]))
        assert found["probability_low"] <= found["probability"] <= found["probability_high"]
    assert found is not None
    assert found["basis"] == "6 jobs of train.py"
    assert ": from 6 jobs of train.py;" in found["text"]
    widths = [high - low for low, _, high in bands]
    assert widths[0] > widths[1]
    assert bands[1][1] > 0.6, "on 4 GPUs in half of the time"


def test_another_objective_is_said_to_be_one(controller: Controller) -> None:
    controller.step([cmd.ChooseObjective("jct")], NOW)
    found = foreseen(controller, submit(controller, deadline=NOW + 4 * 3600))
    assert found is not None
    lines: Any = found["lines"]
    first, meanwhile, more = lines
    assert first.endswith(" % likely under hpcdl config objective deadline (now jct)")
    assert len(first) <= 78
    assert meanwhile == "under jct it comes before other jobs once it is at risk"
    assert more.startswith("if nothing else comes, it is done by ")
    assert found["text"] == f"{first}; {meanwhile}; {more}"
    controller.step([cmd.ChoosePolicy("fifo")], NOW)
    found = foreseen(controller, submit(controller, deadline=NOW + 4 * 3600))
    assert found is not None
    assert " likely under the policy adaptive and the objective deadline (now fifo)" in str(found["text"])


def test_a_forecast_that_fails_is_no_failed_submit(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise IndexError("out of bounds")

    monkeypatch.setattr("hpcdl.adaptive.forecast.estimate_deadline", fails)
    assert foreseen(controller, submit(controller, deadline=NOW + 600)) is None
    assert "could not be predicted" in caplog.text
