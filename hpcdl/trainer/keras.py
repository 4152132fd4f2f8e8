"""A Keras 3 callback that resumes `fit`, checkpoints it and suspends it at the end of a batch.

Keras is imported when the callback is made. Works on the PyTorch and TensorFlow backends. Weights, optimizer, metrics
and random states are saved; a fit that was suspended in the middle of an epoch shuffles that epoch as before, passes
over the batches that are done, and goes on with the next.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hpcdl.trainer import loop, rng
from hpcdl.trainer.session import attach, log

ARRAYS = "variables.npz"
POSITION = "position.json"


def suspendable(model: Any, *, every: int | None = None, ranks: loop.Ranks | None = None) -> Any:
    """The callback, for a compiled model:

        resume = suspendable(model, every=500)
        model.fit(x, y, epochs=10, callbacks=[resume], initial_epoch=resume.initial_epoch)

    A checkpoint is written every `every` batches, at the end of each epoch, and on a suspend. Raises RuntimeError on
    a backend that keeps its variables elsewhere during fit.
    """
    import keras

    backend = keras.backend.backend()
    if backend not in ("torch", "tensorflow"):
        raise RuntimeError(f"suspending a Keras fit needs the torch or tensorflow backend, not {backend}")

    class Suspendable(keras.callbacks.Callback):
        """See `suspendable`."""

        def __init__(self) -> None:
            super().__init__()
            self.initial_epoch = 0
            self._session = attach()
            self._ranks = loop.Alone() if ranks is None else ranks
            self._step = self._epoch = self._batch = 0
            self._skip = 0
            self._saved: int | None = None
            self._next = 0 if every is None else every
            self._epoch_random: dict[str, Any] = {}
            self._position: dict[str, Any] | None = None
            self._folder: Path | None = None
            self._trained: Any = None
            found = loop.resume(self._session, self._read_position, self._ranks)
            if found is not None:
                self._folder, self._saved, self._step = found.path, found.step, found.step
                self.initial_epoch = self._read_position(found.path)
                self._next += found.step

        def _read_position(self, folder: Path) -> int:
            import numpy

            position = json.loads((folder / POSITION).read_text())
            with numpy.load(folder / ARRAYS, allow_pickle=False) as arrays:
                for name in arrays.files:
                    arrays[name]  # reads it: the archive's checksums tell a torn file
            self._position = position
            return int(position["epoch"])

        # fit's own calls, in their order

        def on_train_begin(self, logs: Any = None) -> None:
            if self._folder is not None:
                _load(model, self._folder, ("model", "optimizer"))
            self._session.ready(self._step)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._epoch, self._batch = epoch, 0
            if self._position is not None and epoch == self._position["epoch"]:
                self._skip = self._position["batch"]
                rng.restore(self._position["epoch_random" if self._skip else "random"])
                if self._skip:
                    self._trained = model.train_function
                    model.train_function = self._pass_over
            self._epoch_random = rng.capture()
            if not self._skip:
                self._position = None

        def _pass_over(self, data: Any) -> dict[str, Any]:
            if backend == "tensorflow":  # is given the iterator, where PyTorch's trainer is given the batches
                for _ in range(model.steps_per_execution):
                    next(data)
            return {}

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            done = batch + 1
            if self._skip:
                if done >= self._skip and self._position is not None and self._folder is not None:
                    model.train_function = self._trained
                    self._skip = 0
                    _load(model, self._folder, ("metrics",))
                    rng.restore(self._position["random"])
                    self._position = None
                    self._batch = done
                return
            self._step += done - self._batch
            self._batch = done
            self._session.progress(self._step)
            asked = self._ranks.agree(self._session.should_suspend())
            if asked:
                loop.suspend(self._session, self._step, self._write, self._ranks, needed=self._saved != self._step)
            if every is not None and self._step >= self._next:
                self._next += every
                self._periodic()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self._epoch, self._batch = epoch + 1, 0
            if self._saved != self._step:
                self._periodic()

        def on_train_end(self, logs: Any = None) -> None:
            self._ranks.barrier()
            self._session.done(self._step)

        def _periodic(self) -> None:
            try:
                self._saved = loop.save_now(self._session, self._step, self._write)
            except OSError as error:
                log.warning("the checkpoint of step %d failed, training goes on: %s", self._step, error)

        def _write(self, folder: Path) -> None:
            if not self._session.writer:
                return
            _save(model, folder)
            position = {"epoch": self._epoch, "batch": self._batch, "random": rng.capture()}
            position["epoch_random"] = self._epoch_random
            (folder / POSITION).write_text(json.dumps(position))

    return Suspendable()


def _groups(model: Any) -> dict[str, list[Any]]:
    own = [*model.variables]
    metrics = [each for each in model.metrics_variables if not any(each is other for other in own)]
    return {"model": own, "optimizer": [*model.optimizer.variables], "metrics": metrics}


def _save(model: Any, folder: Path) -> None:
    import keras
    import numpy

    arrays = {}
    for group, variables in _groups(model).items():
        for number, variable in enumerate(variables):
            array = keras.ops.convert_to_numpy(variable.value)
            # NumPy has no bfloat16 and its like of its own; all of them fit into float32 exactly.
            arrays[f"{group}.{number}"] = array if array.dtype.kind in "biufc" else array.astype("float32")
    with open(folder / ARRAYS, "wb") as file:
        numpy.savez(file, **arrays)


def _load(model: Any, folder: Path, groups: tuple[str, ...]) -> None:
    import numpy

    with numpy.load(folder / ARRAYS, allow_pickle=False) as arrays:
        for group in groups:
            variables = _groups(model)[group]
            saved = sum(name.startswith(f"{group}.") for name in arrays.files)
            if saved != len(variables):
                raise ValueError(f"the checkpoint has {saved} variables of the {group}, this model {len(variables)}")
            for number, variable in enumerate(variables):
                variable.assign(arrays[f"{group}.{number}"])
