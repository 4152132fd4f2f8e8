"""Which callbacks of a Keras fit change without being saved. What is saved is in tests/frameworks/test_keras.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcdl.trainer import keras_callbacks


class Callback:
    """In the place of Keras' own."""

    def __init__(self) -> None:
        self.params: dict[str, Any] = {}
        self.best: float | None = None

    def set_params(self, params: dict[str, Any]) -> None:
        self.params = params


class Lambda(Callback):
    def __init__(self, on_epoch_end: Callable[[int], object]) -> None:
        super().__init__()
        self.on_epoch_end = on_epoch_end


for kind in (Callback, Lambda):
    kind.__module__ = "keras.src.callbacks"


class Still(Callback):
    """It has what it was given, and nothing of a fit's."""

    def __init__(self, every: int, folder: str) -> None:
        super().__init__()
        self.every, self.folder = every, folder

    def on_epoch_end(self, epoch: int) -> None:
        self.best = epoch  # Keras' own attribute


class Moving(Still):
    def __init__(self) -> None:
        super().__init__(5, "out")
        self.seen = 0
        self.losses: list[float] = []

    def on_epoch_end(self, epoch: int) -> None:
        self.seen += 1


class Saved(Moving):
    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


table: list[int] = []


def test_what_changes_and_is_not_saved_is_named() -> None:
    assert keras_callbacks._unsaved(Still(5, "out")) == []
    assert keras_callbacks._unsaved(Moving()) == ["seen", "losses"]
    assert keras_callbacks._unsaved(Saved()) == []


def test_a_lambda_changes_what_it_names() -> None:
    mine: list[int] = []
    number = 5
    assert keras_callbacks._unsaved(Lambda(print)) == []
    assert keras_callbacks._unsaved(Lambda(lambda epoch: print(epoch + number))) == []
    assert keras_callbacks._unsaved(Lambda(lambda epoch: mine.append(epoch))) == ["mine"]
    assert keras_callbacks._unsaved(Lambda(lambda epoch: table.append(epoch))) == ["table"]
