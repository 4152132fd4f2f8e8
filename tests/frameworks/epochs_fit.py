# ruff: noqa: E402 (attaching comes before the heavy imports)
"""Epochs of a DataLoader: `python epochs_fit.py OUT`. OUT gets the sha256 of what was trained, and the next
random numbers. WORKERS: of the loader; ACCUMULATE: batches of a step, and the shuffle has a generator of its own; DATA:
stream (an iterable dataset); SPREAD: FSDP; KILL: the batch at which the first attempt to reach it is killed."""

import hpcdl.trainer as hpcdl

hpcdl.attach()

import hashlib
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

import hpcdl.trainer.torch as suspendable
from tests.frameworks.stops import stop

out = Path(sys.argv[-1])
table = torch.randn(58, 12, generator=torch.Generator().manual_seed(1))
accumulate = int(os.environ.get("ACCUMULATE", "1"))
stream = os.environ.get("DATA") == "stream"


own = random.Random(7)


def noise(draw: Callable[[random.Random], float]) -> float:
    return draw(own)


class Numbered(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.generator = numpy.random.default_rng(7)

    def __len__(self) -> int:
        return len(table)

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = self.generator.normal() + noise(random.Random.random)
        return table[index] + 0.01 * random.random() + 0.01 * torch.rand(1) + 0.01 * drawn  # as augmentations do


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (table[index] + 0.01 * random.random() for index in range(len(table)))


ranks = int(os.environ.get("WORLD_SIZE", "1"))
if ranks > 1:
    dist.init_process_group("gloo")
torch.manual_seed(3)
layers = torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
model: Any = torch.nn.Sequential(*layers)
if os.environ.get("SPREAD"):
    from torch.distributed.fsdp import fully_shard

    fully_shard(model)
elif ranks > 1:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
data: Any = Stream() if stream else Numbered()
sampler: Any = torch.utils.data.DistributedSampler(data) if ranks > 1 else None
loader: Any = torch.utils.data.DataLoader(
    data,
    batch_size=4,
    shuffle=sampler is None and not stream,
    sampler=sampler,
    num_workers=int(os.environ.get("WORKERS", "0")),
    generator=torch.Generator().manual_seed(5) if accumulate > 1 else None,
)
torch.manual_seed(100 + hpcdl.attach().rank)
random.seed(hpcdl.attach().rank)
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
generator, sums = torch.Generator().manual_seed(hpcdl.attach().rank), suspendable.Values(running=0.0, epochs=[])
for epoch, batches in suspendable.epochs(
    loader, 3, every=4, accumulate=accumulate, generator=generator, sums=sums, **parts
):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for number, x in enumerate(batches, batches.done):
        loss = (model(x + 0.01 * torch.rand(12, generator=generator)) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        sums.running += loss.item()
        if (number + 1) % accumulate == 0 or (not stream and number + 1 == len(loader)):
            optimizer.step()
            optimizer.zero_grad()
        at = epoch * 100 + number + 1
        if str(at) == os.environ.get("KILL") and not out.with_suffix(".killed").exists():
            if ranks > 1:
                dist.barrier()
            if hpcdl.attach().rank == 0:
                out.with_suffix(".killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        stop(at)
    sums.epochs.append(sums.running)
    sums.running = 0.0
    scheduler.step()
    torch.rand(3)  # as a validation does
options = StateDictOptions(full_state_dict=True)
digest = hashlib.sha256()
for tensor in get_model_state_dict(model, options=options).values():
    digest.update(tensor.numpy().tobytes())
if hpcdl.attach().rank == 0:
    drawn = [random.random(), torch.rand(1).item(), *scheduler.get_last_lr(), *sums.epochs]
    out.write_text(json.dumps({"weights": digest.hexdigest(), "drawn": drawn}))
if ranks > 1:
    dist.destroy_process_group()
