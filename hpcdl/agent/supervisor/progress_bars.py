"""The step of a training, read from the progress bars that its framework prints: `--progress tqdm|hf|lightning|keras`.

A program draws many bars: of loading, of mapping, of validation. Each preset knows which one is the training's, and
passes over the others. That a bar is full ends nothing: `complete` is said only by what a framework prints when its
training is over.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x08\x00-\x07]")
_BAR = re.compile(r"(?P<desc>[^|]*?):? *\d+%\|[^|]*\| *(?P<step>[\d.]+[kMG]?)/(?P<total>[\d.]+[kMG]?) \[")
_COUNT = re.compile(r"(?:(?P<desc>.*?): )?(?P<step>\d+)it \[")  # of a loop whose end is not known
_BELOW = "\x1b[A"  # tqdm goes back up after it has drawn a bar below another one
_OTHERS = re.compile(
    r"eval|valid|test|predict|infer|load|download|fetch|map|filter|token|writ|sav|generat|sanity|shard|check|convert",
    re.IGNORECASE,
)
"""Names of bars that are no training's."""
_DIGITS = re.compile(r"\d+")
_POWERS = {"k": 1e3, "M": 1e6, "G": 1e9}


def plain(line: str) -> str:
    """Without escape sequences and backspaces."""
    return _ESCAPES.sub("", line)


class Bars(ABC):
    """The progress of one framework's training, by the lines so far. `steps`: of the whole training, where its user
    said how many they are."""

    complete = False
    """The framework has said that its training is over."""

    def __init__(self, steps: int | None) -> None:
        self.steps = steps
        self._newest = 0

    def take(self, line: str) -> tuple[int, int | None] | None:
        """Step and total after this line, if it is about the training."""
        found = self.read(line)
        if found is not None:
            if found[0] < self._newest:
                self.complete = False  # another training: the one before was to find a learning rate, say
            self._newest = found[0]
        return found

    @abstractmethod
    def read(self, line: str) -> tuple[int, int | None] | None:
        """Step and total after this line, by the rules of one framework."""


class HuggingFace(Bars):
    """The Trainer's bar: without a name, above others, and not one of evaluations before or after the training."""

    _OVER = re.compile(r"'train_runtime'")
    _LOGGED = re.compile(r"^\{'loss'")

    def __init__(self, steps: int | None) -> None:
        super().__init__(steps)
        self._total: int | None = None
        self._full = False
        self._trains = False  # it is known to be the training's

    def read(self, line: str) -> tuple[int, int | None] | None:
        text = plain(line).strip()
        if self._OVER.search(text):
            self.complete = True
        elif self._LOGGED.match(text):
            self._trains = True
        bar = _BAR.match(text)
        if bar is None or bar["desc"].strip():
            return None
        if line.rstrip().endswith(_BELOW):
            self._trains = True  # an evaluation is drawn below it
            return None
        step, total = _number(bar["step"]), _number(bar["total"])
        if self.steps is not None and total != self.steps:
            return None
        if total != self._total:
            if self._total is not None and (self._trains or self.complete or not self._full):
                return None
            self._total = total  # the one before was of an evaluation ahead of the training
        self._full = step >= total
        return step, total


class Lightning(Bars):
    """`Epoch 3:  50%|...| 10/20 [...]`: the steps of all epochs; as tqdm and as rich draw it."""

    _OVER = re.compile(r"`?Trainer\.fit`? stopped: `?max_(epochs|steps|time)")
    _EPOCH = re.compile(r"Epoch (\d+)(?:/(\d+))?:? +(?:\d+%\|[^|]*\||[━╸╺ ]+) *(\d+)/(\d+)\b")

    def __init__(self, steps: int | None) -> None:
        super().__init__(steps)
        self._at = (0, 0)

    def read(self, line: str) -> tuple[int, int | None] | None:
        text = plain(line).strip()
        if self._OVER.search(text):
            self.complete = True
        bar = self._EPOCH.match(text)
        if bar is None:
            return None
        epoch, last, step, each = int(bar[1]), bar[2], int(bar[3]), int(bar[4])
        if (epoch, step) < self._at and not self.complete:
            return None  # an epoch's bar is drawn empty once more before the next one's
        self._at = (epoch, step)
        total = (int(last) + 1) * each if last is not None else self.steps
        return epoch * each + step, self.steps or total


class Keras(Bars):
    """`Epoch 2/3`, then `10/20 ━━━━`: the steps of all epochs, and of one `fit` after the other."""

    _EPOCH = re.compile(r"Epoch (\d+)/(\d+)$")
    _STEPS = re.compile(r"(\d+)/(\d+) (?:\[|━|- )")

    def __init__(self, steps: int | None) -> None:
        super().__init__(steps)
        self._before = 0  # steps of earlier fits
        self._epoch, self._epochs = 0, 0
        self._each: int | None = None
        self._step = 0
        self._open = False  # an epoch's bar is not full yet; others are of evaluations

    def read(self, line: str) -> tuple[int, int | None] | None:
        text = plain(line).strip()
        if epoch := self._EPOCH.match(text):
            if int(epoch[1]) <= self._epoch:
                self._before, self._each = self._step, None
            self._epoch, self._epochs, self._open = int(epoch[1]), int(epoch[2]), True
            return None
        bar = self._STEPS.match(text)
        if bar is None or not self._open:
            return None
        step, each = int(bar[1]), int(bar[2])
        if self._each is not None and each != self._each:
            return None
        self._each, self._open = each, step < each
        self._step = self._before + (self._epoch - 1) * each + step
        return self._step, self.steps or self._before + self._epochs * each


class Tqdm(Bars):
    """Any loop over `tqdm`: of the bars whose names are no others' the largest; one for each epoch counts them all."""

    def __init__(self, steps: int | None) -> None:
        super().__init__(steps)
        self._key: tuple[str, int | None] | None = None
        self._rounds = 0
        self._last = 0

    def read(self, line: str) -> tuple[int, int | None] | None:
        text = plain(line).strip()
        bar = _BAR.match(text) or _COUNT.match(text)
        if bar is None or _OTHERS.search(bar["desc"] or ""):
            return None
        step, total = _number(bar["step"]), _number(bar["total"]) if "total" in bar.groupdict() else None
        if self.steps is not None and total is not None and self.steps % max(1, total):
            return None
        key = (_DIGITS.sub("#", bar["desc"] or "").strip(), total)
        if key != self._key:
            if self._key is not None and (total or 0) <= (self._key[1] or 0):
                return None
            self._key, self._rounds, self._last = key, 0, 0
        if step < self._last and self._last == total:
            self._rounds += 1  # the next epoch's
        self._last = step
        whole = self.steps if self.steps is not None else None if self._rounds else total
        return self._rounds * (total or 0) + step, whole


PRESETS: Mapping[str, Callable[[int | None], Bars]] = {
    "tqdm": Tqdm,
    "hf": HuggingFace,
    "lightning": Lightning,
    "keras": Keras,
}


def _number(text: str) -> int:
    return int(float(text[:-1]) * _POWERS[text[-1]]) if text[-1] in _POWERS else int(float(text))
