# ruff: noqa: E402 (attaching comes before the heavy imports)
"""A PyTorch loop on a number of ranks that changes while it runs: a small network learns a fixed function.

hpcdl submit --nodes 1:8 --rescale in-process --steps 2000 --checkpoint-dir ckpt -- python elastic_train.py

That starts it once for each GPU of each node. The same script runs under torchrun, and without hpcdl. The batch of a
step is the same on any number of ranks, which share it out; so the loss goes on where it was after a rescale. A script
that would rather keep the batch of each rank scales the learning rate with `world.size`.
"""

import hpcdl.trainer as hpcdl

session = hpcdl.attach()  # before the heavy imports: from here on a suspend is noticed

import argparse
import time

import torch
from torch import nn

from hpcdl.trainer import elastic

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, help="in all; HPCDL_STEPS if left out")
parser.add_argument("--batch", type=int, default=96, help="samples in a step, on all ranks together")
parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
parser.add_argument("--pace", type=float, default=0.0, help="seconds that a step takes at least")
parser.add_argument("--out", help="rank 0 writes the final weights here")
given = parser.parse_args()

torch.manual_seed(7)
torch.set_num_threads(1)
device = elastic.device()
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=500, gamma=0.5)


def data(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole batch of a step, the same on every rank."""
    x = torch.randn(given.batch, 8, generator=torch.Generator().manual_seed(step))
    return x.to(device), x.sum(1, keepdim=True).sin().to(device)


def warm_up() -> None:
    x, y = data(0)
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def train(world: elastic.World) -> None:
    ddp = world.wrap(model)
    for step in world.steps():
        began = time.monotonic()
        x, y = data(step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(ddp(x[world.rank :: world.size]), y[world.rank :: world.size])
        loss.backward()
        mean = loss.detach() / world.size
        torch.distributed.all_reduce(mean)  # whatever may fail for want of a rank comes before the parts change
        optimizer.step()
        scheduler.step()
        if world.rank == 0:
            print(f"step {step + 1} loss {mean.item():.6f} ranks {world.size}", flush=True)
        time.sleep(max(0.0, given.pace - (time.monotonic() - began)))


parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
elastic.run(train, total=given.steps, every=given.every, warm_up=warm_up, **parts)
if given.out and session.rank == 0:
    torch.save(model.state_dict(), given.out)
