"""Ranks that keep their process while the job is rescaled: they wait, form a group, train, and form the next one.

`Training` has the parts and the steps, `InPlace` one rank's way from membership to membership. PyTorch is imported at
the first use; `process_groups.py` has the groups, `broadcast.py` hands the state to ranks that join. The trainings of
`horovod_elastic.py` are derived from `Training`, and need no PyTorch where they are TensorFlow's.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import hpcdl.trainer.torch as saving
from hpcdl.trainer import loop
from hpcdl.trainer.channel import Refused
from hpcdl.trainer.group import broadcast, process_groups
from hpcdl.trainer.group.membership import Membership
from hpcdl.trainer.group.peers import RankAgreement
from hpcdl.trainer.group.process_groups import OwnStore, ProcessGroup
from hpcdl.trainer.parts import own_states, restore_own, set_own_states, shared_parts
from hpcdl.trainer.session import Session, log


class Reform(BaseException):
    """Leaves the script's loop at a step boundary that all ranks agreed on, for a newer membership; no `except
    Exception` of the script's catches it."""


class Relaunch(BaseException):
    """As Reform, for ranks whose launcher starts them anew: what was to be kept is durable."""


class World:
    """What the script's `train` gets: one membership, from the forming of its process group to the end of it."""

    def __init__(self, training: Training, group: ProcessGroup | None, rank: int, size: int, number: int) -> None:
        self.rank = rank
        self.size = size
        self.membership = number
        self.local_rank = training.session.local_rank
        self.device = training.device()
        self._training = training
        self._group = group

    def wrap(self, module: Any, **options: Any) -> Any:
        """The module in DistributedDataParallel, for this membership only; `options` are that class's."""
        if any(module is part for part in self._training.parts.values()):
            options.setdefault("init_sync", False)  # its state is the same on all ranks already
        if self.device.type == "cuda":
            options.setdefault("device_ids", [self.device.index])
        assert self._group is not None, "the ranks are Horovod's"
        return self._group.wrap(module, **options)

    def first(self, width: int) -> Any:
        """The process group of ranks 0 to width-1, for this membership. Collective at the first call for a width."""
        assert self._group is not None, "the ranks are Horovod's"
        return self._group.first(width)

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
    """A training that outlives its process groups: the script's parts, and how far they are. `held`: they hold a state
    that others may take; `saved`: the step of the newest checkpoint that this rank wrote or read.
    """

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
        session.require_first_training()
        self.session = session
        self.train = train
        self.parts = {name: part for name, part in parts.items() if part is not None}
        self.total = total
        self.every = every
        self.agree_every = agree_every
        self.step = 0
        self.held = False
        self.saved: int | None = None
        self.over = False  # an earlier attempt has completed it
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
        mine = [suspended, newest, not leaving, self.session.terminated, self.unsaved]
        asked, newest, stays, terminated, needed = self.most(mine, world.size)
        if asked:
            self.suspend(bool(needed))
        if terminated:
            self._save(bool(needed))
            self.ranks().barrier()
            raise Relaunch
        if newest <= max(self.session.membership, self._known):
            return
        self._known = newest
        if self.session.rescale == "in-process":
            # With nobody left who holds it, the state goes on from the disk.
            self._save(bool(needed and not stays))
            self.hand_over()
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

    def run(self, world: World) -> None:
        """The script's `train`, unless that was complete before; then training is. Collective."""
        if not self.over:
            self.train(world)
        elif self.announce is not None:
            self.announce()
        if not self.over:
            self._save(self.session.checkpoint_dir is not None, complete=True)
            self.over = True
        self.ranks().barrier()
        self.session.done(self.step)

    def hand_over(self) -> None:
        """Before the ranks leave this membership: those that hold the training's state get all of it. Collective."""

    # by torch.distributed; horovod_elastic.py has it otherwise

    def ranks(self) -> RankAgreement:
        """How the ranks of the membership agree."""
        return saving.Ranks()

    def most(self, mine: list[Any], size: int) -> list[int]:
        """The largest of each over all ranks. Collective."""
        return _most(mine, size)

    def lost(self, error: Exception) -> bool:
        """Whether the error says that ranks lost each other."""
        return process_groups.lost(error)

    def recover(self) -> None:
        """After ranks were lost: nothing is left of a backward pass that came half way."""
        for part in self.parts.values():
            if hasattr(part, "zero_grad"):
                part.zero_grad(set_to_none=True)

    def group(self, store: Any, rank: int, wanted: Membership, timeout_s: float) -> ProcessGroup:
        """The group of a membership, all of whose ranks are there now."""
        return ProcessGroup(None, store, rank, wanted.size, timeout_s)

    def own_store(self, address: str) -> Any:
        """The store that this process keeps, where the ranks of a membership may meet; its `address`: host:port."""
        return OwnStore(address)

    def meet(
        self, wanted: Membership, rank: int, scope: str, about: dict[str, Any], check: Callable[[], None]
    ) -> tuple[Any, list[dict[str, Any]]]:
        """As `process_groups.meet`."""
        return process_groups.meet(wanted, rank, scope, about, check)

    def device(self) -> Any:
        """What this rank computes on."""
        return process_groups.device()

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
            self.ranks().barrier()
        except Exception as error:
            if not self.lost(error):
                raise
            log.warning("ranks were lost while suspending: %s", error)
        self.session.exit_suspended(quick=True)

    def _save(self, needed: bool, complete: bool = False) -> None:
        if not needed:
            return
        self.saves = True
        try:
            limits = (self.total,) if complete else None
            loop.save_now(self.session, self.step, self._write, ranks=self.ranks(), complete=limits)
            if self.session.writer:
                self.saved = self.step
        finally:
            self.saves = False
            self.busy_since = time.monotonic()

    def _write(self, folder: Path) -> None:
        saving.save(folder, **self.parts)

    def _read(self, folder: Path) -> None:
        saving.load(folder, **self.parts)

    def load(self) -> str:
        """Resume from the best checkpoint that loads, on rank 0; the random states of all ranks in it, or "". If there
        are some and none loads, the last error is raised. Raises StaleIncarnation."""
        found, failure = self.session.resume(), None
        while found is not None:
            try:
                self._read(found.path)
                self.step = self.saved = found.step
                self.over = self.session.is_complete(found, (self.total,))
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
        mine = json.dumps([self.step, random, own_states(self.parts)])
        more = broadcast.share(shared_parts(self.parts), mine, source, take)
        if take:
            step, random, own = json.loads(more)
            self.step = int(step)
            set_own_states(self.parts, own)
            states = json.loads(random) if random else []
            if 0 < self.session.rank < len(states):
                restore_own(self.parts, states[self.session.rank])


def _most(mine: list[Any], size: int) -> list[int]:
    """The largest of each over all ranks."""
    if size == 1:
        return [int(each) for each in mine]
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([int(each) for each in mine], dtype=torch.int64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return [int(each) for each in tensor.tolist()]


WAIT_S = 0.05

WATCH_S = 0.25

PATIENCE_S = 5.0  # for a boundary once something waits for it; at least so many times the longest step, too:

PATIENCE_STEPS = 4.0


class _Overtaken(Exception):
    """A newer membership is asked for than the one that is being formed."""


class InPlace:
    """One rank, from its joining to the end of the training, or of its part in it."""

    def __init__(self, training: Training, timeout_s: float) -> None:
        self._training = training
        self._session = training.session
        self._timeout_s = timeout_s
        self._tried = 0  # the newest membership that this rank came to form
        self._group: ProcessGroup | None = None
        self._broken = False
        self._wanted_since = time.monotonic()
        address = os.environ.get("HPCDL_ADDRESS") or "127.0.0.1"
        process_groups.choose_interface(address)
        self._own = training.own_store(address) if self._session.local_rank == 0 else None

    def run(self) -> None:
        """Returns when training is complete. Raises SystemExit: 0 for a rank that leaves or is suspended."""
        self._await_node()
        self._session.join("" if self._own is None else self._own.address)
        threading.Thread(target=self._watch, name="hpcdl rescale", daemon=True).start()
        while True:
            wanted, rank = self._next()
            why: str | None = None
            try:
                world = self._form(wanted, rank)
                self._training.run(world)
                return
            except _Overtaken:
                continue
            except Reform:
                continue
            except Exception as error:
                if not self._training.lost(error):
                    raise
                why = f"{type(error).__name__}: {error}"
            finally:
                self._dissolve(why is not None)
            if why is not None:
                self._lose(why)

    def _dissolve(self, lost: bool) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.dissolve(lost)

    def _lose(self, why: str) -> None:
        training, session = self._training, self._session
        self._broken = True
        training.recover()
        if session.target is None or session.target.number <= self._tried:
            log.warning("lost the other ranks at step %d: %s", training.step, why)
            session.broken(training.step, why)

    # waiting

    def _await_node(self) -> None:
        """The lead rank speaks for its node, so it waits for the others there: nobody else should have to."""
        mine, ranks = self._session.local_rank, int(os.environ.get("HPCDL_LOCAL_RANKS") or 1)
        path = os.environ.get(process_groups.LOCAL_STORE)
        if not path or ranks == 1:
            return
        if mine > 0:
            Path(f"{path}.{mine}").touch()
            return
        while not all(os.path.exists(f"{path}.{each}") for each in range(1, ranks)):
            self._heed()
            self._session.receive(WAIT_S)

    def _next(self) -> tuple[Membership, int]:
        """The newest membership that was not tried, and the rank in it. Raises SystemExit."""
        while True:
            self._heed()
            target = self._session.target
            if target is not None and target.number > self._tried:
                rank = target.rank_of(self._session.node, self._session.local_rank)
                if rank is None:
                    self._leave()
                self._wanted_since = time.monotonic()
                return target, rank
            self._session.receive(WAIT_S)

    def _heed(self) -> None:
        if self._session.poll():
            # There is no group to agree with: who was the writer saves what it holds, the others just go.
            self._training.suspend(self._training.held and self._training.unsaved)
        if self._session.leaving:
            self._leave()

    def _leave(self) -> NoReturn:
        self._session.leave(0)

    # forming

    def _form(self, wanted: Membership, rank: int) -> World:
        training, session = self._training, self._session

        def check() -> None:
            self._heed()
            if session.target is not None and session.target.number > wanted.number:
                raise _Overtaken

        about = {"step": training.step, "held": training.held, "broken": self._broken}
        store, everybody = training.meet(wanted, rank, str(session.incarnation), about, check)
        self._tried = wanted.number
        self._group = training.group(store, rank, wanted, self._timeout_s)
        session.adopt(wanted.number, rank)
        fresh = self._agree_on_state(everybody, rank)
        self._broken = False
        training.held = True
        training.announce = lambda: self._announce(rank, fresh)
        training.busy_since = time.monotonic()
        return World(training, self._group, rank, wanted.size, wanted.number)

    def _agree_on_state(self, everybody: list[dict[str, Any]], rank: int) -> bool:
        """The state of who has done the most steps, or the checkpoint's, on all ranks. True: nobody held one yet."""
        training = self._training
        holders = [each for each, about in enumerate(everybody) if about["held"]]
        if not holders:
            random = training.load() if rank == 0 else ""
            if len(everybody) > 1:
                training.spread(0, rank != 0, random)
            training.over = training.ranks().any(training.over)
            return True
        furthest = max(everybody[each]["step"] for each in holders)
        source = next(each for each in holders if everybody[each]["step"] == furthest)
        broken = any(about["broken"] or about["step"] != furthest for about in everybody if about["held"])
        if broken or len(holders) < len(everybody):
            training.spread(source, rank != source and (broken or not training.held), "")
        return False

    def _announce(self, rank: int, fresh: bool) -> None:
        """Before the first step: rank 0 says how long nothing was trained."""
        if rank != 0:
            return
        training, now = self._training, time.monotonic()
        since = self._wanted_since if training.last_end is None else training.last_end
        self._session.reformed(training.step, now - since)
        if fresh:
            self._session.ready(training.step)

    # a peer that is gone without a word

    def _watch(self) -> None:
        """A thread: once something waits for the ranks to come to a step boundary and they do not for long, a peer is
        gone whose connections nobody closed. Then the collective is made to fail."""
        session, training = self._session, self._training
        since: float | None = None
        while True:
            time.sleep(WATCH_S)
            group = self._group
            try:
                while session.receive(0.0) is not None:
                    continue
            except Refused:
                return
            newest = 0 if session.target is None else session.target.number
            if group is None or training.saves or not (session.asked or newest > session.membership):
                since = None
                continue
            now = time.monotonic()
            since = now if since is None else since
            patience = max(PATIENCE_S, PATIENCE_STEPS * training.longest_s)
            if now - max(since, training.busy_since) > patience:
                log.warning("no step boundary for %.0f s: the process group is broken off", patience)
                group.cut()
                since = None
