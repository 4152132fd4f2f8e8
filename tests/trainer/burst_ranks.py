"""One of the ranks of test_burst.py: carries out plans, and compares with one process that has the whole batch.

`burst_ranks.py RANK SIZE STORE`; rank 0 prints a line of JSON for each case.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hpcdl.trainer import burst
from hpcdl.trainer.group.process_groups import ProcessGroup
from hpcdl.trainer.session import attach
from hpcdl.trainer.stages import Stages

PLANS = ((4, 4, 2, 1), (1, 2, 4, 4), (4, 1, 4, 2), (3, 4, 2, 3))
CPU = torch.device("cpu")


class Block(nn.Module):
    """A residual block, as ResNet has them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),  # its bias has the gradient zero
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels, momentum=None),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.body(x))


def linear() -> list[nn.Module]:
    return [
        nn.Sequential(nn.Linear(6, 8), nn.Tanh()),
        nn.Linear(8, 16),
        nn.Sequential(nn.Tanh(), nn.Linear(16, 5)),
        nn.Linear(5, 3),
    ]


def residual() -> list[nn.Module]:
    first = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    return [first, Block(4), nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten()), nn.Linear(16, 3)]


def embedded() -> list[nn.Module]:
    """Integers come in; the second stage is frozen, the third has nothing to train."""
    stages = [nn.Embedding(7, 4), nn.Linear(4, 4), nn.Flatten(), nn.Linear(8, 3)]
    stages[1].requires_grad_(False)
    return stages


def frozen() -> list[nn.Module]:
    """Nothing before the third stage is trained."""
    stages = linear()
    for stage in stages[:2]:
        stage.requires_grad_(False)
    return stages


def in_place() -> list[nn.Module]:
    """Stages that begin by changing their input, as torchvision's VGG has them."""
    end = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 3))
    return [nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 5), end]


def shared() -> list[list[nn.Module]]:
    """Two stages with the same weights, running statistics, or BatchNorm without either."""
    linear, norm = nn.Linear(6, 6), nn.BatchNorm1d(6, affine=False)
    bare = nn.BatchNorm1d(6, affine=False, track_running_stats=False)
    return [[each, nn.Sequential(nn.Tanh(), each)] for each in (linear, norm, bare)]


def floats(*shape: int) -> Callable[[int], torch.Tensor]:
    return lambda batch: torch.randn(batch, *shape)


MODELS: dict[str, tuple[Callable[[], list[nn.Module]], Callable[[int], torch.Tensor]]] = {
    "linear": (linear, floats(6)),
    "residual": (residual, floats(3, 6, 6)),
    "embedded": (embedded, lambda batch: torch.randint(7, (batch, 2))),
    "frozen": (frozen, floats(6)),
    "in place": (in_place, floats(6)),
}


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target)


def differences(
    rank: int, stages: list[nn.Module], alone: list[nn.Module], widths: tuple[int, ...]
) -> dict[str, float]:
    """Of the gradients that this rank holds, and on rank 0 of BatchNorm's running statistics."""
    absolute = relative = buffers = 0.0
    for mine, theirs, width in zip(stages, alone, widths, strict=True):
        for parameter, expected in zip(mine.parameters(), theirs.parameters(), strict=True):
            if rank >= width or expected.grad is None:
                assert parameter.grad is None
                continue
            off = (parameter.grad - expected.grad).abs().max().item()
            absolute = max(absolute, off)
            if expected.grad.norm().item() > 1e-6:  # a bias before BatchNorm has none but for rounding
                relative = max(relative, ((parameter.grad - expected.grad).norm() / expected.grad.norm()).item())
        if rank == 0:
            for buffer, wanted in zip(mine.buffers(), theirs.buffers(), strict=True):
                buffers = max(buffers, (buffer - wanted).abs().max().item())
    return {"absolute": absolute, "relative": relative, "buffers": buffers}


def case(
    group: ProcessGroup, rank: int, name: str, widths: tuple[int, ...], batch: int, dtype: torch.dtype
) -> dict[str, Any]:
    torch.manual_seed(batch)
    build, sample = MODELS[name]
    stages = [stage.to(dtype) for stage in build()]
    alone = copy.deepcopy(stages)
    x, y = sample(batch), torch.randint(3, (batch,))
    if x.is_floating_point():
        x = x.to(dtype)
    whole = loss(nn.Sequential(*alone)(x), y)
    whole.backward()
    made = Stages(stages, widths, loss, group.first, CPU)
    made._together = name in ("linear", "embedded")  # the exchanges of GPUs, which gloo has as well
    value = made.backward(x, y)
    made.commit()
    made.close()
    dist.all_reduce(value)
    row = torch.tensor(list(differences(rank, stages, alone, widths).values()), dtype=torch.float64)
    dist.all_reduce(row, op=dist.ReduceOp.MAX)
    about = {"model": name, "plan": widths, "batch": batch, "dtype": str(dtype).rpartition(".")[2]}
    off = dict(zip(("absolute", "relative", "buffers"), row.tolist(), strict=True))
    return {**about, **off, "loss": abs(value.item() - whole.item())}


def mixed(group: ProcessGroup, rank: int, dtype: torch.dtype, steps: int) -> dict[str, Any]:
    """Autocast and clipping, and for float16 a GradScaler whose first scale is too large: how far the weights are from
    those of one process in float32, by how far that went. The plan leaves rank 3 without any stage."""
    torch.manual_seed(3)
    stages = residual()
    alone = nn.Sequential(*copy.deepcopy(stages))
    x, y = torch.randn(10, 3, 6, 6), torch.randint(3, (10,))
    model = nn.ModuleList(stages)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26) if dtype == torch.float16 else None
    parts = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "scaler": scaler}
    training = burst.BurstTraining(attach(), lambda world: None, parts, steps, None, 1)
    training.batches, training.max_norm = lambda step: (x, y), 0.5
    training._stages = made = Stages(stages, (3, 1, 2, 1), loss, group.first, CPU, dtype)
    for step in range(steps):
        training._train_step(step, made)
        training.held = rank < made.whole
    training.hand_over()
    made.close()
    scale = torch.tensor([1.0 if scaler is None else scaler.get_scale()])
    scales = [torch.zeros(1) for _ in range(4)]
    dist.all_gather(scales, scale)
    skips = 0 if scaler is None else 26 - int(scale.log2().item())
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    start = torch.cat([each.detach().reshape(-1).clone() for each in alone.parameters()])
    for _ in range(steps - skips):
        optimizer.zero_grad()
        loss(alone(x), y).backward()
        nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
        optimizer.step()
    end, mine = (torch.cat([each.detach().reshape(-1) for each in of.parameters()]) for of in (alone, model))
    off = (mine - end).norm() / (end - start).norm()
    return {
        "dtype": str(dtype).rpartition(".")[2],
        "off": off.item(),
        "skips": skips,
        "scales": len({*map(float, scales)}),
    }


def main(rank: int, size: int, store: str) -> None:
    torch.set_num_threads(1)
    group = ProcessGroup("gloo", dist.FileStore(store, size), rank, size, 60.0)
    for name in MODELS:
        for widths in PLANS:
            for batch in range(3, 14) if name == "residual" else (3, 10):
                for dtype in (torch.float64, torch.float32) if batch % 3 == 0 else (torch.float64,):
                    made = case(group, rank, name, widths, batch, dtype)
                    if rank == 0:
                        print(json.dumps(made), flush=True)
    for dtype, steps in ((torch.bfloat16, 6), (torch.float16, 20)):
        made = mixed(group, rank, dtype, steps)
        print("amp", json.dumps(made), flush=True)
    for stages in shared():
        try:
            Stages(stages, (4, 2), loss, group.first, CPU)
        except ValueError as error:
            print("refused", error, flush=True)
    whole = Stages(linear(), (4, 4, 4, 4), partial(nn.functional.cross_entropy, reduction="none"), group.first, CPU)
    try:
        whole.backward(torch.randn(8, 6), torch.zeros(8, dtype=torch.long))
    except ValueError as error:
        print("refused", error, flush=True)
    dist.barrier()
    group.dissolve()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
