"""Hugging Face's `Trainer`, suspended at the end of an optimizer step and resumed bit for bit.

The checkpoint holds Hugging Face's own files. Beside them is what its resume leaves out: the random states at the start
of the epoch and before the batch that is read ahead, and the loss since it was last logged. transformers is imported
when the callback is made.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from hpcdl.trainer import rng, structure
from hpcdl.trainer.boundaries import Boundaries, changed, read_place, require, write_place
from hpcdl.trainer.resumable_loader import ResumableLoader

_OF_RUN = re.compile(r"epoch|total_flos|train_.*|.*_(runtime|per_second)")
"""What is logged of the run, and no curve is kept of."""

LOSSES = ("_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step")
"""What the trainer keeps of the losses it logs; not every version has each of them."""

HELD = (
    *("get_train_dataloader", "_maybe_log_save_evaluate", "_save_checkpoint", "_save_rng_state", "_load_rng_state"),
    "set_initial_training_values",
)
"""What is called or replaced of it. transformers promises none of them but the first."""


def train(trainer: Any, *args: Any, every: int | None = None, replay: bool = True, **options: Any) -> Any:
    """`trainer.train(*args, **options)`, and what it returns: suspended when that is asked for, resumed where it was.

    `every`: optimizer steps between two checkpoints of hpcdl, beside the script's own and those on a suspend.
    `replay`: in the middle of an epoch, the data loader's worker processes load again what is done of it, for what they
    draw at random; False passes over that, for workers that draw nothing. Without hpcdl it is `trainer.train`, no more.
    """
    callback = suspendable(trainer, every=every, replay=replay)
    if callback.checkpoint is not None:
        options.pop("resume_from_checkpoint", None)
        args = (callback.checkpoint, *args[1:])
    return trainer.train(*args, **options)


def suspendable(trainer: Any, *, every: int | None = None, replay: bool = True) -> Any:
    """The callback, which adds itself to the trainer, for a script that keeps its own call:

    resume = suspendable(trainer, every=500)
    trainer.train(resume_from_checkpoint=resume.checkpoint)
    """
    from transformers import TrainerCallback

    class Suspendable(TrainerCallback):
        """See `suspendable`. `checkpoint`: where to go on from, of Hugging Face's format; None to begin."""

        def __init__(self) -> None:
            self._boundaries = Boundaries(every)
            found = self._boundaries.resume()
            self.checkpoint = None if found is None else str(found.path / f"checkpoint-{found.step}")
            self._place = None if found is None else read_place(found.path)
            self._batches: ResumableLoader | None = None
            self._metric: float | None = None
            self._loss: Any = None  # the sum since it was last logged
            self._step = 0
            self._end = False  # the last call was at the end of an epoch
            self._over = False  # an earlier attempt has made its last step
            if self._boundaries.active:
                self._take_hold()

        def _take_hold(self) -> None:
            require("transformers", trainer, HELD)
            # The callbacks at the end of a step come before its log, evaluation and save; this method comes after.
            self._train, trainer.train = trainer.train, self._begin
            self._log_save_evaluate = trainer._maybe_log_save_evaluate
            self._make_loader = trainer.get_train_dataloader
            trainer._maybe_log_save_evaluate = self._end_step
            trainer.get_train_dataloader = self._loader
            trainer.add_callback(self)
            if self._place is not None:
                trainer._load_rng_state = self._load_rng_state
                trainer.args.restore_callback_states_from_checkpoint = True
                trainer.args.eval_on_start = False  # that is done
                self._count, trainer.set_initial_training_values = trainer.set_initial_training_values, self._values

        def _values(self, *args: Any) -> Any:
            """How many epochs there are, first, and at last how many steps: no epoch where training is complete."""
            epochs, *others = self._count(*args)
            self._over = self._boundaries.is_complete((others[-1],))
            return (0 if self._over else epochs, *others)

        def _begin(self, *args: Any, **options: Any) -> Any:
            self._boundaries.session.require_first_training()
            return self._train(*args, **options)

        def _loader(self) -> Any:
            evaluation = {"evaluation": trainer.eval_dataset, "collator": trainer.data_collator}
            self._batches, loader = ResumableLoader.within(self._make_loader(), replay, **evaluation)
            return loader

        def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            from hpcdl.trainer.torch import Ranks

            self._step = state.global_step
            structure.report(rest.get("model"))
            if self._place is not None:
                _restore_losses(trainer, self._place)
                if self._batches is None:
                    rng.restore(self._place["random"])
                else:
                    self._batches.random.restore(self._place["random"])
            if self._place is not None and not self._over:
                self._skip_first_batches, _module().skip_first_batches = _module().skip_first_batches, _no_skip
                if self._batches is not None and not self._place["end"] and not args.ignore_data_skip:
                    self._batches.go_on(self._place)
                self._place = None
            self._boundaries.begin(Ranks(), state.global_step)

        def _load_rng_state(self, checkpoint: str) -> None:
            # Hugging Face comes here once it has skipped what is done.
            _module().skip_first_batches = self._skip_first_batches
            if self._batches is not None:
                self._batches.give_up()  # where rank 0 reads the data of all, the others have not read any

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
            numbers = {name: value for name, value in (logs or {}).items() if isinstance(value, (int, float))}
            self._boundaries.session.measure({name: numbers[name] for name in numbers if not _OF_RUN.fullmatch(name)})
            best = args.metric_for_best_model
            name = "loss" if not best else best if best.startswith("eval_") else f"eval_{best}"
            if isinstance(value := (logs or {}).get(name), (int, float)):
                self._metric = float(value)

        def _end_step(self, *args: Any, **options: Any) -> None:
            """Hugging Face comes here at the end of each optimizer step, and once more at that of each epoch."""
            self._log_save_evaluate(*args, **options)
            self._loss = args[0] if args else options.get("tr_loss")
            state, stepped = trainer.state, trainer.state.global_step > self._step
            self._step = state.global_step
            last = float(state.epoch).is_integer() or (self._batches is not None and self._batches.ended)
            if (stepped and last) or trainer.control.should_training_stop:
                self._boundaries.session.progress(state.global_step, state.max_steps)
                if not stepped:
                    self._end = True
                    self._boundaries.complete(state.global_step, (state.max_steps,), self._save)
                return
            self._end = not stepped
            self._boundaries.at(state.global_step, state.max_steps, self._save, self._metric)
            self._metric = None

        def _save(self, folder: Path) -> None:
            place: dict[str, Any] = {"random": rng.capture(), "end": self._end}
            if self._batches is not None:
                place.update(self._batches.place(), random=self._batches.random.capture())
            place.update(_losses(trainer, self._loss))
            # As if the script had chosen to save here: nothing of its own folder, of the hub or of its rotation.
            args = {"output_dir": str(folder), "push_to_hub": False, "save_only_model": False, "save_strategy": "no"}
            with changed(trainer.args, **args), changed(trainer, _save_rng_state=lambda folder: None):
                trainer._save_checkpoint(trainer.model, None)
            write_place(folder, place)  # last: the ranks meet in what comes before, and a full disk must not part them

        def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            self._boundaries.done(state.global_step)

    return Suspendable()


def _losses(trainer: Any, loss: Any) -> dict[str, Any]:
    """For `_restore_losses`, as far as this version has them: a number that is only logged must not fail a save."""
    numbers = {name: _number(getattr(trainer, name, None)) for name in LOSSES}
    return {"loss": _number(loss), "losses": {name: value for name, value in numbers.items() if value is not None}}


def _number(value: Any) -> float | None:
    try:
        return value if isinstance(value, int) else float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def _restore_losses(trainer: Any, place: dict[str, Any]) -> None:
    for name, value in place.get("losses", {}).items():
        if hasattr(trainer, name):
            setattr(trainer, name, value)
    loss, train = place.get("loss"), trainer.training_step

    def first(*args: Any, **options: Any) -> Any:
        import torch

        trainer.training_step = train
        found = train(*args, **options)
        return torch.tensor(loss, device=found.device) + found

    if loss is not None:  # in transformers 4 the sum is a variable of the loop, which this goes in by
        trainer.training_step = first


def _module() -> Any:
    return sys.modules["transformers.trainer"]


def _no_skip(loader: Any, batches: int = 0) -> Any:
    """For the function by which the trainer makes a loader without the batches that are done: here its own has none."""
    return loader
