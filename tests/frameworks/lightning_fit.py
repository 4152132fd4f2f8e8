# ruff: noqa: E402 (attaching comes before the heavy imports)
"""A Lightning fit: `python lightning_fit.py OUT`. OUT gets the sha256 of all that was trained."""

import hpcdl.trainer as hpcdl

hpcdl.attach()

import hashlib
import sys
from pathlib import Path
from typing import Any

import lightning
import torch

from hpcdl.trainer.lightning import suspendable
from tests.frameworks.stops import stop

lightning.seed_everything(3)
x = torch.randn(250, 12)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


class Network(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        layers = torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
        self.layers = torch.nn.Sequential(*layers)

    def training_step(self, batch: Any, index: int) -> Any:
        return (self.layers(batch[0]) - batch[1]).square().mean()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Stop(lightning.Callback):
    def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
        stop(trainer.global_step)


resume = suspendable()
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", callbacks=[Stop(), resume], **quiet)
network = Network()
trainer.fit(network, torch.utils.data.DataLoader(data, batch_size=32, shuffle=True), ckpt_path=resume.ckpt_path)
digest = hashlib.sha256()
for tensor in network.state_dict().values():
    digest.update(tensor.numpy().tobytes())
Path(sys.argv[1]).write_text(f"{trainer.global_step} {digest.hexdigest()}")
