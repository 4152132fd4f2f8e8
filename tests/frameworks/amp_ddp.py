# ruff: noqa: E402 (attaching comes before the heavy imports)
"""A DistributedDataParallel training with all that has a state: `amp_ddp.py STEPS HOLDS FOLDER OUT`.

At each of the steps HOLDS (as 12,31) a rank waits, the first time that it comes there, until it is asked to suspend.
"""

import hpcdl.trainer as hpcdl

session = hpcdl.attach()

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import hpcdl.trainer.torch as suspendable

PATIENCE_S = 300.0
steps, holds, folder, out = int(sys.argv[1]), sys.argv[2].split(","), Path(sys.argv[3]), sys.argv[4]
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()


class Order:
    """The samples' order, epoch by epoch, and the place in it: the same on all ranks, each of which takes its part."""

    def __init__(self, samples: int) -> None:
        self.random = torch.Generator().manual_seed(5)
        self.samples = samples
        self.left = torch.empty(0, dtype=torch.int64)

    def batch(self, number: int) -> torch.Tensor:
        if len(self.left) < number:
            self.left = torch.randperm(self.samples, generator=self.random)
        taken, self.left = self.left[:number], self.left[number:]
        return taken[rank::size]

    def state_dict(self) -> dict[str, Any]:
        return {"random": self.random.get_state(), "left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.random.set_state(state["random"])
        self.left = state["left"]


torch.manual_seed(7)
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=7)
data = torch.randn(90, 8, generator=torch.Generator().manual_seed(3))
order = Order(len(data))
torch.manual_seed(100 + rank)  # each rank drops its own
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "order": order}
for step in suspendable.steps(steps, every=10, **parts):
    x = data[order.batch(4 * size)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).sin())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    held = folder / f"at-{step}-{rank}"
    if str(step) in holds and not held.exists():
        held.touch()
        until = time.monotonic() + PATIENCE_S
        while not session.should_suspend():
            assert time.monotonic() < until, f"nobody asks for a suspend at step {step}"
            time.sleep(0.01)
if rank == 0:
    states = {name: part.state_dict() for name, part in parts.items() if name not in ("model", "optimizer")}
    torch.save({"model": model.module.state_dict(), "scale": scaler.get_scale(), **states}, out)
dist.destroy_process_group()
