# ruff: noqa: E402 (attaching comes before the heavy imports)
"""A suspendable PyTorch loop, on one rank or on several with DistributedDataParallel (gloo on CPUs, NCCL on GPUs).

hpcdl submit --steps 500 --checkpoint-dir ckpt -- torchrun --standalone --nproc-per-node gpu pytorch_ddp.py
"""

import hpcdl.trainer as hpcdl

session = hpcdl.attach()  # before the heavy imports: from here on a suspend is noticed

import argparse
import os
import time

import torch
from torch import nn

import hpcdl.trainer.torch as suspendable

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
parser.add_argument("--agree-every", type=int, default=1, help="steps between the ranks' looks for a suspend")
parser.add_argument("--pace", type=float, default=0.0, help="seconds that a step takes at least")
parser.add_argument("--out", help="rank 0 writes the final weights here")
given = parser.parse_args()

gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device("cpu")
ranks = int(os.environ.get("WORLD_SIZE", "1"))
if ranks > 1:
    torch.distributed.init_process_group("nccl" if gpu else "gloo")

torch.manual_seed(7)
model: nn.Module = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1)).to(device)
if ranks > 1:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.steps)
torch.manual_seed(100 + session.rank)  # every rank has data and dropout of its own

parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
for _ in suspendable.steps(given.steps, every=given.every, agree_every=given.agree_every, **parts):
    x = torch.randn(16, 8, device=device)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).sin())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    time.sleep(given.pace)

if session.rank == 0 and given.out:
    torch.save(getattr(model, "module", model).state_dict(), given.out)
if ranks > 1:
    torch.distributed.destroy_process_group()
