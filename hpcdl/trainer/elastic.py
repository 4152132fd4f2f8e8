"""PyTorch training on a number of ranks that changes while it runs.

    import hpcdl.trainer as hpcdl
    hpcdl.attach()  # before the heavy imports
    from hpcdl.trainer import elastic

    def train(world):  # called anew for every membership
        ddp = world.wrap(model)
        for step in world.steps():
            ...

    elastic.run(train, total=10000, every=500, model=model, optimizer=optimizer)

The same script runs rescaled in place (`--rescale in-process`), under torchrun, suspended and resumed, and without
hpcdl; docs/elastic.md says what each costs. PyTorch is imported at the first use.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import hpcdl.trainer.torch as saving
from hpcdl.trainer.group.fixed_group import FixedGroup
from hpcdl.trainer.group.in_place import InPlace, Training, World
from hpcdl.trainer.group.process_groups import device
from hpcdl.trainer.parts import capture_own, restore_own, shared_parts
from hpcdl.trainer.session import IN_PROCESS, attach

__all__ = ["World", "device", "run"]

TIMEOUT_S = 1800.0


def run(
    train: Callable[[World], object],
    *,
    total: int | None = None,
    every: int | None = None,
    warm_up: Callable[[], object] | None = None,
    agree_every: int = 1,
    timeout_s: float = TIMEOUT_S,
    **parts: Any,
) -> None:
    """Train to `total` steps (HPCDL_STEPS without it), with `train(world)` called once for every membership.

    `parts`: model, optimizer, scheduler, scaler, a sampler, all that has `state_dict` and `load_state_dict`, and random
    generators and `hpcdl.trainer.torch.Values`, of which each rank has its own. They are made before, the same way on
    every rank, and hold the state of the training from one membership to the next; a rank that joins gets it from the
    others. A checkpoint is written every `every` steps, when a suspend is asked for (then the process exits), and at
    the end. `warm_up` is called before the rank joins, while others may train: a
    dummy step on the parts, whose state is put back after it. With `agree_every` = k the ranks ask each other only at
    each k-th step. `timeout_s`: for a collective.

    Raises ValueError, TypeError for a part without a state, StaleIncarnation, and whatever the script raises: only the
    loss of other ranks is survived.
    """
    session = attach()
    if total is None:
        total = session.total
    if total is None:
        raise ValueError("say how many steps there are: elastic.run(total=...), or submit with --steps")
    saving.check(parts)
    training = Training(session, train, parts, total, every, agree_every)
    start(training, warm_up, timeout_s)


def start(training: Training, warm_up: Callable[[], object] | None, timeout_s: float) -> None:
    """Train in the way that the job is rescaled; see `run`."""
    device()
    if training.session.rescale == IN_PROCESS and not os.environ.get("WORLD_SIZE"):
        warm(training, warm_up)
        InPlace(training, timeout_s).run()
    else:
        FixedGroup(training, timeout_s).run()


def warm(training: Training, warm_up: Callable[[], object] | None) -> None:
    """What the first step would do for the first time: a step of a tiny model, and the script's own warm-up. Neither
    leaves a trace in the parts or in the random states."""
    import torch
    import torch.distributed as dist

    own = capture_own(training.parts)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tiny = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(tiny.parameters(), lr=0.1, momentum=0.9)
    torch.nn.parallel.DistributedDataParallel(tiny)(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    dist.destroy_process_group()
    if warm_up is not None:
        shared = shared_parts(training.parts)
        before = {name: copy.deepcopy(part.state_dict()) for name, part in shared.items()}
        warm_up()
        for name, part in shared.items():
            part.load_state_dict(before[name])
            if hasattr(part, "zero_grad"):
                part.zero_grad(set_to_none=True)
    restore_own(training.parts, own)
