"""A job of another batch size than those that were seen of its type."""

import json
from dataclasses import replace
from typing import Any

import pytest

from hpcdl.core.controller import type_profiles
from hpcdl.core.controller.view_builder import Views, build_view
from hpcdl.core.fold import observations
from hpcdl.core.fold.fold import ChangeSet, fold
from hpcdl.core.model import events as ev
from hpcdl.core.model.frozen import from_json, to_json
from hpcdl.core.model.incarnation import Placement, Role, Share
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.latency import LatencyModel, Stretch
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.profile import Observations
from hpcdl.core.model.transitions import IllegalEvent
from hpcdl.core.model.world import GpuInfo, World
from hpcdl.daemon.api.learnt import predicted_text
from hpcdl.daemon.api.profiles import profile_row, profile_rows
from hpcdl.daemon.learner import Learner

MODEL = LatencyModel((Stretch(8, 64, (20.0, 4.0, -0.02)),), gamma=0.0, lambda_=0.0)
TYPE = "resnet @ train.py"


class Story:
    """Events of one world, each at its time; jobs train for a minute at the rates of MODEL, on one GPU."""

    def __init__(self) -> None:
        self.world = World()
        self.at = 0.0
        self.add(
            ev.NodeJoined("n1", tuple(GpuInfo(index, f"n1-{index}", "Tesla V100") for index in range(32)), log_id="n1")
        )

    def add(self, event: ev.Event, after: float = 1.0) -> None:
        self.at += after
        self.world = fold(self.world, [ev.Recorded(self.world.seq + 1, self.at, 1, event)])

    def submit(self, batch: int | None, model: str = "ResNet", **more: Any) -> int:
        number = self.world.next_job
        spec = JobSpec(
            ("python", "train.py"), "a name", model=model, gpus_max=4, batch_size=batch, **{"steps": 10_000, **more}
        )
        self.add(ev.JobSubmitted(number, spec, f"request {number}"))
        return number

    def train(self, batch: int | None, rate: float | None = None, model: str = "ResNet", **more: Any) -> None:
        number = self.submit(batch, model, **more)
        self.add(ev.StartRequested(number, 1, ("n1",), Placement((Share("n1", (number % 32,)),), Role.PRIMARY)))
        self.add(ev.Started(number, 1, 1, "n1", pid=7))
        self.add(ev.TrainerReady(number, 1, 1, "n1"))
        rate = MODEL.rate(batch or 1, 1, 1) / (batch or 1) if rate is None else rate
        for part in range(1, 7):
            self.add(ev.Progressed(number, 1, 1, "n1", step=round(10 * part * rate)), after=10.0)

    def rate(self, batch: int | None, model: str = "ResNet", gpus: int = 1, **more: Any) -> float | None:
        """Steps/s on a node's GPUs that policies see for such a job."""
        number = self.submit(batch, model, **more)
        profile = build_view(self.world, Learner(lambda: self.world).profiles({}), self.at).by_id[number].profile
        return None if profile is None else profile.on("v100").rate(gpus)


def test_observations_are_kept_by_type_and_batch_size() -> None:
    story = Story()
    for batch in (16, 32, None, 16):
        story.train(batch)
    assert [*story.world.observed] == ["resnet batch 32 @ train.py", TYPE, "resnet batch 16 @ train.py"]
    of_type = story.world.observed[TYPE]
    assert of_type.batches == (32, 16)
    assert of_type.rates, "those of the job that says none"
    assert [batch for batch, _ in observations.observations_of_type(story.world, TYPE)] == [16, 32]
    assert not observations.observations_of_type(story.world, "other @ train.py")


def test_what_was_seen_is_the_same_after_a_snapshot_and_old_ones_are_read() -> None:
    story = Story()
    story.train(16)
    plain = json.loads(json.dumps(to_json(story.world.observed[TYPE])))
    assert from_json(Observations, plain) == story.world.observed[TYPE]
    del plain["batches"]
    assert from_json(Observations, plain).batches == ()


def test_only_so_many_batch_sizes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observations, "KEPT_BATCHES", 2)
    story = Story()
    for batch in (8, 16, 32):
        story.train(batch)
    assert story.world.observed[TYPE].batches == (16, 32)
    assert [*story.world.observed] == ["resnet batch 16 @ train.py", TYPE, "resnet batch 32 @ train.py"]


def test_a_job_of_another_batch_size_is_predicted_once_three_were_seen() -> None:
    story = Story()
    story.train(16)
    story.train(64)
    assert story.rate(32) is None, "two batch sizes do not say eq. 7"
    assert story.rate(16) == pytest.approx(MODEL.rate(16, 1, 1) / 16, rel=0.05)
    story.train(8)
    assert story.rate(32) == pytest.approx(MODEL.rate(32, 1, 1) / 32, rel=0.05)
    assert story.rate(32, model="VGG") is None
    assert story.rate(None) is None, "of a job that says no batch size nothing is known"
    story.train(32, rate=1.0)
    assert story.rate(32) == pytest.approx(1.0, rel=0.05), "what was seen comes before what is predicted"


def test_predictions_of_ever_other_types_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type_profiles, "MOST", 5)
    story = Story()
    for batch in (8, 16, 64):
        story.train(batch)
    cache, profiles = type_profiles.TypeProfiles(), Learner(lambda: story.world).profiles({})
    jobs = [JobSpec(("python", "train.py"), "n", model=f"m{number}", batch_size=32) for number in range(20)]
    known = JobSpec(("python", "train.py"), "n", model="ResNet", batch_size=32)
    first = cache.prediction(story.world, known, profiles)
    assert cache.prediction(story.world, known, profiles) == first
    for spec in jobs:
        cache.prediction(story.world, spec, profiles)
    assert max(len(cache._own), len(cache._of_others)) == 5
    assert cache.prediction(story.world, known, profiles) == first


def test_views_follow_what_is_seen_of_other_batch_sizes() -> None:
    story, views = Story(), Views()
    profiles = Learner(lambda: story.world).profiles({})
    number = story.submit(32)
    for batch in (8, 16, 64, 16):
        story.train(batch, rate=None if batch != 16 else 2.0)
        seen = views.build(story.world, profiles, story.at).by_id[number].profile
        again = build_view(story.world, profiles, story.at).by_id[number].profile
        assert seen == again
    assert seen is not None
    kept = views.build(story.world, profiles, story.at + 1).by_id[number].profile
    assert kept is seen, "nothing new was seen"
    story.train(24, rate=3.0, model="vgg")
    assert views.build(story.world, profiles, story.at).by_id[number].profile is seen, "of another type"
    alone = replace(profiles, predict=None)
    assert build_view(story.world, alone, story.at).by_id[number].profile is None
    assert build_view(story.world, Profiles(), story.at).by_id[number].profile is None


def test_the_row_of_a_type_is_its_model() -> None:
    story = Story()
    for batch in (8, 16, 64):
        story.train(batch)
    profiles = Learner(lambda: story.world).profiles({})
    rows = {row["name"]: row for row in profile_rows(story.world, profiles)}
    assert rows[TYPE]["batches"] == [8, 16, 64]
    assert rows[TYPE]["points"] == []
    assert rows["resnet batch 16 @ train.py"]["batches"] == []
    row = profile_row(story.world, profiles, "resnet")
    assert row is not None
    assert row["profile"]["batch"] == 64
    assert row["profile"]["latency"]["stretches"][0]["smallest"] == 8.0


def structured(story: Story, model: str, activations: int | None, batch: int = 32, kind: str = "Conv2d") -> None:
    """A job of this model starts, says what it is made of, and ends before it has shown a rate."""
    number = story.submit(batch, model)
    story.add(ev.StartRequested(number, 1, ("n1",), Placement((Share("n1", (number % 32,)),), Role.PRIMARY)))
    story.add(ev.Started(number, 1, 1, "n1", pid=7))
    story.add(ev.ModelReported(number, 1, 1, "n1", layers=((kind, 10),), parameters=1000, activation_bytes=activations))


def words(story: Story, batch: int, model: str) -> str:
    number = story.submit(batch, model)
    profiles = Learner(lambda: story.world).profiles({})
    return predicted_text(story.world, story.world.jobs[number], profiles)


def test_a_type_that_was_never_profiled_has_the_rates_of_the_most_similar_one() -> None:
    story = Story()
    for batch in (8, 16, 64):
        story.train(batch)
        story.train(batch, rate=1.0 + 8 / batch, model="near")
    structured(story, "ResNet", 200)
    structured(story, "near", 110)
    assert story.rate(32, model="new") is None
    assert words(story, 32, "new") == (
        "nothing says its rate at batch size 32: no trainer of its type has said what its model is made of"
    )
    structured(story, "new", 101)
    near, own = story.rate(32, model="near"), story.rate(32, model="new")
    assert own is not None
    assert own == near
    assert words(story, 32, "new") == (
        "its rate at batch size 32 is that of the most similar type, near @ train.py, predicted by GENIE's model from "
        "batch sizes 8,16,64: 100 % of its layers are of the same kinds, with 1 x the parameters and 1.1 x the bytes "
        "of activations"
    )
    profiles = Learner(lambda: story.world).profiles({})
    shown = build_view(story.world, profiles, story.at).jobs[-1].profile
    assert shown is not None
    assert shown.spread > 0.05
    story.train(32, rate=7.0, model="new")
    assert story.rate(32, model="new") == pytest.approx(7.0, rel=0.05)
    assert words(story, 32, "new") == "", "it is known"
    assert words(story, 16, "new") != ""


def test_no_neighbour_no_answer_and_never_by_name() -> None:
    story = Story()
    for batch in (8, 16, 64):
        story.train(batch)
    structured(story, "ResNet", 100)
    for model, activations, kind in (("resnet2", 201, "Conv2d"), ("resnet-1", 100, "LSTM")):
        structured(story, model, activations, kind=kind)
        assert story.rate(32, model=model) is None
        assert words(story, 32, model) == (
            "nothing says its rate at batch size 32: no type that was profiled is like its model"
        )
    structured(story, "compiled", None)
    assert words(story, 32, "compiled").endswith(
        "its trainer did not say the bytes of its activations (structure.watch(model) of hpcdl.trainer does)"
    )
    structured(story, "few", 100)
    story.train(16, rate=2.0, model="few")
    structured(story, "other", 201)
    assert story.rate(32, model="few") == story.rate(32)
    story.train(16, rate=2.0, model="other")
    assert words(story, 32, "other").startswith(
        "nothing says its rate at batch size 32 (of its type 16 was seen): no type"
    )


def test_views_follow_what_others_show() -> None:
    story, views = Story(), Views()
    profiles = Learner(lambda: story.world).profiles({})
    structured(story, "new", 100)
    number = story.submit(32, "new")
    for batch in (8, 16, 64):
        story.train(batch)
    assert views.build(story.world, profiles, story.at).by_id[number].profile is None
    structured(story, "ResNet", 100)
    seen = views.build(story.world, profiles, story.at).by_id[number].profile
    assert seen is not None
    assert seen == build_view(story.world, profiles, story.at).by_id[number].profile
    story.train(5, rate=3.0, model="vgg")
    none = ChangeSet()
    assert views.build(story.world, profiles, story.at, none).by_id[number].profile == seen
    same = views.build(story.world, profiles, story.at, none).by_id[number].profile
    story.train(7, rate=3.0, model="vgg")
    assert views.build(story.world, profiles, story.at, none).by_id[number].profile is same, "others showed no news"


def test_inference_is_a_type_of_its_own_and_does_not_synchronise() -> None:
    story = Story()
    for batch in (8, 16, 64):
        story.train(batch)
        story.train(batch, rate=400 / (batch + 10), kind="inference")
    assert story.rate(32) == pytest.approx(MODEL.rate(32, 1, 1) / 32, rel=0.05)
    alone, four = (story.rate(32, kind="inference", gpus=gpus) for gpus in (1, 4))
    assert alone == pytest.approx(400 / 42, rel=0.15)
    assert four == pytest.approx(4 * story.rate(8, kind="inference") / 4, rel=0.1)  # type: ignore[operator]
    assert [*story.world.observed][-2:] == ["resnet inference @ train.py", "resnet inference batch 64 @ train.py"]
    structured(story, "ResNet", 100)
    structured(story, "new", 100)
    assert story.rate(32, model="new") is not None
    assert story.rate(32, model="new", kind="inference") is None, "a training says nothing of it"


def test_a_structure_that_is_none_is_illegal() -> None:
    story = Story()
    story.train(16)
    with pytest.raises(IllegalEvent, match="kinds of layers"):
        story.add(ev.ModelReported(1, 1, 1, "n1"))
