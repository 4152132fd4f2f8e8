"""A small neural network in NumPy: real stochastic gradient descent on data that it makes itself.

The same model and seed give the same bits, on however many GPUs, and in however many pieces: its state is the weights,
the optimiser's momentum and the generator of random numbers. Import it only once BLAS is limited to one thread.
"""

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

ARRAYS = "arrays.npz"
RANDOM = "random.json"

_EXAMPLES, _INPUTS, _HIDDEN, _CLASSES, _BATCH = 1024, 24, 48, 8, 32
_RATE, _MOMENTUM, _DROPOUT = 0.05, 0.9, 0.1
_NAMES = ("w1", "b1", "w2", "b2")


class Network:
    """Two layers with dropout, for points in clusters. `model` only decides which data and weights it begins with."""

    def __init__(self, model: str, seed: int) -> None:
        random = np.random.default_rng([seed, *model.encode()])
        centres = random.normal(size=(_CLASSES, _INPUTS))
        self._labels = random.integers(0, _CLASSES, size=_EXAMPLES)
        self._points: Floats = centres[self._labels] + 0.8 * random.normal(size=(_EXAMPLES, _INPUTS))
        self.weights: dict[str, Floats] = {
            "w1": random.normal(size=(_INPUTS, _HIDDEN)) / np.sqrt(_INPUTS),
            "b1": np.zeros(_HIDDEN),
            "w2": random.normal(size=(_HIDDEN, _CLASSES)) / np.sqrt(_HIDDEN),
            "b2": np.zeros(_CLASSES),
        }
        self._momentum = {name: np.zeros_like(value) for name, value in self.weights.items()}
        self._random = random

    def step(self) -> float:
        """One step on a random batch; the loss before it."""
        chosen = self._random.integers(0, _EXAMPLES, size=_BATCH)
        points, labels = self._points[chosen], self._labels[chosen]
        weights = self.weights
        kept = (self._random.random(size=(_BATCH, _HIDDEN)) >= _DROPOUT) / (1 - _DROPOUT)
        hidden = np.maximum(points @ weights["w1"] + weights["b1"], 0.0)
        dropped = hidden * kept
        scores = dropped @ weights["w2"] + weights["b2"]
        scores -= scores.max(axis=1, keepdims=True)
        chances = np.exp(scores)
        chances /= chances.sum(axis=1, keepdims=True)
        loss = -float(np.log(chances[np.arange(_BATCH), labels]).mean())
        chances[np.arange(_BATCH), labels] -= 1.0
        chances /= _BATCH
        back = (chances @ weights["w2"].T) * kept * (hidden > 0)
        slopes = {"w1": points.T @ back, "b1": back.sum(axis=0), "w2": dropped.T @ chances, "b2": chances.sum(axis=0)}
        for name in _NAMES:
            self._momentum[name] = _MOMENTUM * self._momentum[name] - _RATE * slopes[name]
            weights[name] = weights[name] + self._momentum[name]
        return loss

    def save(self, folder: Path) -> None:
        """The whole training state, into an empty folder."""
        arrays = self.weights | {f"momentum_{name}": value for name, value in self._momentum.items()}
        with (folder / ARRAYS).open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        (folder / RANDOM).write_text(json.dumps(self._random.bit_generator.state))

    def load(self, folder: Path) -> None:
        """What `save` wrote. Nothing is changed where it raises (OSError, ValueError, KeyError)."""
        state = json.loads((folder / RANDOM).read_text())
        try:
            with np.load(folder / ARRAYS, allow_pickle=False) as arrays:
                weights = {name: arrays[name] for name in _NAMES}
                momentum = {name: arrays[f"momentum_{name}"] for name in _NAMES}
        except zipfile.BadZipFile as error:
            raise ValueError(f"{folder / ARRAYS} is damaged: {error}") from error
        self._random.bit_generator.state = state
        self.weights, self._momentum = weights, momentum

    def digest(self) -> str:
        """SHA-256 of the weights, bit for bit."""
        total = hashlib.sha256()
        for name in _NAMES:
            total.update(np.ascontiguousarray(self.weights[name]).tobytes())
        return total.hexdigest()
