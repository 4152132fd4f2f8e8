"""A Keras 3 callback that resumes `fit`, checkpoints it and suspends it at the end of a batch.

Keras is imported when the callback is made. Works on the TensorFlow, PyTorch and JAX backends, and with
`tf.distribute.MirroredStrategy`. Weights, optimizers, metrics and random states are saved; a fit that was suspended in
the middle of an epoch shuffles that epoch as before, passes over the batches that are done, and goes on with the next.
A checkpoint that does not fit the model, variable by variable, raises; nothing is ever loaded in part. What other
callbacks keep is in `keras_callbacks.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from hpcdl.trainer import keras_variables as variables
from hpcdl.trainer import loop, rng
from hpcdl.trainer.boundaries import require
from hpcdl.trainer.checkpoints import Checkpoint
from hpcdl.trainer.generators import HeldGenerators
from hpcdl.trainer.group.peers import RankAgreement, agreement
from hpcdl.trainer.keras_callbacks import OtherCallbacks
from hpcdl.trainer.session import attach
from hpcdl.trainer.structure import report

POSITION = "position.json"
BACKENDS = ("tensorflow", "torch", "jax")
METRICS = ("metrics",)
HELD = ("train_function", "steps_per_execution", "_initial_epoch")
"""What is used of the model that is not Keras' documented interface; with JAX `jax_state_sync`, too."""


def suspendable(model: Any, *, every: int | None = None, ranks: RankAgreement | None = None) -> Any:
    """The callback, for a compiled model:

        resume = suspendable(model, every=500)
        model.fit(x, y, epochs=10, callbacks=[resume], initial_epoch=resume.initial_epoch)

    A checkpoint is written every `every` batches, at the end of each epoch, and on a suspend. Raises RuntimeError on
    another backend.
    """
    import keras

    backend = keras.backend.backend()
    if backend not in BACKENDS:
        raise RuntimeError(f"suspending a Keras fit needs one of the backends {', '.join(BACKENDS)}, not {backend}")
    require("keras", model, (*HELD, "jax_state_sync") if backend == "jax" else HELD)

    class Suspendable(keras.callbacks.Callback):
        """See `suspendable`."""

        def __init__(self) -> None:
            super().__init__()
            self.initial_epoch = 0
            self._session = attach()
            self._ranks = agreement(self._session) if ranks is None else ranks
            self._step = self._epoch = self._batch = 0
            self._skip = self._passed = 0  # batches that are done of an epoch, and those of them that are passed over
            self._last = 1  # batches that were trained at once, at last
            self._saved: int | None = None
            self._next = 0 if every is None else every
            self._epoch_random: dict[str, Any] = {}
            self._logs: dict[str, Any] = {}  # of the last batch
            self._position: dict[str, Any] | None = None
            self._folder: Path | None = None  # to be loaded
            self._late = False  # not all variables are there before the first batch
            self._over = False  # an earlier attempt has made its last step
            self._said = False  # the structure of the model was
            self._found: Checkpoint | None = None
            self._trained: Any = None
            self._data: Data | None = None
            self._random = HeldGenerators(dict)
            self._others = OtherCallbacks(self)
            found = loop.resume(self._session, self._read_position, self._ranks)
            self._found = found
            if found is not None:
                self._folder, self._saved, self._step = found.path, found.step, found.step
                self.initial_epoch = self._read_position(found.path)
                self._next += found.step

        def _read_position(self, folder: Path) -> int:
            position = json.loads((folder / POSITION).read_text())
            variables.check(folder)
            self._position = position
            return int(position["epoch"])

        # fit's own calls, in their order

        def set_model(self, trained: Any) -> None:
            super().set_model(trained)
            if self._session.checkpoint_dir is not None:
                self._others.arrange(resumed=self._folder is not None)

        def on_train_begin(self, logs: Any = None) -> None:
            self._session.require_first_training()
            epochs = _epochs_of_fit()
            adapter = getattr(epochs, "data_adapter", None)
            self._data = _data_of(epochs, backend)
            self._random = HeldGenerators(lambda: {"data": adapter})
            if self._folder is not None and self._position is not None:
                if backend == "tensorflow":
                    variables.build(model, self._data)
                # Metrics begin anew with each epoch.
                self._late = not variables.fits(model, self._folder, () if self._position["batch"] else METRICS)
                if not self._late or backend == "jax":  # whose trainer makes no variables from here on
                    variables.load(model, self._folder, METRICS)
                    self._late = False
                if self._data is not None:
                    place = self._position.get("data", {"made": 0, "taken": self._position["batch"]})
                    self._data.go_on(place, again=self._made_by() if self._late else 0)
                self._over = not self._late and self._session.is_complete(self._found, self._limits)
                if self._over:
                    variables.load(model, self._folder, METRICS)
                    self._others.load(self._folder)
                    model._initial_epoch = self.params["epochs"]  # from where Keras begins: none is left
                elif self._late or self._position["batch"]:
                    self._others.mute()
                else:
                    self._others.load(self._folder)
                    self._random.restore(self._position["random"])
            self._others.check(getattr(adapter, "py_dataset", None))
            self._session.ready(self._step)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._epoch, self._batch = epoch, 0
            if self._position is not None and epoch == self._position["epoch"]:
                self._skip = self._position["batch"]
                if self._skip:
                    self._random.restore(self._position["epoch_random"])
                if self._skip or self._late:
                    self._trained = model.train_function
                    model.train_function = self._pass_over if self._skip else self._begin_late
            self._epoch_random = self._random.capture()
            if not self._skip and not self._late:
                self._position = self._folder = None

        def _made_by(self) -> int:
            """How many batches, the last ones that are done, are trained again to make what is not there before the
            first batch; then it is loaded."""
            assert self._position is not None
            return self._position.get("last", 1) if self._position["batch"] else 0

        def _pass_over(self, *given: Any) -> Any:
            """In the place of the train function. What is passed over may end the epoch, which is logged by the logs of
            its last batch."""
            assert self._position is not None
            logs = self._position.get("logs", {})
            if self._late and self._passed + self._made_by() >= self._skip:
                self._trained(*given)
                return logs
            if backend == "torch" or (backend == "tensorflow" and self._data is not None):
                return logs  # PyTorch's batch was taken already, and TensorFlow's iterator came past what is done
            for _ in _first(given[-1], model.steps_per_execution):
                pass
            return (logs, given[0]) if backend == "jax" else logs

        def _begin_late(self, given: Any) -> Any:
            """In the place of the train function, for an epoch's first batch, where not all variables are there before:
            it makes them, what was saved is loaded, and the batch is trained as it should be."""
            assert self._folder is not None
            assert self._position is not None
            model.train_function = self._trained
            # TensorFlow's is given an iterator, PyTorch's the batches.
            batches = list(_first(given, model.steps_per_execution)) if backend == "tensorflow" else given
            if not batches:
                raise StopIteration
            self._trained(iter(batches) if backend == "tensorflow" else batches)
            variables.load(model, self._folder, METRICS)
            model.reset_metrics()
            self._others.load(self._folder)
            rng.restore(self._position["random"])
            self._others.join(self._epoch)
            self._others.begin_batch(0)
            self._folder = self._position = None
            self._late = False
            return self._trained(iter(batches) if backend == "tensorflow" else batches)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            done = batch + 1
            if self._skip:
                self._passed = done
                if done >= self._skip:
                    self._arrive(done)
                return
            if self._data is not None:
                self._data.taken += done - self._batch
            self._last = done - self._batch
            self._step += self._last
            self._batch = done
            self._logs = logs or {}
            if not self._said:  # once it is built
                self._said = True
                report(model)
            self._session.measure(self._logs)
            self._session.progress(self._step)
            asked = self._ranks.agree(self._session.should_suspend())
            if asked:
                loop.suspend(self._session, self._step, self._write, self._ranks, needed=self._saved != self._step)
            if every is not None and self._step >= self._next:
                self._next += every
                self._periodic()

        def _arrive(self, done: int) -> None:
            assert self._folder is not None
            assert self._position is not None
            if self._data is not None and self._late:
                self._data.taken += self._made_by()
            self._skip = self._passed = 0
            self._late = False
            self._batch = done
            model.train_function = self._trained
            if backend == "jax":
                model.jax_state_sync()
            self._others.join(self._epoch)
            variables.load(model, self._folder)
            self._others.load(self._folder)
            # The data's own generators are where they were since its batches were read again, and may be ahead of that.
            rng.restore(self._position["random"])
            self._folder = self._position = None

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self._session.measure(logs or {})
            self._epoch, self._batch = epoch + 1, 0
            if self._saved != self._step:
                self._periodic()

        def on_train_end(self, logs: Any = None) -> None:
            if self._over:
                model._initial_epoch = None
            else:
                self._saved = loop.save_now(
                    self._session, self._step, self._write, ranks=self._ranks, complete=self._limits
                )
            self._ranks.barrier()
            self._session.done(self._step)

        @property
        def _limits(self) -> tuple[int]:
            return (self.params["epochs"],)

        def _periodic(self) -> None:
            self._saved = loop.save_periodically(self._session, self._step, self._write, self._saved, ranks=self._ranks)

        def _write(self, folder: Path) -> None:
            if not self._session.writer:
                return
            if backend == "jax":
                model.jax_state_sync()
            variables.save(model, folder)
            self._others.save(folder)
            position = {"epoch": self._epoch, "batch": self._batch, "random": self._random.capture()}
            position.update(epoch_random=self._epoch_random, last=self._last)
            position["logs"] = {name: value for name, value in self._logs.items() if isinstance(value, (int, float))}
            if self._data is not None:
                position["data"] = self._data.position(self._batch > 0)
            (folder / POSITION).write_text(json.dumps(position))

    return Suspendable()


def _first(batches: Any, number: int) -> Iterator[Any]:
    """So many of them, or as many as there are."""
    for _ in range(number):
        try:
            yield next(batches)
        except StopIteration:
            return


class Data:
    """A fit's `tf.data` dataset, in its place. A dataset that shuffles anew for each pass does so by the number of
    iterators that were made of it before, so as many are made of it when a fit goes on."""

    def __init__(self, epochs: Any, dataset: Any, takes: bool) -> None:
        """`takes`: its batches are taken from the iterator itself, so what is done is passed over here."""
        if epochs.steps_per_epoch is not None:
            require("keras", epochs, ("_current_iterator",))
        self.epochs = epochs
        self.taken = 0  # batches, of the newest iterator
        self._dataset = dataset
        self._takes = takes
        self._made = 0
        self._before = (0, 0)  # iterators, and batches of the next one

    def position(self, within: bool) -> dict[str, int]:
        """Where we are. `within`: in the middle of an epoch."""
        reused = within or (self.epochs.steps_per_epoch is not None and self.epochs._current_iterator is not None)
        return {"made": self._made - 1, "taken": self.taken} if reused else {"made": self._made, "taken": 0}

    def go_on(self, position: dict[str, int], again: int = 0) -> None:
        """The next iterator is the one at that position; the last batches before it are read `again`."""
        self._before = (position["made"], position["taken"] - again)

    def __iter__(self) -> Iterator[Any]:
        made, taken = self._before
        self._before = (0, 0)
        for _ in range(made):
            iter(self._dataset)
        batches: Iterator[Any] = iter(self._dataset)
        if self._takes:
            for _ in _first(batches, taken):
                pass
        self._made += made + 1
        self.taken = taken
        return batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)


def _epochs_of_fit() -> Any:
    """What gives the batches of the fit whose callback is being called; None where it is no fit's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and "epoch_iterator" not in frame.f_locals:
        frame = frame.f_back
    return None if frame is None else frame.f_locals["epoch_iterator"]


def _data_of(epochs: Any, backend: str) -> Data | None:
    """The dataset of a fit, which from now on is ours; None where it has none."""
    if backend == "tensorflow" and hasattr(epochs, "_distributed_dataset"):
        data = epochs._distributed_dataset = Data(epochs, epochs._distributed_dataset, True)
        return data
    adapter = getattr(epochs, "data_adapter", None)
    dataset = getattr(adapter, "_dataset", None)
    if adapter is None or dataset is None or not type(dataset).__module__.startswith("tensorflow."):
        return None
    data = adapter._dataset = Data(epochs, dataset, False)
    return data
