"""What a training script imports: `import hpcdl.trainer as hpcdl`.

Standard library only, and a no-op outside hpcdl. Ten lines make a loop suspendable:

    import hpcdl.trainer as hpcdl

    hpcdl.attach()  # before the heavy imports
    for step in hpcdl.steps(1000, save=save, load=load, every=100):
        train(step)

or call `resume`, `ready`, `progress`, `should_suspend`, `checkpoint` and `exit_suspended` from a loop of your own.
`hpcdl.trainer.elastic` is for PyTorch on a number of ranks that changes while it trains.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from hpcdl.trainer.channel import Refused
from hpcdl.trainer.checkpoints import Checkpoint, StaleIncarnation
from hpcdl.trainer.loop import steps
from hpcdl.trainer.session import Gathering, Session, attach

__all__ = [
    "Checkpoint",
    "Refused",
    "Session",
    "StaleIncarnation",
    "attach",
    "checkpoint",
    "done",
    "exit_suspended",
    "progress",
    "ready",
    "resume",
    "should_suspend",
    "steps",
]


def resume(before: Checkpoint | None = None) -> Checkpoint | None:
    """See Session.resume."""
    return attach().resume(before)


def ready(step: int) -> None:
    """See Session.ready."""
    attach().ready(step)


def progress(
    step: int, total: int | None = None, samples: int | None = None, metric: float | None = None, **more: Any
) -> None:
    """See Session.progress."""
    attach().progress(step, total, samples, metric, **more)


def should_suspend() -> bool:
    """See Session.should_suspend."""
    return attach().should_suspend()


@contextmanager
def checkpoint(step: int, ranks: Gathering | None = None) -> Iterator[Path]:
    """See Session.checkpoint."""
    with attach().checkpoint(step, ranks) as folder:
        yield folder


def exit_suspended(hard: bool = False) -> NoReturn:
    """See Session.exit_suspended."""
    attach().exit_suspended(hard)


def done(step: int) -> None:
    """See Session.done."""
    attach().done(step)
