"""Ranks that keep their process while the job is rescaled: they wait, form a group, train, and form the next one."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from hpcdl.trainer import forming
from hpcdl.trainer.channel import Refused
from hpcdl.trainer.forming import Group, Own
from hpcdl.trainer.membership import Membership
from hpcdl.trainer.session import log
from hpcdl.trainer.training import Reform, Training, World

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
        self._group: Group | None = None
        self._broken = False
        self._wanted_since = time.monotonic()
        address = os.environ.get("HPCDL_ADDRESS") or "127.0.0.1"
        forming.choose_interface(address)
        self._own = Own(address) if self._session.local_rank == 0 else None

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
                self._training.train(world)
                self._training.finish()
                return
            except _Overtaken:
                continue
            except Reform:
                continue
            except Exception as error:
                if not forming.lost(error):
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
        for part in training.parts.values():
            if hasattr(part, "zero_grad"):
                part.zero_grad(set_to_none=True)  # of a backward pass that came half way
        if session.target is None or session.target.number <= self._tried:
            log.warning("lost the other ranks at step %d: %s", training.step, why)
            session.broken(training.step, why)

    # waiting

    def _await_node(self) -> None:
        """The lead rank speaks for its node, so it waits for the others there: nobody else should have to."""
        mine, ranks = self._session.local_rank, int(os.environ.get("HPCDL_LOCAL_RANKS") or 1)
        path = os.environ.get(forming.LOCAL_STORE)
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
        store, everybody = forming.meet(wanted, rank, str(session.incarnation), about, check)
        self._tried = wanted.number
        self._group = Group(None, store, rank, wanted.size, self._timeout_s)
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
