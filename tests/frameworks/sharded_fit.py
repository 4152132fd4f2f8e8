# ruff: noqa: E402 (attaching comes before the heavy imports)
"""A training whose state is spread over its ranks: `python sharded_fit.py OUT --kind fsdp2 --steps 12`.

Rank 0 appends to OUT/states a line for each step that begins, and one at the end: the step, and the sha256 of the
whole model and optimizer.
"""

import hpcdl.trainer as hpcdl

session = hpcdl.attach()

import argparse
import hashlib
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import hpcdl.trainer.torch as suspendable

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--kind", default="fsdp2")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--every", type=int, default=4)
parser.add_argument("--asynchronous", action="store_true")
parser.add_argument("--hang-at", type=int, help="the save of this step does not end, in its middle")
parser.add_argument("--full-at", type=int, help="rank 1's disk is full in the save of this step")
parser.add_argument("--unused", action="store_true", help="a layer gets no gradient, and has no state")
given = parser.parse_args()

rank, size = session.rank, int(os.environ.get("WORLD_SIZE", "1"))
if given.kind != "plain":
    dist.init_process_group("gloo")
torch.manual_seed(7)


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(9, 17), torch.nn.Linear(17, 1)
        self.dropout = torch.nn.Dropout(0.1)
        if given.unused:
            self.unused = torch.nn.Linear(3, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.dropout(torch.tanh(self.first(x))))
        return y


trained = Network()
model: torch.nn.Module = trained
if given.kind == "fsdp2":
    fully_shard(trained.first)
    fully_shard(model)
elif given.kind == "fsdp1":
    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
elif given.kind == "dtensor":
    mesh = init_device_mesh("cpu", (size,))
    for layer in model.modules():
        for name, each in list(layer.named_parameters(recurse=False)):
            layer.register_parameter(name, torch.nn.Parameter(distribute_tensor(each.detach(), mesh, [Shard(0)])))
elif given.kind == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=given.unused)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
torch.manual_seed(100 + rank)

started: list[int] = []
write_data = FileSystemWriter.write_data


def fail(self: Any, *rest: Any) -> Any:
    """Called for each save: what a kill or a full disk meets in the middle of it."""
    step = int(str(self.path.parent.name).split(".")[1].removeprefix("tmp-step-"))
    if step == given.hang_at:
        found = write_data(self, *rest)
        (given.out / f"hangs-{rank}").touch()
        time.sleep(300)
        return found
    if step == given.full_at and rank == 1:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            return write_data(self, *rest)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    return write_data(self, *rest)


FileSystemWriter.write_data = fail


def note(step: int) -> None:
    digest = hashlib.sha256()
    used = bool(optimizer.state)
    values = get_state_dict(model, optimizer)
    if not used:
        optimizer.state.clear()
        values[1]["state"] = {}

    def add(value: Any) -> None:
        if isinstance(value, DTensor):
            value = value.full_tensor()
        elif isinstance(value, ShardedTensor):  # of FSDP1, whose own full state crashes without a GPU
            whole = torch.empty(value.size())
            value.gather(0, whole if rank == 0 else None)
            value = whole
        if isinstance(value, torch.Tensor):
            digest.update(value.numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                digest.update(str(key).encode())
                add(value[key])
        elif isinstance(value, list):
            for each in value:
                add(each)
        else:
            digest.update(repr(value).encode())

    add(list(values))
    if rank == 0:
        with (given.out / "states").open("a") as file:
            file.write(json.dumps([step, digest.hexdigest()]) + "\n")


progress = type(session).progress
stops = os.environ.get("TEST_STOPS_AT", "").split(",")


def at(self: Any, step: int, *rest: Any) -> None:
    if str(step) in stops:
        self._asked = True  # on every rank, outside of hpcdl
    progress(self, step, *rest)


type(session).progress = at  # type: ignore[method-assign,assignment]

options: dict[str, Any] = {"every": given.every, "asynchronous": given.asynchronous}
if given.kind in ("ddp", "plain"):
    options["sharded"] = True
for step in suspendable.steps(given.steps, **options, model=model, optimizer=optimizer, scheduler=scheduler):
    note(step)
    x = torch.randn(16, 9)
    if given.kind == "dtensor":
        weights = [each.full_tensor() for each in trained.parameters()]
        y = torch.nn.functional.dropout(torch.tanh(x @ weights[0].T + weights[1]), 0.1) @ weights[2].T + weights[3]
    else:
        y = model(x)
    loss = torch.nn.functional.mse_loss(y, x.sum(1, keepdim=True).sin())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
note(given.steps)
if dist.is_initialized():
    dist.destroy_process_group()
