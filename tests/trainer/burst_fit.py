"""A burst-parallel training for test_burst.py, with dropout, BatchNorm, momentum and a schedule.

Rank 0 prints `step STEPS LOSS`, the loss as a hexadecimal number. With `--changes 0:4,13:2` nothing happens to it: 4
ranks live from its begin to its end, and its plan is that for so many ranks from such a step on.
"""

# ruff: noqa: E402 (attaching comes before the heavy imports)

import hpcdl.trainer as hpcdl

session = hpcdl.attach()

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn

from hpcdl.trainer import burst, elastic
from hpcdl.trainer.group.in_place import World
from hpcdl.trainer.stages import Stages

PLANS = {4: [4, 1, 3, 2], 3: [1, 3, 2, 1], 2: [1, 2, 2, 1], 1: [1, 1, 1, 1]}

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--pace", type=float, default=0.0)
parser.add_argument("--changes", default="")
parser.add_argument("--out", help="a folder for the state at the end, with --changes")
parser.add_argument("--job-plan", action="store_true", help="that of the job; rank 0 prints it")
given = parser.parse_args()

torch.manual_seed(7)
torch.set_num_threads(1)
model = nn.Sequential(
    nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU()),
    nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.2), nn.ReLU()),
    nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(0.2)),
    nn.Linear(16, 1),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.7)


def batches(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(11, 8)  # the same on every rank, for it is seeded by the step
    return x, x.sum(1, keepdim=True).sin()


def report(step: int, loss: float) -> None:
    if given.job_plan:
        os.write(1, f"plan {burst.widths(None, 4, torch.distributed.get_world_size())}\n".encode())
    os.write(1, f"step {step} {loss.hex()}\n".encode())
    time.sleep(given.pace)


def changing() -> None:
    """The reference."""
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    starts = [(int(step), int(size)) for step, _, size in (each.partition(":") for each in given.changes.split(","))]

    def train(world: World) -> None:
        for (start, size), (end, _) in zip(starts, [*starts[1:], (given.steps, 0)], strict=True):
            stages = Stages(list(model), PLANS[size], nn.functional.mse_loss, world.first, world.device)
            training._stages = stages
            for step in range(start, end):
                training._train_step(step, stages)
                training.held = world.rank < stages.whole
            training.hand_over()
            stages.close()
        training._write(Path(given.out))

    training = burst.BurstTraining(session, train, parts, given.steps, None, 1)
    training.batches, training.on_step = batches, report
    elastic.start(training, None, 60.0)


if given.changes:
    changing()
else:
    options = {"optimizer": optimizer, "scheduler": scheduler, "total": given.steps, "on_step": report}
    plan = None if given.job_plan else PLANS
    burst.run(model, nn.functional.mse_loss, batches, plan=plan, timeout_s=60.0, **options)
