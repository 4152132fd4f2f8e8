"""A Lightning callback that checkpoints `fit`, suspends it at the end of a batch, and resumes it.

Lightning is imported when the callback is made. The checkpoint is Lightning's own, and the random states are beside it.
A fit that was suspended in the middle of an epoch draws that epoch's order as before, and goes on with the next batch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hpcdl.trainer import loop, rng
from hpcdl.trainer.peers import RankAgreement
from hpcdl.trainer.session import attach

CHECKPOINT = "lightning.ckpt"
POSITION = "position.json"


def suspendable(*, every: int | None = None) -> Any:
    """The callback, which `ckpt_path` goes with:

        resume = suspendable(every=500)
        trainer = Trainer(callbacks=[resume], ...)
        trainer.fit(model, data, ckpt_path=resume.ckpt_path)

    A checkpoint is written every `every` optimizer steps, and on a suspend.
    """
    from lightning.pytorch import Callback

    class Suspendable(Callback):
        """See `suspendable`."""

        def __init__(self) -> None:
            self._session = attach()
            self._position: dict[str, Any] | None = None
            self._epoch_random: dict[str, Any] = {}
            self._drawn = False
            self._iterated = False  # the epoch's random state is that after its iterator was made
            found = loop.resume(self._session, self._read_position, RankAgreement())
            self.ckpt_path = None if found is None else str(found.path / CHECKPOINT)
            self._step = 0 if found is None else found.step
            self._saved: int | None = self._step

        def _read_position(self, folder: Path) -> None:
            self._position = json.loads((folder / POSITION).read_text())

        def on_train_start(self, trainer: Any, module: Any) -> None:
            if self._position is not None:
                if self._position["end"]:  # of the next epoch Lightning has made an iterator too early
                    self._epoch_random = self._position["random"]
                    rng.restore(self._epoch_random)
                    iter(trainer.fit_loop._data_fetcher)
                    self._drawn = True
                else:
                    self._go_on(trainer, self._position)
                    rng.restore(self._position["random"])
                self._position = None
            self._session.ready(self._step)

        def _go_on(self, trainer: Any, position: dict[str, Any]) -> None:
            """Draw the order of the epoch as it was drawn before, and pass over what is done of it."""
            fetcher, done = trainer.fit_loop._data_fetcher, trainer.fit_loop.epoch_loop.batch_progress.current.ready
            for loader in trainer.fit_loop._combined_loader.flattened:
                for name in ("sampler", "batch_sampler"):
                    sampler: Any = getattr(loader, name, None)
                    if hasattr(sampler, "set_epoch"):
                        sampler.set_epoch(trainer.current_epoch)
            self._epoch_random, self._iterated = position["epoch_random"], position["iterated"]
            if not self._iterated:
                rng.restore(self._epoch_random)
            iter(fetcher)
            if self._iterated:
                rng.restore(self._epoch_random)
            for _ in range(done):
                next(fetcher.iterator)

        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            # Of the first epoch there is an iterator by now; of a later one it is made after this.
            if not self._drawn:
                self._epoch_random = rng.capture()
                self._iterated = trainer.current_epoch == 0
            self._drawn = False

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
            if trainer.global_step == self._step:
                return  # gradients accumulate: nothing could be saved of them
            self._step = trainer.global_step
            whole = trainer.estimated_stepping_batches
            self._session.progress(self._step, int(whole) if whole != float("inf") else None)
            if not trainer.is_last_batch:
                self._look(trainer, False)

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            # Lightning goes on from here, not from the last batch of an epoch.
            if self._step != self._saved:
                self._look(trainer, True)

        def _look(self, trainer: Any, end: bool) -> None:
            asked = trainer.strategy.reduce_boolean_decision(self._session.should_suspend(), all=False)
            if not asked and (every is None or self._step // every == (self._saved or 0) // every):
                return
            random = {"end": end, "random": rng.capture(), "epoch_random": self._epoch_random}
            random["iterated"] = self._iterated

            def save(folder: Path) -> None:
                trainer.save_checkpoint(folder / CHECKPOINT)
                (folder / POSITION).write_text(json.dumps(random))

            if asked:
                loop.save_now(self._session, self._step, save)
                trainer.strategy.barrier()
                self._session.exit_suspended()
            self._saved = loop.save_periodically(self._session, self._step, save, self._saved)

        def on_train_end(self, trainer: Any, module: Any) -> None:
            self._session.done(self._step)

    return Suspendable()
