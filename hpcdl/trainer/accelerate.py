"""Loops on Hugging Face's accelerate, suspended at the end of an optimizer step and resumed bit for bit.

The checkpoint is what `Accelerator.save_state` writes. Beside it is what that leaves out: each rank's place in the
data, the random states that its batches were read by, and the generator that shuffles. The script imports accelerate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcdl.trainer import completion
from hpcdl.trainer.boundaries import Boundaries, changed, read_place, write_place
from hpcdl.trainer.parts import OWN, check_parts, own_states, set_own_states, shared_parts
from hpcdl.trainer.resumable_loader import ResumableLoader
from hpcdl.trainer.values import Values as Values  # `suspendable.Values` of a script

STATE = "accelerate"


def epochs(
    accelerator: Any, loader: Any, total: int, *, every: int | None = None, replay: bool = True, **parts: Any
) -> Iterator[tuple[int, Iterable[Any]]]:
    """Yields (epoch, batches) from 0, or from what was resumed, up to `total` - 1. `batches`: those still to do of
    `loader`, which the accelerator has prepared. Call it on every rank, once all is prepared.

    The end of the inner loop's body is a boundary wherever `accelerator.sync_gradients` is true: there a checkpoint is
    written every `every` optimizer steps, and on a suspend. What is neither model, optimizer, scheduler nor loader the
    script gives to `accelerator.register_for_checkpointing`; random generators and `Values`, of which each rank has its
    own, are `parts`. `replay`: see `hf.train`. A checkpoint is resumed by as many ranks as wrote it; raises
    RuntimeError for others, ValueError for a loader whose place cannot be known, TypeError for another part.
    """
    check_parts(parts)
    if shared := shared_parts(parts):
        raise TypeError(f"{', '.join(shared)}: give that to accelerator.register_for_checkpointing")
    if not hasattr(loader, "base_dataloader"):
        raise ValueError("the loader must be what accelerator.prepare has returned")
    if getattr(loader, "use_stateful_dataloader", False):
        raise ValueError("hpcdl keeps the place in the data: leave use_stateful_dataloader out")
    boundaries = Boundaries(every)
    if not boundaries.active:
        yield from ((epoch, loader) for epoch in range(total))
        return
    training = _Training(accelerator, loader, total, boundaries, replay, parts)
    yield from boundaries.epochs(training, total)


class _Training:
    """`epoch`: the first one to do. `step`: how many optimizer steps are done."""

    def __init__(
        self,
        accelerator: Any,
        loader: Any,
        total: int,
        boundaries: Boundaries,
        replay: bool,
        parts: Mapping[str, Any],
    ) -> None:
        from hpcdl.trainer.torch import Ranks

        self._accelerator, self._boundaries, self._parts = accelerator, boundaries, parts
        self._data, self._loader = ResumableLoader.within(loader, replay)
        self._place: dict[str, Any] = {}  # to go on from
        self._at: dict[str, Any] = {}  # where it is, after a step
        self.epoch = self.step = 0
        if (found := boundaries.resume()) is not None:
            place = read_place(found.path)
            if place is None or place["ranks"] != accelerator.num_processes:
                raise RuntimeError(f"{found.path} is not of {accelerator.num_processes} ranks, as this training is")
            accelerator.load_state(str(found.path / STATE))
            self._place, self.epoch, self.step = place, place["epoch"], found.step
            self._at = {name: place[name] for name in ("epoch", "end", "data", "shuffle")}
            if place["end"] and completion.is_last(found.path):
                _set_shuffle(self._loader, place["shuffle"])
                self._place, self.epoch = {}, self.epoch + 1
            set_own_states(parts, place.get(OWN, {}))
            self._data.random.restore(place["random"])
        self._total = self._steps(total)
        boundaries.begin(Ranks(), self.step)

    def _steps(self, epochs: int) -> int | None:
        try:
            batches = len(self._loader)
        except TypeError:  # of an iterable dataset
            return None
        number = int(self._accelerator.gradient_accumulation_steps)
        whole = self._accelerator.gradient_state.sync_with_dataloader  # an epoch's last batch ends a step
        return epochs * -(-batches // number) if whole else epochs * batches // number

    def batches(self, epoch: int) -> Iterator[Any]:
        """Those of the epoch that are still to do."""
        place, self._place = self._place, {}
        if place.get("end"):
            _set_shuffle(self._loader, place["shuffle"])
            return  # what the script does at the end of an epoch is still to do
        self._loader.set_epoch(epoch)
        if place:
            _set_shuffle(self._loader, place["shuffle"])
            self._data.go_on({**place["data"], "random": place["random"]})
        before = _shuffle(self._loader)
        for batch in self._loader:
            self._data.give_up()  # where rank 0 reads the data of all, the others have not read any
            yield batch
            if self._accelerator.sync_gradients:
                self.step += 1
                self._end_step(epoch, before)

    def _end_step(self, epoch: int, before: dict[str, Any]) -> None:
        """`before`: what shuffles, as the epoch began."""
        end = self._loader.end_of_dataloader
        self._at = {"epoch": epoch, "end": end, "shuffle": _shuffle(self._loader) if end else before}
        self._at["data"] = self._data.place()
        self._boundaries.at(self.step, self._total, self.save)

    def save(self, folder: Path) -> None:
        """Write a checkpoint of where it is. Collective."""
        place = {**self._at, "ranks": self._accelerator.num_processes}
        place.update({OWN: own_states(self._parts), "random": self._data.random.capture()})
        naming = self._accelerator.project_configuration
        with changed(naming, automatic_checkpoint_naming=False, iteration=naming.iteration):
            self._accelerator.save_state(str(folder / STATE))
        write_place(folder, place)  # last, as in hf.py


def _shuffle(loader: Any) -> dict[str, Any]:
    """What decides how a loader shuffles, but for PyTorch's own random state: generators, and the seed of accelerate's
    sampler."""
    states = [bytes(each.get_state().tolist()).hex() for each in _generators(loader)]
    return {"generators": states, "seed": getattr(loader.get_sampler(), "initial_seed", None)}


def _set_shuffle(loader: Any, shuffle: dict[str, Any]) -> None:
    import torch

    for generator, state in zip(_generators(loader), shuffle["generators"]):
        generator.set_state(torch.tensor(list(bytes.fromhex(state)), dtype=torch.uint8))
    if shuffle["seed"] is not None:
        loader.get_sampler().initial_seed = shuffle["seed"]


def _generators(loader: Any) -> list[Any]:
    import torch

    found = [getattr(each, "generator", None) for each in (loader.get_sampler(), loader)]
    found.append(getattr(loader, "synchronized_generator", None))
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())
