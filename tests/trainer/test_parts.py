"""What can be a part of a training, and what is refused before a step of it is trained."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from hpcdl.trainer import parts, session
from hpcdl.trainer.session import Session
from hpcdl.trainer.values import Values


class Counter:
    """A part of the script's own."""

    def __init__(self, state: Any = 0) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state["state"]


class Half:
    """What it saves it cannot load."""

    def state_dict(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("part", [[], 0.0, random, random.SystemRandom(), Counter, Half(), object()])
def test_a_part_without_a_state_is_refused_by_name(part: Any) -> None:
    with pytest.raises(TypeError, match=r"^losses has no state that hpcdl can save: .*suspendable.Values\(...\)$"):
        parts.check_parts({"model": Counter(), "losses": part})


def test_values_that_cannot_be_saved_are_refused() -> None:
    with pytest.raises(TypeError, match="best is of object"):
        parts.check_parts({"sums": Values(best=object())})


def test_each_rank_keeps_its_own(caplog: pytest.LogCaptureFixture) -> None:
    given: dict[str, Any] = {"model": Counter(), "sums": Values(running=1.5), "rng": random.Random(7), "none": None}
    parts.check_parts(given)
    assert list(parts.shared_parts(given)) == ["model"]
    given["rng"].random()
    state = json.loads(json.dumps(parts.capture_own(given)))
    wanted = given["rng"].random(), random.random()
    others: dict[str, Any] = {"model": Counter(), "sums": Values(running=0.0), "rng": random.Random(0)}
    parts.restore_own(others, state)
    assert others["sums"].running == 1.5
    assert (others["rng"].random(), random.random()) == wanted
    assert not caplog.messages
    parts.restore_own({"new": Values(running=0.5)}, state)
    assert caplog.messages == ["the checkpoint has nothing of the part new, which begins anew"]


def test_a_torch_training_is_refused_at_its_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at the first save, which may be hours later, nor at the resume, when all is lost."""
    torch = pytest.importorskip("torch")
    numpy = pytest.importorskip("numpy")
    import hpcdl.trainer.torch as suspendable

    monkeypatch.setattr(session, "_session", Session({}, 0, tmp_path))
    model = torch.nn.Linear(1, 1)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"losses": []}, "losses has no state"),
        ({"best": Counter(numpy.float64(1))}, "the state of best could be saved, but not loaded again"),
        ({"best": Counter(lambda: 0)}, "the state of best could be saved, but not loaded again"),
    ]
    for refused, words in cases:
        with pytest.raises(TypeError, match=words):
            suspendable.steps(10, model=model, **refused)
        with pytest.raises(TypeError, match=words):
            suspendable.epochs([1], 10, model=model, **refused)
    scheduler = torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD(model.parameters()), lambda epoch: 1.0)
    suspendable.check({"model": model, "scheduler": scheduler, "count": Counter([torch.ones(2)]), "none": None})


@pytest.mark.parametrize("asynchronous", [False, True])
def test_own_parts_go_on_in_a_loop_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    torch = pytest.importorskip("torch")
    numpy = pytest.importorskip("numpy")
    import hpcdl.trainer.torch as suspendable

    def train(folder: Path, total: int) -> list[float]:
        monkeypatch.setattr(session, "_session", Session({}, 0, folder))
        generators = {
            "of_numpy": numpy.random.default_rng(1),
            "of_python": random.Random(1),
            "of_torch": torch.Generator().manual_seed(1),
        }
        sums = suspendable.Values(running=0.0, seen=[])
        loop = suspendable.steps(total, every=3, asynchronous=asynchronous, sums=sums, **generators)
        for step in loop:
            drawn = generators["of_numpy"].random() + generators["of_python"].random()
            sums.running += drawn + torch.rand(1, generator=generators["of_torch"]).item()
            sums.seen.append(step)
        assert sums.seen == list(range(total))
        return [sums.running, *(each.random() for name, each in generators.items() if name != "of_torch")]

    whole = train(tmp_path / "whole", 10)
    train(tmp_path / "parts", 4)
    assert train(tmp_path / "parts", 10) == whole


def test_accelerate_takes_only_what_is_each_ranks_own() -> None:
    from hpcdl.trainer import accelerate

    with pytest.raises(TypeError, match=r"^count: give that to accelerator.register_for_checkpointing$"):
        next(accelerate.epochs(None, None, 1, count=Counter(), sums=accelerate.Values()))
    with pytest.raises(TypeError, match="losses has no state"):
        next(accelerate.epochs(None, None, 1, losses=[]))
