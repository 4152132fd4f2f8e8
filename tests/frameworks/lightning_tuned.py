# ruff: noqa: E402 (attaching comes before the heavy imports)
"""A Lightning fit that is tuned before: `python lightning_tuned.py OUT`. OUT gets what was found and the sha256 of all
that was trained.

LIGHTNING_TUNED: tuner (`Tuner.lr_find` and `scale_batch_size`), finder or batch (the callbacks), again (a finder that
searches at the begin of the second epoch, too). LIGHTNING_FIT: by `fit`, not by the callback."""

import hpcdl.trainer as hpcdl

hpcdl.attach()

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.tuner import Tuner

from hpcdl.trainer.lightning import fit, suspendable
from tests.frameworks.stops import stop

TUNED = os.environ.get("LIGHTNING_TUNED", "")
lightning.seed_everything(3)
x = torch.randn(256, 12)


class Network(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
        self.lr, self.batch_size = 0.02, 32

    def training_step(self, batch: Any, index: int) -> Any:
        return (self.layers(batch[0]) - batch[1]).square().mean() * (1 + self.lr)

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", (self.layers(batch[0]) - batch[1]).square().mean())

    def load(self) -> Any:
        data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
        return torch.utils.data.DataLoader(data, batch_size=self.batch_size, shuffle=True)

    def train_dataloader(self) -> Any:
        return self.load()

    def val_dataloader(self) -> Any:
        return self.load()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), self.lr)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)]


class Again(LearningRateFinder):
    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        if trainer.current_epoch == 1:
            self.lr_find(trainer, module)


class Stop(lightning.Callback):
    def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
        stop(trainer.global_step)


def trainer_of(*callbacks: Any) -> Any:
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(
        callbacks=[Stop(), *callbacks],
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        default_root_dir=sys.argv[1] + ".lightning",
        **quiet,
    )


network = Network()
callbacks: list[Any] = []
if TUNED in ("finder", "again"):
    callbacks = [(Again if TUNED == "again" else LearningRateFinder)(num_training_steps=40)]
elif TUNED == "batch":
    callbacks = [BatchSizeFinder(max_trials=4, init_val=8)]
resume = None if os.environ.get("LIGHTNING_FIT") else suspendable(every=5)
trainer = trainer_of(*callbacks, *([] if resume is None else [resume]))
if TUNED == "tuner":
    Tuner(trainer).scale_batch_size(network, max_trials=3, init_val=8)
    Tuner(trainer).lr_find(network, num_training=40)
trainer.validate(network, verbose=False)
if resume is None:
    fit(trainer, network, every=5)
else:
    trainer.fit(network, ckpt_path=resume.ckpt_path)
trainer.validate(network, verbose=False)
found = [each.optimal_lr.suggestion() if TUNED != "batch" else each.optimal_batch_size for each in callbacks]
digest = hashlib.sha256()
for tensor in network.state_dict().values():
    digest.update(tensor.numpy().tobytes())
Path(sys.argv[1]).write_text(f"{network.lr} {network.batch_size} {found} {trainer.global_step} {digest.hexdigest()}")
