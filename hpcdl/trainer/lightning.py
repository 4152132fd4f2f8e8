"""Lightning's `fit`, suspended at the end of an optimizer step and resumed in the middle of an epoch.

The checkpoint is Lightning's own; beside it are each rank's random states, and those by which the iterators of the
epoch's loaders were made. A fit that goes on makes these iterators as before, passes over what is done, and trains on
the next batch. In the fits of a tuner, which come before or within the script's own, nothing is done. Lightning is
imported when the callback is made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from hpcdl.trainer.boundaries import Boundaries, read_place, require, write_place
from hpcdl.trainer.generators import HeldGenerators
from hpcdl.trainer.structure import report_largest

CHECKPOINT = "lightning.ckpt"
HELD = ("_load_combined_loader_states", "_combined_loader", "_data_fetcher", "epoch_loop", "_restarting")
"""What is called or replaced of the fit loop. Lightning promises none of them."""
FINDERS = {"LearningRateFinder": "optimal_lr", "BatchSizeFinder": "optimal_batch_size"}
"""The callbacks that tune before they let a fit begin, and where they keep the result. They read a checkpoint of their
own, after which Lightning forgets the one that the fit was to go on from."""
LEARNING_RATES = ("lr", "learning_rate")  # what a finder sets, the first of these that there is, unless it has a name


def fit(trainer: Any, model: Any, *args: Any, every: int | None = None, **options: Any) -> None:
    """`trainer.fit(model, *args, **options)`: suspended when that is asked for, resumed where it was.

    `every`: optimizer steps between two checkpoints of hpcdl, beside the script's own and those on a suspend.
    """
    callback = suspendable(every=every)
    trainer.callbacks.append(callback)
    if callback.ckpt_path is not None:
        options["ckpt_path"], args = callback.ckpt_path, args[:3]  # before it: train and validation loaders, datamodule
    trainer.fit(model, *args, **options)


def suspendable(*, every: int | None = None) -> Any:
    """The callback, which `ckpt_path` goes with:

    resume = suspendable(every=500)
    trainer = Trainer(callbacks=[resume], ...)
    trainer.fit(model, data, ckpt_path=resume.ckpt_path)
    """
    # Lightning has two packages, and a script imports one, which may be the only one that it has.
    package = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"

    class Suspendable(import_module(package).Callback):  # type: ignore[misc]
        """See `suspendable`. `ckpt_path`: where to go on from, None to begin."""

        def __init__(self) -> None:
            self._boundaries = Boundaries(every)
            found = self._boundaries.resume()
            self.ckpt_path = None if found is None else str(found.path / CHECKPOINT)
            self._place = None if found is None else read_place(found.path)
            self._iterations = Iterations(HeldGenerators(dict))
            self._step = 0 if found is None else found.step
            self._total: int | None = None
            self._held: Any = None  # the fit loop that was taken hold of
            self._middle = False  # there was a boundary in the middle of this epoch
            self._over = False  # an earlier attempt has made its last step

        def setup(self, trainer: Any, module: Any, stage: str) -> None:
            finders = _finders(package, trainer)
            if stage != "fit" or not self._boundaries.active or any(each._early_exit for each in finders):
                return  # or a fit that a Tuner ends once its finder is done
            self._boundaries.session.require_first_training()
            # Last, for what other callbacks do at the end of a step is to be in the checkpoint.
            trainer.callbacks = [*(each for each in trainer.callbacks if each is not self), self]
            self._iterations.random = HeldGenerators(
                lambda: _holders(trainer, module), apart=(trainer, self, self._iterations)
            )
            self._over = self._boundaries.is_complete(_limits(trainer))
            if self._over:  # Lightning passes over the training, and is not to try the validation either
                trainer.should_stop, trainer.num_sanity_val_steps = True, 0
            if self.ckpt_path is not None:
                _restore_tuned(package, finders, module, [] if self._place is None else self._place.get("tuned", []))
            if trainer.fit_loop is not self._held:
                self._held = trainer.fit_loop
                self._take_hold(trainer, trainer.fit_loop)

        def _take_hold(self, trainer: Any, loop: Any) -> None:
            require(package.partition(".")[0], loop, HELD)
            require(package.partition(".")[0], loop.epoch_loop, ("advance", "on_advance_end", "_restarting"))
            require(package.partition(".")[0], trainer, ("_checkpoint_connector",))
            prepare, train = loop._load_combined_loader_states, loop.epoch_loop.advance
            end_batch = loop.epoch_loop.on_advance_end

            def load_states() -> None:  # called between the loaders and their first iterators
                prepare()
                if self._tuning(trainer):
                    return
                self._iterations.begin([])
                loop._combined_loader.flattened = [
                    Loader(each, self._iterations, number)
                    for number, each in enumerate(loop._combined_loader.flattened)
                ]

            def advance(fetcher: Any) -> None:
                if not self._tuning(trainer):
                    if self.ckpt_path is not None:
                        # A checkpoint where a validation is due was written after it; Lightning 2.4 would repeat it.
                        loop.epoch_loop._restarting = False
                    if loop.epoch_loop.batch_progress.current.ready == 0:
                        self._iterations.read(len(loop._combined_loader.flattened))
                train(fetcher)

            def on_advance_end(fetcher: Any) -> None:  # comes after a validation, too
                end_batch(fetcher)
                if self._tuning(trainer):
                    return
                loop._restarting = False  # else Lightning leaves out ReduceLROnPlateau at the end of this epoch
                self._end_batch(trainer)

            loop._load_combined_loader_states = load_states
            loop.epoch_loop.advance, loop.epoch_loop.on_advance_end = advance, on_advance_end

        def _tuning(self, trainer: Any) -> bool:
            """Whether this is a fit of a tuner's, which takes the callbacks of the script's own away for it."""
            return not any(each is self for each in trainer.callbacks)

        def on_train_start(self, trainer: Any, module: Any) -> None:
            from hpcdl.trainer.torch import Ranks

            report_largest(module.children())
            if module.automatic_optimization:  # else each of its optimizers' steps counts, and how many nobody knows
                whole = trainer.estimated_stepping_batches
                self._total = None if whole == float("inf") else int(whole)
            if self._place is not None:
                self._go_on(trainer, self._place)
                self._place = None
            self._boundaries.begin(Ranks(), self._step)

        def _go_on(self, trainer: Any, place: dict[str, Any]) -> None:
            loop = trainer.fit_loop
            for loader in loop._combined_loader.flattened:
                for name in ("sampler", "batch_sampler"):
                    sampler: Any = getattr(loader, name, None)
                    if hasattr(sampler, "set_epoch"):
                        sampler.set_epoch(trainer.current_epoch)
            if place["end"]:  # of the next epoch Lightning has made the iterators too early
                self._iterations.random.restore(place["random"])
                self._iterations.begin([])
                iter(loop._data_fetcher)
                return
            self._iterations.begin(place["iterations"])
            fetcher = iter(loop._data_fetcher)
            if place.get("first") is not None:
                self._iterations.first = place["first"]
                self._iterations.random.restore(place["first"])
            done = loop.epoch_loop.batch_progress.current.ready
            for number in range(done):
                if fetcher.length is not None:
                    next(fetcher.iterator)  # how many that is, Lightning adds itself
                    continue
                if number == done - 1 and place["before"] is not None:
                    # Of a loader without a length, one batch is read ahead.
                    self._iterations.random.restore(place["before"])
                next(fetcher)
            self._iterations.before = place["before"]
            self._iterations.random.restore(place["random"])

        def _end_batch(self, trainer: Any) -> None:
            if trainer.global_step == self._step:
                return  # gradients accumulate: nothing could be saved of them
            self._step = trainer.global_step
            if self._boundaries.session.progress_due:
                self._boundaries.session.measure(trainer.callback_metrics)
            if trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
                self._boundaries.session.progress(self._step, self._total)
                return
            self._middle = True
            self._look(trainer, False)

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            # Of what is done at the end of an epoch much comes after this; so an epoch of one step alone is saved here.
            self._iterations.begin([])
            if not self._middle:
                self._look(trainer, True)
            self._middle = False

        def _look(self, trainer: Any, end: bool, complete: bool = False) -> None:
            def save(folder: Path) -> None:
                states = {"iterations": self._iterations.states, "before": self._iterations.before}
                states.update(first=self._iterations.first, tuned=_tuned(package, trainer))
                random = self._iterations.random.capture()
                # As `save_checkpoint`, without its barrier: a full disk must not part the ranks.
                checkpoint = trainer._checkpoint_connector.dump_checkpoint(False)
                trainer.strategy.save_checkpoint(checkpoint, folder / CHECKPOINT)
                write_place(folder, {"end": end, "random": random, **states})

            if complete:
                self._boundaries.complete(self._step, _limits(trainer), save)
            else:
                self._boundaries.at(self._step, self._total, save, self._metric(trainer))

        def _metric(self, trainer: Any) -> float | None:
            for callback in (*trainer.checkpoint_callbacks, *trainer.early_stopping_callbacks):
                value = trainer.callback_metrics.get(callback.monitor) if getattr(callback, "monitor", None) else None
                if value is not None:
                    return float(value)
            return None

        def on_train_end(self, trainer: Any, module: Any) -> None:
            self._look(trainer, True, complete=True)
            self._boundaries.done(self._step)

        def on_fit_end(self, trainer: Any, module: Any) -> None:
            if self._over:  # Lightning has passed over the training
                from hpcdl.trainer.torch import Ranks

                self._boundaries.begin(Ranks(), self._step)
                self._boundaries.done(self._step)

    return Suspendable()


def _limits(trainer: Any) -> tuple[float | None, float | None]:
    """Epochs and steps; -1 is Lightning's word for no limit."""
    loop = trainer.fit_loop
    return tuple(None if each in (None, -1) else each for each in (loop.max_epochs, loop.max_steps))  # type: ignore[return-value]


def _holders(trainer: Any, module: Any) -> dict[str, Any]:
    """What may hold random generators of the script's own."""
    loaders = {"loaders": trainer.train_dataloader, "validation": trainer.val_dataloaders}
    return {**loaders, "datamodule": getattr(trainer, "datamodule", None), "module": module}


def _finders(package: str, trainer: Any) -> list[Any]:
    callbacks = import_module(f"{package}.callbacks")
    return [each for each in trainer.callbacks if isinstance(each, tuple(getattr(callbacks, kind) for kind in FINDERS))]


def _tuned(package: str, trainer: Any) -> list[dict[str, Any]]:
    """For `_restore_tuned`: what each finder has set of the module or the data module, and its result."""
    parsing, module = import_module(f"{package}.utilities.parsing"), trainer.lightning_module
    tuned = []
    for finder in _finders(package, trainer):
        name = getattr(finder, "_batch_arg_name", "") or getattr(finder, "_attr_name", "")
        held = [each for each in ([name] if name else LEARNING_RATES) if parsing.lightning_hasattr(module, each)]
        sets = getattr(finder, "_update_attr", True)
        attributes = {each: parsing.lightning_getattr(module, each) for each in held[:1] if sets}
        results = {each: getattr(finder, each) for each in FINDERS.values() if hasattr(finder, each)}
        tuned.append({"attributes": attributes, **{each: _plain(value) for each, value in results.items()}})
    return tuned


def _plain(result: Any) -> Any:
    """Lightning's object of a learning rate's curve has plain values."""
    return vars(result) if hasattr(result, "results") else result


def _restore_tuned(package: str, finders: list[Any], module: Any, tuned: list[dict[str, Any]]) -> None:
    """The finders tuned in an earlier attempt: they do not again, and what they had set is set."""
    for finder in finders:
        finder.on_fit_start = lambda *args: None
    for finder, values in zip(finders, tuned):
        for name, value in values.pop("attributes").items():
            import_module(f"{package}.utilities.parsing").lightning_setattr(module, name, value)
        for name, value in values.items():
            if isinstance(value, dict):
                curve = object.__new__(import_module(f"{package}.tuner.lr_finder")._LRFinder)
                vars(curve).update(value)
                value = curve
            setattr(finder, name, value)


class Iterations:
    """The random states by which the loaders' iterators of one epoch were made, in their order."""

    def __init__(self, random: HeldGenerators) -> None:
        self.random = random
        self.states: list[dict[str, Any]] = []
        self.first: dict[str, Any] | None = None  # by which the first batch of the epoch was read
        self.before: dict[str, Any] | None = None  # the last batch of loaders without a length was read
        self._again: list[dict[str, Any]] = []

    def begin(self, states: list[dict[str, Any]]) -> None:
        """An epoch begins whose first iterators are to be made by these states."""
        self.states, self._again = [], list(states)
        self.first = None

    def read(self, loaders: int) -> None:
        """The first batch of an epoch is about to be read of so many loaders: other iterators than their newest, which
        a finder has left, say, are none of its."""
        self.states, self.first = self.states[-loaders:], self.random.capture()

    def add(self) -> None:
        """An iterator is about to be made."""
        if self._again:
            self.random.restore(self._again.pop(0))
        self.states.append(self.random.capture())


class Loader:
    """A data loader whose iterators are made as `Iterations` says."""

    def __init__(self, loader: Any, iterations: Iterations, number: int) -> None:
        self._loader = loader
        self._iterations = iterations
        self._first = number == 0

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._loader.__class__  # Lightning asks what it is

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self._iterations.add()
        batches = iter(self._loader)
        return self._watched(batches) if self._first and not _sized(self._loader) else batches

    def _watched(self, batches: Iterator[Any]) -> Iterator[Any]:
        number = 0
        while True:
            self._iterations.before = self._iterations.random.capture(again=number < 2)
            number += 1
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield batch


def _sized(loader: Any) -> bool:
    try:
        len(loader)
    except (TypeError, NotImplementedError):
        return False
    return True
