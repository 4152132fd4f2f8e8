"""PyTorch loops over the epochs of a DataLoader, suspended at the end of a step and resumed bit for bit.

Beside the parts of a training (`torch.py`) a checkpoint has each rank's place in the data: the epoch, the batches that
are done, the random states with which the epoch began, and the generator that shuffles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcdl.trainer import completion
from hpcdl.trainer import torch as parts_of
from hpcdl.trainer.boundaries import Boundaries, read_place, write_place
from hpcdl.trainer.checkpoints import Checkpoint
from hpcdl.trainer.resumable_loader import ResumableLoader
from hpcdl.trainer.sharded import Parts


class EpochBatches:
    """Those of an epoch that are still to do. `done`: how many were done before, in an earlier attempt."""

    def __init__(self, batches: Iterable[Any], done: int, length: int | None) -> None:
        """`length`: of the whole epoch, None where nobody knows."""
        self._batches, self.done, self._length = batches, done, length

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("nobody knows how many batches an iterable dataset has")
        return self._length - self.done


def epochs(
    loader: Any, total: int, every: int | None, accumulate: int, parts: Mapping[str, Any]
) -> Iterator[tuple[int, EpochBatches]]:
    """See `hpcdl.trainer.torch.epochs`."""
    if accumulate < 1:
        raise ValueError(f"accumulate {accumulate} must be 1 or more")
    boundaries = Boundaries(every)
    if not boundaries.active:
        yield from ((epoch, EpochBatches(loader, 0, _length(loader))) for epoch in range(total))
        return
    training = _DataEpochs(loader, total, accumulate, parts, boundaries)
    yield from boundaries.epochs(training, total)


class _DataEpochs:
    """`epoch`: the first one to do. `step`: how many steps are done."""

    def __init__(
        self, loader: Any, total: int, accumulate: int, parts: Mapping[str, Any], boundaries: Boundaries
    ) -> None:
        self._ranks = parts_of.Ranks()
        self._boundaries, self._accumulate, self._loader = boundaries, accumulate, loader
        self._data = ResumableLoader(loader, replay=True)
        self._parts = dict(parts)
        spread = any(parts_of.is_spread(each) for each in parts.values())
        self._shards = Parts(parts, self._ranks.own_group()) if spread else None
        self._place: dict[str, Any] = {}  # to go on from
        self._at: dict[str, Any] = {}  # where it is, after a step
        self.epoch = self.step = 0
        self._length = _length(loader)
        self._total = None if self._length is None else total * (self._length // accumulate)
        if (found := boundaries.resume()) is not None:
            self._load(found)
        boundaries.begin(self._ranks, self.step)

    def _load(self, found: Checkpoint) -> None:
        place = read_place(found.path)
        if place is None or place["ranks"] != self._ranks.size:
            raise RuntimeError(f"{found.path} is not of {self._ranks.size} ranks, as this training is")
        if self._shards is not None:
            self._shards.load(found.path)
        else:
            parts_of.load(found.path, **self._parts)
        self._place, self.epoch, self.step = place, place["epoch"], found.step
        self._at = {name: place[name] for name in ("epoch", "end", "data", "generators")}
        if place["end"] and completion.is_last(found.path):
            _set_generators(self._loader, place["generators"])
            self._place, self.epoch = {}, self.epoch + 1
        self._data.random.restore(place["random"])

    def batches(self, epoch: int) -> EpochBatches:
        """Those of the epoch that are still to do."""
        place, self._place = self._place, {}
        return EpochBatches(self._read(epoch, place), place["data"]["done"] if place else 0, self._length)

    def _read(self, epoch: int, place: Mapping[str, Any]) -> Iterator[Any]:
        if place:
            _set_generators(self._loader, place["generators"])
            if place["end"]:
                return  # what the script does at the end of an epoch is still to do
            self._data.go_on({**place["data"], "random": place["random"]})
        before = _generators_state(self._loader)
        for batch in self._data:
            yield batch
            if self._data.place()["done"] % self._accumulate == 0:
                self.step += 1
                self._end_step(epoch, before)

    def _end_step(self, epoch: int, before: list[str]) -> None:
        """`before`: the generators' states as the epoch began."""
        data = self._data.place()
        end = data["done"] == self._length
        self._at = {"epoch": epoch, "end": end, "data": data}
        self._at["generators"] = _generators_state(self._loader) if end else before
        self._boundaries.at(self.step, self._total, self.save)

    def save(self, folder: Path) -> None:
        """Write a checkpoint of where it is. Collective."""
        place = {**self._at, "ranks": self._ranks.size, "random": self._data.random.capture()}
        if self._shards is not None:
            self._shards.save(folder)
        else:
            parts_of.save_parts(folder, self._parts, self._ranks)
        write_place(folder, place)


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # of an iterable dataset
        return None


def _generators(loader: Any) -> list[Any]:
    """The generators that a loader, its sampler and its batch sampler draw from, but for PyTorch's own."""
    import torch

    batches = getattr(loader, "batch_sampler", None)
    samplers = (getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
    found = [getattr(each, "generator", None) for each in (loader, *samplers)]
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())


def _generators_state(loader: Any) -> list[str]:
    return [bytes(each.get_state().tolist()).hex() for each in _generators(loader)]


def _set_generators(loader: Any, states: list[str]) -> None:
    import torch

    for generator, state in zip(_generators(loader), states):
        generator.set_state(torch.tensor(list(bytes.fromhex(state)), dtype=torch.uint8))
