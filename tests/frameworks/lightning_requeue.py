"""A Lightning fit that knows nothing of hpcdl and relies on Lightning's requeue for Slurm: `lightning_requeue.py OUT`.

The first attempt comes to step 13 and waits there for the checkpoint that its SIGUSR1 writes, and to be killed."""

import sys
import time
from pathlib import Path
from typing import Any

import lightning
import torch

AT = 13
out = Path(sys.argv[1])
saved = out.with_name("hpc_ckpt_1.ckpt")


class Network(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(12, 1)

    def training_step(self, batch: Any, index: int) -> Any:
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 0.01)


class Steps(lightning.Callback):
    def on_train_start(self, trainer: Any, *rest: Any) -> None:
        with out.with_name("began").open("a") as file:
            file.write(f"{trainer.global_step}\n")

    def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
        if trainer.global_step == AT and not saved.exists():
            out.with_name(f"at-{AT}").touch()
            time.sleep(600)  # the handler of SIGUSR1 runs in between; then it is killed


data = torch.utils.data.TensorDataset(torch.randn(64, 12))
quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = lightning.Trainer(
    accelerator="cpu", devices=1, max_epochs=3, callbacks=[Steps()], default_root_dir=str(out.parent), **quiet
)
trainer.fit(Network(), torch.utils.data.DataLoader(data, batch_size=8))
out.write_text(str(trainer.global_step))
