"""The latency that an inference is answered with."""

from copy import copy
from typing import Any

import pytest

from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import MemoryJournal
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.arrays import Array
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.latency import LatencyModel, Stretch
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import GpuInfo
from hpcdl.daemon.api.latency import latencies
from hpcdl.daemon.api.learnt import predicted_text
from hpcdl.daemon.learner import Learner
from hpcdl.policies import all_policies
from tests.core.controller.test_type_profiles import Story

FLAT = LatencyModel((Stretch(4, 64, (64.0, 0.0, 0.0)),), 0.0, 0.0, synchronises=False)
KNOWN = Profile("p", ((1, 1, 1.0), (1, 2, 2.0)), startup_s=10.0, batch=64, latency=FLAT)


def latency_of(story: Story, number: int, profiles: Profiles) -> dict[str, Any]:
    found: dict[str, Any] = latencies(story.world, [story.world.jobs[number]], profiles, story.at)[number]["latency"]
    return found


def test_of_a_type_that_was_seen_it_is_answered_at_once() -> None:
    story = Story()
    for batch in (8, 16, 64):
        story.train(batch, rate=400 / (batch + 10), kind="inference")
    profiles = Learner(lambda: story.world).profiles({})
    found = latency_of(story, story.submit(32, kind="inference", steps=1000), profiles)
    assert [(place["kind"], place["nodes"], place["gpus"]) for place in found["placements"]] == [
        ("v100", 1, gpus) for gpus in (1, 2, 3, 4)
    ]
    first, *_, last = found["placements"]
    assert first["seconds"] == pytest.approx(2.0 + 1000 * first["step_s"])
    assert first["low_s"] < first["seconds"] < first["high_s"]
    assert last["seconds"] < first["seconds"] / 2
    assert found["text"].startswith("its latency is about 1 min 44 s (")
    assert found["text"].endswith("predicted by GENIE's model from batch sizes 8,16,64")
    steps = latency_of(story, story.submit(32, kind="inference", steps=None), profiles)
    assert steps["placements"][0]["seconds"] is None
    assert steps["text"].startswith("one of its steps takes (--steps N says how many) about 102 ms on 1 GPU, ")


def test_what_is_not_known_is_said() -> None:
    story = Story()
    profiles = Learner(lambda: story.world).profiles({})
    unknown = "nothing says its rate at batch size 32: no trainer of its type has said what its model is made of"
    for batch, why in (
        (32, f"{unknown}; hpcdl profile run --light --kind inference measures it"),
        (None, "it says no batch size: --batch B"),
    ):
        found = latency_of(story, story.submit(batch, kind="inference"), profiles)
        assert (found["placements"], found["source"]) == ([], "")
        assert found["text"] == f"its latency is not known: {why}"


def test_that_of_a_profile_is_of_its_batch_size() -> None:
    story = Story()
    profiles = Profiles({"p": KNOWN})
    found = latency_of(story, story.submit(32, kind="inference", profile="p", steps=100), profiles)
    assert [place["seconds"] for place in found["placements"][:2]] == pytest.approx([10 + 50, 10 + 25])
    assert found["source"] == "profile p"


def test_what_a_named_profile_says_of_batch_sizes_is_said() -> None:
    story, plain = Story(), Profile("plain", KNOWN.points)
    profiles = Profiles({"p": KNOWN, "plain": plain})

    def words(**more: Any) -> str:
        number = story.submit(**more)
        return predicted_text(story.world, story.world.jobs[number], profiles)

    assert words(batch=32, profile="p") == "its rate at batch size 32 is by GENIE's model in profile p"
    assert words(batch=500, profile="p").endswith(", beyond those that were run (4 to 64 on a GPU)")
    assert words(batch=32, profile="plain").startswith("profile plain is the same for all batch sizes")
    assert words(batch=None, profile="p") == ""


@pytest.mark.parametrize("kind, synchronises", [("training", False), ("inference", True)])
def test_a_model_of_the_other_kind_is_refused(kind: str, synchronises: bool) -> None:
    model = LatencyModel(FLAT.stretches, 0.0, 0.0, synchronises=synchronises)
    profiles = Profiles({"p": Profile("p", KNOWN.points, batch=64, latency=model)})
    controller = Controller(MemoryJournal(), all_policies(), profiles)
    gpus = (GpuInfo(0, "g0", "Tesla V100"),)
    controller.step([cmd.Inventory("n1", gpus, 8, 1, 1, "boot", "log", False)], 1.0)
    spec = JobSpec(("python", "x.py"), "x", profile="p", kind=kind)
    (answer,) = controller.step([cmd.Submit((spec,), "r")], 2.0)
    assert isinstance(answer, cmd.CommandRefused)
    other = "training" if synchronises else "inference"
    assert str(answer).startswith(f"profile p is of {other}, the job is {kind}: another --kind, or another profile")
    assert not controller.world.jobs


def test_a_deadline_by_class_is_computed_from_what_was_seen_of_the_type() -> None:
    story = Story()
    for batch in (8, 16, 64):
        story.train(batch, rate=400 / (batch + 10))
    journal = MemoryJournal()
    controller = Controller(journal, all_policies(), Learner(lambda: story.world).profiles({}))
    controller.world = copy(story.world)
    controller.world.seq = 0  # its journal is empty

    def deadline(at: int = 1, **more: Any) -> float:
        spec = JobSpec(("python", "train.py"), "x", ect="prior", steps=1000, **({"model": "ResNet"} | more))
        entry = cmd.Entry(spec, Array(sweep=(("bs", ("8", "32")),))) if spec.batch_sweep else spec
        (answer,) = controller.step([cmd.Submit((entry,), f"r{at}{more}")], story.at)
        if isinstance(answer, cmd.CommandRefused):
            raise answer
        (found,) = {controller.world.jobs[number].spec.deadline for number in answer}
        return float(found or 0.0) - story.at

    assert deadline(batch_size=16) == pytest.approx(2 + 1000 * 26 / 400, rel=0.1)
    assert deadline(batch_size=32) == pytest.approx(2 + 1000 * 42 / 400, rel=0.1)
    assert deadline(batch_sweep="bs") == deadline(2, batch_size=32), "of a sweep that of the longest"
    for more in ({"batch_size": None}, {"batch_size": 32, "model": "other"}):
        with pytest.raises(cmd.CommandRefused, match="--steps and jobs of its model, batch size and script"):
            deadline(**more)
