# ruff: noqa: E402 (attaching comes before the heavy imports)
"""A loop on accelerate: `python accelerate_fit.py OUT`. OUT gets the sha256 of all that was trained, the loss at the
end of each epoch, and how many steps were done. DATA: stream (an iterable dataset); EVERY: steps between checkpoints;
KILL: a step at which the first attempt to reach it is killed."""

import hpcdl.trainer as hpcdl

hpcdl.attach()

import hashlib
import json
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

import hpcdl.trainer.accelerate as suspendable
from tests.frameworks.stops import stop

out = Path(sys.argv[-1])
table = torch.randn(90, 12, generator=torch.Generator().manual_seed(1))


class Numbered(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.generator = random.Random(7)

    def __len__(self) -> int:
        return len(table)

    def __getitem__(self, index: int) -> torch.Tensor:
        return table[index] + 0.01 * random.random() + 0.01 * self.generator.random()  # as augmentations do


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (
            table[index] + 0.01 * random.random() for index in range(76)
        )  # of the 10 batches of 2 ranks the last is half


class Counter:
    """What the script keeps by itself."""

    def __init__(self) -> None:
        self.steps = 0
        self.losses: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "losses": self.losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.losses = state["steps"], state["losses"]


torch.manual_seed(3)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
layers = torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
model: Any = torch.nn.Sequential(*layers)
optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler: Any = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
stream = os.environ.get("DATA") == "stream"
loader: Any = torch.utils.data.DataLoader(Stream() if stream else Numbered(), batch_size=4, shuffle=not stream)
model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
torch.manual_seed(100 + accelerator.process_index)
random.seed(accelerator.process_index)
counter = Counter()
accelerator.register_for_checkpointing(counter)
sums, generator = suspendable.Values(running=0.0), torch.Generator().manual_seed(accelerator.process_index)
every = int(os.environ.get("EVERY", "4"))
for _, batches in suspendable.epochs(accelerator, loader, 3, every=every, sums=sums, generator=generator):
    for x in batches:
        with accelerator.accumulate(model):
            loss = (model(x + 0.01 * torch.rand(12, generator=generator)) - x.sum(1, keepdim=True)).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        sums.running += loss.item()
        if accelerator.sync_gradients:
            counter.steps += 1
            if str(counter.steps) == os.environ.get("KILL") and not out.with_suffix(".killed").exists():
                accelerator.wait_for_everyone()
                if accelerator.is_main_process:
                    out.with_suffix(".killed").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            stop(counter.steps)
    with torch.no_grad():
        counter.losses.append((model(table) - table.sum(1, keepdim=True)).square().mean().item())  # dropout draws, too
digest = hashlib.sha256()
for tensor in accelerator.unwrap_model(model).state_dict().values():
    digest.update(tensor.numpy().tobytes())
if accelerator.is_main_process:
    rate = [*scheduler.get_last_lr(), sums.running]
    whole = {"weights": digest.hexdigest(), "steps": counter.steps, "losses": counter.losses, "rate": rate}
    out.write_text(json.dumps(whole))
