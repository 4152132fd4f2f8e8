# ruff: noqa: E402 (attaching comes before the heavy imports)
"""A Lightning fit: `python lightning_fit.py OUT`. OUT gets the number of steps, the sha256 of all that was trained,
and the version of Lightning.

LIGHTNING_RANKS: so many processes; gradients that accumulate, loaders of several lengths, validation within an epoch.
TEST_EPOCHS: as many, not 3. LIGHTNING_KILLED: at so many steps the second rank of the first attempt is killed.
LIGHTNING_WORKERS: of its loaders; "killed": the last rank's is, in the first attempt.
LIGHTNING_MANUAL: it steps its two optimizers itself, so that each batch counts as two steps.
LIGHTNING_STREAM: of a dataset without a length, whose samples draw at random; where Lightning is pytorch_lightning."""

import hpcdl.trainer as hpcdl

hpcdl.attach()

import hashlib
import os
import random
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from hpcdl.trainer.lightning import fit, suspendable
from tests.frameworks.stops import stop

EPOCHS = int(os.environ.get("TEST_EPOCHS") or 3)
KILLED = int(os.environ.get("LIGHTNING_KILLED") or -1)
MANUAL = bool(os.environ.get("LIGHTNING_MANUAL"))
WORKERS = os.environ.get("LIGHTNING_WORKERS", "")
RANKS, STREAM = int(os.environ.get("LIGHTNING_RANKS") or 1), bool(os.environ.get("LIGHTNING_STREAM"))
if STREAM:
    sys.modules["lightning"] = None  # type: ignore[assignment]  # as if it were not installed
lightning: Any = import_module("pytorch_lightning" if STREAM else "lightning")
lightning.seed_everything(3)
x = torch.randn(250, 12)


class Data(torch.utils.data.TensorDataset):
    given = 0  # samples, in a worker

    def __getitem__(self, index: int) -> Any:
        self.given += 1
        last = os.environ.get("LOCAL_RANK", "0") == str(RANKS - 1)
        if WORKERS == "killed" and self.given == 100 and last and os.environ["HPCDL_INCARNATION"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


data = Data(x, x.sum(1, keepdim=True))


class Network(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        layers = torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
        self.layers = torch.nn.Sequential(*layers)
        self.automatic_optimization = not MANUAL
        self.generator = torch.Generator().manual_seed(7)

    def training_step(self, batch: Any, index: int) -> Any:
        if MANUAL:
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward((self.layers(batch[0]) - batch[1]).square().mean())
                optimizer.step()
            return None
        scale = 1 + 0.01 * torch.rand(1, generator=self.generator)
        parts = [batch] if RANKS == 1 else [batch["long"], batch["short"]]
        return scale * sum((self.layers(part[0]) - part[1]).square().mean() for part in parts)

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", (self.layers(batch[0]) - batch[1]).square().mean(), sync_dist=True)

    def configure_optimizers(self) -> Any:
        if MANUAL:
            return [torch.optim.AdamW(self.layers[place].parameters(), 0.01) for place in (0, 3)]
        if RANKS > 1:
            optimizer = torch.optim.AdamW(self.parameters(), 0.01)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1.0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Stop(lightning.Callback):
    def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
        if trainer.global_step == KILLED and trainer.global_rank and os.environ["HPCDL_INCARNATION"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        stop(trainer.global_step)


class Stream(torch.utils.data.IterableDataset):
    def __init__(self) -> None:
        self.generator = random.Random(7)

    def __iter__(self) -> Iterator[Any]:
        return ((each + 0.01 * torch.rand(12) * self.generator.random(), each.sum(0, keepdim=True)) for each in x)


class Noisy(torch.utils.data.Subset):
    generator: Any = None

    def __getitem__(self, index: Any) -> Any:
        if self.generator is None:
            self.generator = random.Random(7)
        x, y = super().__getitem__(index)
        return x + 0.01 * self.generator.random(), y

    def __getitems__(self, indices: Any) -> Any:
        return [self[index] for index in indices]


def load(samples: int, **options: Any) -> Any:
    options["num_workers"] = 1 if WORKERS else 0
    return torch.utils.data.DataLoader(Noisy(data, range(samples)), shuffle=True, **options)


quiet: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
quiet |= {"accelerator": "cpu", "max_epochs": EPOCHS}
network = Network()
if RANKS > 1:
    stopping = lightning.pytorch.callbacks.EarlyStopping("val_loss", patience=2 if EPOCHS == 3 else 4 * EPOCHS)
    more = {"strategy": "ddp", "devices": RANKS, "accumulate_grad_batches": 2, "val_check_interval": 4}
    trainer = lightning.Trainer(callbacks=[Stop(), stopping], **quiet, **more)
    loaders = {"long": load(250, batch_size=8), "short": load(80, batch_size=8)}
    fit(trainer, network, loaders, load(40, batch_size=8), every=5)
elif STREAM:
    trainer = lightning.Trainer(callbacks=[Stop()], **quiet)
    fit(trainer, network, torch.utils.data.DataLoader(Stream(), batch_size=32), every=4)
else:
    resume = suspendable()
    trainer = lightning.Trainer(callbacks=[Stop(), resume], **quiet)
    trainer.fit(network, load(250, batch_size=32), ckpt_path=resume.ckpt_path)
digest = hashlib.sha256()
for tensor in network.state_dict().values():
    digest.update(tensor.numpy().tobytes())
if trainer.is_global_zero:
    Path(sys.argv[1]).write_text(f"{trainer.global_step} {digest.hexdigest()} {lightning.__version__}")
