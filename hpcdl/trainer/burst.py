"""Burst-parallel training: each stage of a model on as many ranks as pay for it, the others free meanwhile (DeepPool).

    import hpcdl.trainer as hpcdl
    hpcdl.attach()  # before the heavy imports
    from hpcdl.trainer import burst

    burst.run(model, loss, batches, plan=[4, 4, 2, 1], optimizer=optimizer, total=10000, every=500)

The ranks come and go as in `elastic.run`: rescaled in place, under torchrun, suspended and resumed, and without hpcdl.
stages.py has one step; the planner is not here (`hpcdl burst plan`). PyTorch is imported at the first use.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hpcdl.trainer.torch as saving
from hpcdl.trainer import elastic
from hpcdl.trainer.group.in_place import Training, World
from hpcdl.trainer.session import attach
from hpcdl.trainer.stages import Stages

__all__ = ["run"]

PLANS = "HPCDL_BURST_PLANS"  # by number of ranks, as JSON: of a job that was submitted with --burst-plan, --burst-limit

profiler: Callable[..., None] | None = None
"""Called by `run` in the place of the training, where the script is run by burst_profile.py."""


def run(
    model: Any,
    loss: Callable[[Any, Any], Any],
    batches: Callable[[int], tuple[Any, Any]] | Sequence[tuple[Any, Any]],
    *,
    plan: Any = None,
    optimizer: Any,
    scheduler: Any = None,
    scaler: Any = None,
    amp: Any = None,
    max_norm: float | None = None,
    total: int | None = None,
    every: int | None = None,
    seed: int = 0,
    on_step: Callable[[int, float], object] | None = None,
    agree_every: int = 1,
    timeout_s: float = elastic.TIMEOUT_S,
    **parts: Any,
) -> None:
    """Train to `total` steps (HPCDL_STEPS without it), each with the whole global batch, as one process would.

    `model`: an nn.Sequential, or a list of modules; each is a stage, which takes one tensor and gives one, with a row
    for each sample. A residual block is one stage. `loss(output, target)`: the mean over the samples that it gets.
    `batches(step)`, or `batches[step % len(batches)]`: inputs and targets of the whole batch, the same on every rank; a
    rank takes its rows out of them by a slice. `plan`: ranks by stage, stage s runs on ranks 0 to plan[s]-1; a list
    (cut where there are fewer ranks), such lists by number of ranks, or a function of it; None: that of the job
    (`submit --burst-plan`, `--burst-limit`), and outside of hpcdl all ranks.

    `amp`: the dtype of autocast; `scaler`: a GradScaler, for float16. `max_norm`: of the gradient, which is clipped.
    Before each step the random generators are seeded by `seed`, the step and the rank: so dropout is the same whatever
    was suspended or rescaled before. `on_step(steps, loss)` is called on rank 0. The others as in `elastic.run`.

    Raises ValueError, StaleIncarnation, and what the script's own functions raise.
    """
    import torch

    session = attach()
    stages = list(model)
    if not isinstance(model, torch.nn.Module):
        model = torch.nn.ModuleList(stages)
    if total is None:
        total = session.total
    if total is None:
        raise ValueError("say how many steps there are: burst.run(total=...), or submit with --steps")

    at = batches if callable(batches) else lambda step: batches[step % len(batches)]
    if profiler is not None:
        profiler(model, at(0)[0], amp)

    def train(world: World) -> None:
        training.train_in(
            world, Stages(stages, widths(plan, len(stages), world.size), loss, world.first, world.device, amp)
        )

    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, **parts}
    saving.check(parts)
    training = BurstTraining(session, train, parts, total, every, agree_every)
    training.batches = at
    training.max_norm, training.seed, training.on_step = max_norm, seed, on_step
    elastic.start(training, None, timeout_s)


def widths(plan: Any, stages: int, size: int) -> list[int]:
    """Ranks by stage, of a plan as `run` takes it, where there are `size` ranks. Raises ValueError."""
    if plan is None:
        # hpcdl's: one counts for more GPUs, too, up to the next.
        ready = {int(gpus): found for gpus, found in json.loads(os.environ.get(PLANS) or "{}").items()}
        plan = {size: ready[max(gpus for gpus in ready if gpus <= size)] if ready else [size] * stages}
    if callable(plan):
        found = plan(size)
    elif isinstance(plan, Mapping):
        if size not in plan:
            raise ValueError(f"there is no plan for {size} ranks, only for {', '.join(map(str, sorted(plan)))}")
        found = plan[size]
    else:
        found = [min(width, size) for width in plan]
    if len(found) != stages or not all(isinstance(width, int) and 1 <= width <= size for width in found):
        raise ValueError(f"plan {list(found)}: say a number of ranks from 1 to {size} for each of {stages} stages")
    return list(found)


def reseed(*numbers: int) -> None:
    """Seed Python's, PyTorch's and (where it is loaded) NumPy's random generators by these numbers."""
    import torch

    digest = hashlib.sha256(" ".join(map(str, numbers)).encode()).digest()
    number = int.from_bytes(digest[:8], "big") >> 1
    random.seed(number)
    torch.manual_seed(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number % 2**32)


class BurstTraining(Training):
    """A training whose ranks hold the newest state of those stages only that they have a part in; rank 0 of all."""

    batches: Callable[[int], tuple[Any, Any]]
    max_norm: float | None = None
    seed = 0
    on_step: Callable[[int, float], object] | None = None
    _stages: Stages | None = None

    def train_in(self, world: World, stages: Stages) -> None:
        """The steps of one membership."""
        self._stages = stages
        try:
            for step in world.steps():
                self._train_step(step, stages)
            self.hand_over()
        finally:
            self._stages = None
            stages.close()

    def _train_step(self, step: int, stages: Stages) -> None:
        import torch.distributed as dist

        reseed(self.seed, step)
        inputs, targets = self.batches(step)
        reseed(self.seed, step, stages.rank + 1)
        value = stages.backward(inputs, targets, self._scaler)
        if self.on_step is not None and dist.get_world_size() > 1:
            dist.reduce(value, 0)
        self._update(stages)
        stages.commit()
        if self.on_step is not None and stages.rank == 0:
            self.on_step(step + 1, float(value))

    @property
    def _scaler(self) -> Any:
        scaler = self.parts.get("scaler")
        return scaler if scaler is not None and scaler.is_enabled() else None

    def _update(self, stages: Stages) -> None:
        """The optimizer's step, on what this rank holds. Rank 0 has all gradients, so it judges for all."""
        import torch
        import torch.distributed as dist

        optimizer, scheduler, scaler = self.parts["optimizer"], self.parts.get("scheduler"), self._scaler
        every = [each for group in optimizer.param_groups for each in group["params"]]
        held = [each.grad for each in every if each.grad is not None]
        if scaler is not None or self.max_norm is not None:
            norm = torch.zeros((), dtype=torch.float64)
            if stages.rank == 0 and held:
                norm = torch.stack([each.double().norm().cpu() for each in held]).norm()
            if dist.get_world_size() > 1:
                dist.broadcast(norm, src=0)
            if self.max_norm is not None:
                limit = self.max_norm * (1.0 if scaler is None else scaler.get_scale())
                for each in held:
                    each.mul_(min(1.0, limit / (float(norm) + 1e-6)))
            if scaler is not None and not held:
                # What it does to a stage that this rank has no part in is overwritten when it gets one.
                every[0].grad = torch.zeros_like(every[0])
                held = [every[0].grad]
            if scaler is not None and not torch.isfinite(norm):
                held[0].fill_(float("inf"))  # also where the rank's own are finite: all skip the step, or none
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        if scheduler is not None:
            scheduler.step()

    # what a rank holds

    def end(self, world: World, began: float) -> None:
        assert self._stages is not None
        self.held = self._stages.rank < self._stages.whole
        super().end(world, began)

    def hand_over(self) -> None:
        """Rank 0 gives what it holds to those that do not hold all of it."""
        assert self._stages is not None
        if self._stages.whole < self._stages.size:
            self.spread(0, not self.held, "")
        self.held = True
