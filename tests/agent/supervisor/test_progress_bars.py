"""Steps from real progress bars. Recordings: tqdm 4.70, transformers 5.23, lightning 2.6, keras 3.15, to a pipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdl.agent.supervisor.output import ProgressReader
from hpcdl.agent.supervisor.packets import ProgressPacket
from hpcdl.agent.supervisor.progress_bars import PRESETS
from hpcdl.core.model.job import PROGRESS, JobSpec

RECORDINGS = Path(__file__).parents[2] / "recordings" / "progress"


def read(name: str, steps: int | None, size: int) -> tuple[list[tuple[int, int | None]], bool]:
    """Each step and total, and whether the training was said to be over."""
    notes: list[str] = []
    reader = ProgressReader(None, steps, notes.append, name.split("_")[0])
    said = (RECORDINGS / f"{name}.txt").read_bytes()
    found: list[ProgressPacket | None] = [reader.feed(said[at : at + size]) for at in range(0, len(said), size)]
    found.append(reader.finish())
    assert not notes
    told = [(each.step, each.total) for each in found if each is not None]
    return [each for place, each in enumerate(told) if not place or told[place - 1] != each], reader.complete


@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize(
    "name,steps,last,over",
    [
        ("tqdm_one_bar_and_others_between", None, (300, 300), False),
        ("tqdm_one_bar_and_others_between", 300, (300, 300), True),
        ("tqdm_a_bar_for_each_epoch_and_evaluations", None, (60, None), False),
        ("tqdm_a_bar_for_each_epoch_and_evaluations", 60, (60, 60), True),
        ("hf_training_with_evaluations_and_a_shard_written", None, (40, 40), True),
        ("hf_training_with_evaluations_and_a_shard_written", 40, (40, 40), True),
        ("hf_an_evaluation_before_the_training", None, (40, 40), True),
        ("hf_an_evaluation_before_the_training", 40, (40, 40), True),
        ("lightning_three_epochs_with_validation", None, (60, None), True),
        ("lightning_three_epochs_with_validation", 60, (60, 60), True),
        ("lightning_rich_only_the_last_lines", None, (60, 60), True),
        ("keras_two_fits_and_an_evaluation", None, (100, 100), False),
        ("keras_two_fits_and_an_evaluation", 100, (100, 100), True),
    ],
)
def test_the_step_is_that_of_the_training(
    name: str, steps: int | None, last: tuple[int, int | None], over: bool, size: int
) -> None:
    told, complete = read(name, steps, size)
    assert told[-1] == last
    assert complete is over, "a bar that is full says nothing by itself"
    trained = told if "before" not in name or steps else told[told.index((0, 40)) :]
    assert [step for step, _ in trained] == sorted(step for step, _ in trained)


def test_an_evaluation_that_is_through_completes_nothing() -> None:
    reader = ProgressReader(None, None, print, "hf")
    bar = "100%|\u2588\u2588| 50/50 [00:00<00:00, 10887.51it/s]\n"
    assert reader.feed(bar.encode()) == ProgressPacket(50, 50, None)
    assert not reader.complete
    assert reader.feed(b"Writing model shards: 100%|#| 1/1 [00:00<00:00]\n") is None


def test_another_training_takes_back_that_it_is_over() -> None:
    """Lightning's search for a learning rate ends with the same words."""
    reader = ProgressReader(None, None, print, "lightning")
    reader.feed(b"Epoch 0: 100%|##| 20/20 [00:00<00:00]\n`Trainer.fit` stopped: `max_steps=20` reached.\n")
    assert reader.complete
    reader.feed(b"Epoch 0: 5%|##| 1/20 [00:00<00:00]\n")
    assert not reader.complete


def test_an_expression_passes_over_bars_of_other_totals_once_the_steps_are_said() -> None:
    reader = ProgressReader(r"(?P<step>\d+)/(?P<total>\d+) \[", 500, print)
    assert reader.feed(b"499/500 [\n") == ProgressPacket(499, 500, None)
    assert reader.feed(b"Writing model shards: 1/1 [\n") is None
    assert not reader.complete
    reader.feed(b"500/500 [\n")
    assert reader.complete
    unnamed = ProgressReader(r"(\d+)/\d+ \[", 500, print)
    assert unnamed.feed(b"1000/1000 [\n") is None
    unsaid = ProgressReader(r"(?P<step>\d+)/(?P<total>\d+) \[", None, print)
    assert unsaid.feed(b"1/1 [\n") == ProgressPacket(1, 1, None)
    assert not unsaid.complete, "whose bar it is nobody said"


def test_presets_are_those_that_a_job_may_name() -> None:
    assert tuple(PRESETS) == PROGRESS
    with pytest.raises(ValueError, match="progress must be one of tqdm, hf, lightning, keras"):
        JobSpec(("x",), "x", progress="fastai")
    with pytest.raises(ValueError, match="give one of them"):
        JobSpec(("x",), "x", progress="hf", progress_regex="(1)")
