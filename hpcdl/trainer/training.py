"""A training that outlives its process groups: its state, its steps, and what happens between two of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hpcdl.trainer.torch as saving
from hpcdl.trainer import forming, loop, rng, sharing
from hpcdl.trainer.forming import Group
from hpcdl.trainer.session import Session, log


class Reform(BaseException):
    """Leaves the script's loop at a step boundary that all ranks agreed on, for a newer membership; no `except
    Exception` of the script's catches it."""


class Ended(BaseException):
    """As Reform, for ranks whose launcher starts them anew: what was to be kept is durable."""


class World:
    """What the script's `train` gets: one membership, from the forming of its process group to the end of it."""

    def __init__(self, training: Training, group: Group, rank: int, size: int, number: int) -> None:
        self.rank = rank
        self.size = size
        self.membership = number
        self.local_rank = training.session.local_rank
        self.device = forming.device()
        self._training = training
        self._group = group

    def wrap(self, module: Any, **options: Any) -> Any:
        """The module in DistributedDataParallel, for this membership only; `options` are that class's."""
        if any(module is part for part in self._training.parts.values()):
            options.setdefault("init_sync", False)  # its state is the same on all ranks already
        if self.device.type == "cuda":
            options.setdefault("device_ids", [self.device.index])
        return self._group.wrap(module, **options)

    def steps(self) -> Iterator[int]:
        """Yields the steps that are still to do, counted from 0 over the whole training. Between two of them the
        ranks agree on what comes next, checkpoints are written, and a rescale or a suspend leaves the loop."""
        training = self._training
        while training.step < training.total:
            training.between(self)
            began = training.begin(self)
            yield training.step
            training.end(self, began)


class Training:
    """The script's parts, and how far they are. `held`: they hold a state that others may take; `saved`: the step of
    the newest checkpoint that this rank wrote or read."""

    def __init__(
        self,
        session: Session,
        train: Callable[[World], object],
        parts: Mapping[str, Any],
        total: int,
        every: int | None,
        agree_every: int,
    ) -> None:
        if total < 0 or (every is not None and every < 1) or agree_every < 1:
            raise ValueError(f"total {total} must be 0 or more; every {every} and agree_every {agree_every} 1 or more")
        self.session = session
        self.train = train
        self.parts = {name: part for name, part in parts.items() if part is not None}
        self.total = total
        self.every = every
        self.agree_every = agree_every
        self.step = 0
        self.held = False
        self.saved: int | None = None
        self.terminated = False  # the launcher wants this rank gone
        self.busy_since = time.monotonic()  # when what the main thread does now began
        self.last_end: float | None = None  # of a step
        self.longest_s = 0.0  # of the steps so far
        self.saves = False  # a checkpoint is being written now
        self.announce: Callable[[], None] | None = None  # before the first step of a membership
        self._known = session.membership  # the newest membership that was acted upon, where ranks start anew for it

    # between two steps

    def between(self, world: World) -> None:
        """Ask all ranks what they know. Raises Reform or Ended, and SystemExit when suspended."""
        suspended = self.session.should_suspend()
        if self.step % self.agree_every:
            return
        target, leaving = self.session.target, self.session.leaving
        newest = 0 if target is None else target.number
        mine = [suspended, newest, not leaving, self.terminated, self.unsaved]
        asked, newest, stays, terminated, needed = _most(mine, world.size)
        if asked:
            self.suspend(bool(needed))
        if terminated:
            self._save(bool(needed))
            saving.Ranks().barrier()
            raise Ended
        if newest <= max(self.session.membership, self._known):
            return
        self._known = newest
        if self.session.rescale == "in-process":
            # With nobody left who holds it, the state goes on from the disk.
            self._save(bool(needed and not stays))
            raise Reform
        self._save(bool(needed))

    def begin(self, world: World) -> float:
        """A step begins now."""
        if self.announce is not None:
            self.announce()
            self.announce = None
        self.busy_since = time.monotonic()
        return self.busy_since

    def end(self, world: World, began: float) -> None:
        """The step that began then is done."""
        self.step += 1
        self.last_end = time.monotonic()
        self.longest_s = max(self.longest_s, self.last_end - began)
        if world.rank == 0 or world.local_rank == 0:  # the first node's is heard, where rank 0 may be on another
            self.session.progress(self.step, self.total)
        if self.every is not None and self.step % self.every == 0 and self.step < self.total:
            try:
                self._save(self.session.checkpoint_dir is not None)
            except OSError as error:
                log.warning("the checkpoint of step %d failed, training goes on: %s", self.step, error)

    def finish(self) -> None:
        """The script's `train` has returned: training is complete. Collective."""
        ranks = saving.Ranks()
        self._save(ranks.any(self.unsaved))
        ranks.barrier()
        self.session.done(self.step)

    # state

    @property
    def unsaved(self) -> bool:
        """This rank is the writer, and the newest checkpoint is not of this step."""
        return self.session.writer and self.session.checkpoint_dir is not None and self.saved != self.step

    def suspend(self, needed: bool) -> None:
        """Checkpoint if that is still needed, and exit; no rank leaves before the writer's save is durable."""
        self._save(needed)
        self.saves = True  # on the writer's disk, though not here
        try:
            saving.Ranks().barrier()
        except Exception as error:
            if not forming.lost(error):
                raise
            log.warning("ranks were lost while suspending: %s", error)
        self.session.exit_suspended(quick=True)

    def _save(self, needed: bool) -> None:
        if not needed:
            return
        self.saves = True
        try:
            loop.save_now(self.session, self.step, self._write)
            if self.session.writer:
                self.saved = self.step
        finally:
            self.saves = False
            self.busy_since = time.monotonic()

    def _write(self, folder: Path) -> None:
        saving.save(folder, **self.parts)

    def load(self) -> str:
        """Resume from the best checkpoint that loads, on rank 0; the random states of all ranks in it, or "". If there
        are some and none loads, the last error is raised. Raises StaleIncarnation."""
        found, failure = self.session.resume(), None
        while found is not None:
            try:
                saving.load(found.path, **self.parts)
                self.step = self.saved = found.step
                return (found.path / saving.RANDOM).read_text()
            except Exception as error:
                failure = error
                log.warning("the checkpoint %s does not load: %s", found.path.name, error)
            found = self.session.resume(before=found)
        if failure is not None:
            raise failure
        return ""

    def spread(self, source: int, take: bool, random: str) -> None:
        """Collective: the state of rank `source` to those that take it. `random`: what `load` gave there."""
        more = sharing.share(self.parts, json.dumps([self.step, random]), source, take)
        if take:
            step, random = json.loads(more)
            self.step = int(step)
            states = json.loads(random) if random else []
            if 0 < self.session.rank < len(states):
                rng.restore(states[self.session.rank])


def _most(mine: list[Any], size: int) -> list[int]:
    """The largest of each over all ranks."""
    if size == 1:
        return [int(each) for each in mine]
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([int(each) for each in mine], dtype=torch.int64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return [int(each) for each in tensor.tolist()]
