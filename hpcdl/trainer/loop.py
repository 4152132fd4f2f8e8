"""The training loop written once: resume, progress, checkpoints, suspend.

The loops of PyTorch, Keras and Lightning are made of its parts; `group/peers.py` has how ranks agree. No rank may leave
before the writer's checkpoint is durable.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from hpcdl.trainer.background import BackgroundSaves
from hpcdl.trainer.checkpoints import Checkpoint
from hpcdl.trainer.completion import Limits
from hpcdl.trainer.group.peers import RankAgreement, agreement
from hpcdl.trainer.interval import AutoInterval, FixedInterval
from hpcdl.trainer.loop_exit import LoopExit
from hpcdl.trainer.session import Session, attach, log


def steps(
    total: int,
    *,
    save: Callable[[Path], object],
    load: Callable[[Path], object],
    every: int | str | None = None,
    ranks: RankAgreement | None = None,
    snapshot: Callable[[], Callable[[Path], object]] | None = None,
    together: RankAgreement | None = None,
) -> Iterator[int]:
    """Yields the steps still to do, from 0 or from what was resumed, up to total - 1.

    `save(folder)` writes the whole training state into an empty folder, `load(folder)` reads it back. A checkpoint is
    written every `every` steps, when a suspend was asked for (then the trainer exits), and at the end. A periodic save
    that fails for want of disk is logged and training goes on from there; the others raise. `every` "auto": as often as
    the length of a save and the time between interruptions make best; "auto:N": after N steps at most. A `break` out of
    the loop ends the training early: the step that it was in counts as done.

    `snapshot()`: copies the state and returns what writes the copy into a folder. Then the periodic saves are written
    by a thread, one at a time, while training goes on. `together`: the ranks, where each writes a part of its own into
    the one checkpoint; they exchange in that thread, too.
    """
    if total < 0:
        raise ValueError(f"total {total} must not be negative")
    session = attach()
    if ranks is None:
        ranks = agreement(session)
    interval = AutoInterval(every, ranks, os.environ) if isinstance(every, str) else FixedInterval(every)
    resumed = resume(session, load, ranks)
    start = 0 if resumed is None else resumed.step
    last = start if session.is_complete(resumed, (total,)) else total
    saved = None if resumed is None else start
    background = None if snapshot is None else BackgroundSaves(session, snapshot, together)

    def save_last(step: int) -> None:
        if background is not None:
            background.finish(None)
        save_now(session, step, save, together, ranks, (total,))
        ranks.barrier()

    way_out = LoopExit()
    session.ready(start)
    interval.begin(start)
    for step in range(start, last + 1):
        if step > start:
            session.progress(step, total)
        suspends = step < last and ranks.agree(session.should_suspend())
        if background is not None and (suspends or step == last):
            saved = background.finish(saved)
        if suspends:
            suspend(session, step, save, ranks, saved != step, together)
        if step == last:
            if saved != step:
                save_now(session, step, save, together, ranks, (total,))
            break
        if step > start and interval.due(step):
            began = time.monotonic()
            if background is None:
                saved = save_periodically(session, step, save, saved, together, ranks)
                interval.saved(step, time.monotonic() - began if saved == step else None)
            elif session.checkpoint_dir is not None:
                background.start(step)
                interval.saved(step, background.stall_s, background.seconds)
        way_out.entered()
        try:
            yield step
        except GeneratorExit:
            if way_out.is_break():
                session.end_early(step + 1, partial(save_last, step + 1))
            raise
    ranks.barrier()
    session.done(max(start, last))


def save_now(
    session: Session,
    step: int,
    save: Callable[[Path], object],
    together: RankAgreement | None = None,
    ranks: RankAgreement | None = None,
    complete: Limits | None = None,
) -> int | None:
    """Write a checkpoint of `step`; its step, or None where there is no folder to write to. `together`: as `steps`;
    `ranks`: all that call this; `complete`: as `Session.save`."""
    if session.checkpoint_dir is None:
        return None
    session.save(step, save, together, ranks, complete)
    return step


def save_periodically(
    session: Session,
    step: int,
    save: Callable[[Path], object],
    saved: int | None,
    together: RankAgreement | None = None,
    ranks: RankAgreement | None = None,
) -> int | None:
    """As `save_now`, but where the disk fails training goes on: then `saved`, the step of the checkpoint before."""
    try:
        return save_now(session, step, save, together, ranks)
    except OSError as error:
        log.warning("the checkpoint of step %d failed, training goes on: %s", step, error)
        return saved


def suspend(
    session: Session,
    step: int,
    save: Callable[[Path], object],
    ranks: RankAgreement,
    needed: bool = True,
    together: RankAgreement | None = None,
) -> None:
    """Checkpoint `step` if that is still needed, and exit; no rank leaves before the writer's save is durable."""
    if needed:
        save_now(session, step, save, together, ranks)
    ranks.barrier()
    session.exit_suspended()


def resume(session: Session, load: Callable[[Path], object], ranks: RankAgreement) -> Checkpoint | None:
    """Load the best checkpoint that every rank can load, falling back to the one before. If there are some and none
    loads, the last error is raised: to begin again at step 0 must be the user's wish."""
    session.require_first_training()
    ranks.check_writer(session)
    found = session.resume() if session.writer else None
    while True:
        chosen = ranks.choose(found)
        if chosen is None:
            return None
        failure: Exception | None = None
        try:
            load(chosen.path)
        except Exception as error:
            failure = error
        if not ranks.any(failure is not None):
            return chosen
        log.warning("the checkpoint %s does not load: %s", chosen.path.name, failure or "another rank failed")
        found = session.resume(before=chosen) if session.writer else None
        if ranks.choose(found) is None:
            raise failure or RuntimeError(f"another rank could not load {chosen.path.name}")
