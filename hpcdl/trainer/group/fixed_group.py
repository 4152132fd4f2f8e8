"""Ranks that form one group for as long as they live: one alone, those of one node or of a fixed number of nodes, or
those that torchrun starts anew for every membership and that resume from the checkpoint."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from hpcdl.trainer.group.in_place import Relaunch, Training, World
from hpcdl.trainer.group.process_groups import LOCAL_STORE, ProcessGroup
from hpcdl.trainer.ranks import GROUP
from hpcdl.trainer.session import ENDED_UNSAVED, PRESETS

OTHERS_S = 0.5  # for the launcher's signal to come to the other ranks, too
PATIENCE_S = 5.0
PATIENCE_LIMIT_S = 25.0  # torchrun kills 30 s after its SIGTERM


class FixedGroup:
    """One rank, from its start to the end of the training or of its process."""

    def __init__(self, training: Training, timeout_s: float) -> None:
        self._training = training
        self._session = training.session
        self._timeout_s = timeout_s
        self._by_environment = bool(
            os.environ.get("WORLD_SIZE")
        )  # a launcher's, or the agent's on a fixed number of nodes
        self._by_torchrun = self._by_environment and (GROUP not in os.environ or "TORCHELASTIC_RUN_ID" in os.environ)

    def run(self) -> None:
        """Returns when training is complete. Raises SystemExit: 0 when suspended, 143 when torchrun ends the rank."""
        training, session = self._training, self._session
        if self._by_torchrun:
            self._heed_launcher()
            while session.receive(0.0) is not None:
                continue  # the newest membership came right after the attach; it is the one that begins now
            if session.target is not None:
                session.adopt(session.target.number, session.rank)
        group, rank, size = self._form()
        random = training.load() if rank == 0 else ""
        if size > 1:
            training.spread(0, rank != 0, random)
        training.over = training.ranks().any(training.over)
        training.held = True
        training.announce = lambda: session.ready(training.step)
        try:
            training.run(World(training, group, rank, size, session.membership))
        except Relaunch:
            # A rank that ended by itself with 0 would count as complete, and who still trains would fail.
            until = time.monotonic() + OTHERS_S
            while not session.terminated and time.monotonic() < until:
                time.sleep(0.01)
            session.leave(ENDED_UNSAVED)
        group.dissolve()

    def _form(self) -> tuple[ProcessGroup, int, int]:
        import torch.distributed as dist

        if self._by_environment:
            group = ProcessGroup(None, None, 0, 0, self._timeout_s)
            return group, int(dist.get_rank()), int(dist.get_world_size())
        size = int(os.environ.get("HPCDL_LOCAL_RANKS") or 1)
        nodes = [name for name in os.environ.get("HPCDL_NODES", "").split(",") if name]
        if len(nodes) > 1 and self._session.inside:
            raise ValueError(
                f"{len(nodes)} nodes, but nothing makes them one group (an agent of an earlier version?): submit with "
                "--rescale in-process, or torchrun"
            )
        store: Any = dist.HashStore()
        if size > 1:
            path = os.environ.get(LOCAL_STORE)
            if not path:
                raise ValueError(
                    f"HPCDL_LOCAL_RANKS is {size}, but {LOCAL_STORE} is not set: python -m hpcdl.trainer.ranks"
                )
            store = dist.FileStore(path, size)
        rank = self._session.local_rank if size > 1 else 0
        return ProcessGroup(None, store, rank, size, self._timeout_s), rank, size

    def _heed_launcher(self) -> None:
        """SIGTERM, by which torchrun ends ranks to start them anew, asks for a commit first."""
        if threading.current_thread() is not threading.main_thread():
            return
        if self._session.inside and PRESETS.get(os.environ.get("HPCDL_SIGNAL") or "hpcdl") is signal.SIGTERM:
            return  # that is how a suspend is asked for
        signal.signal(signal.SIGTERM, self._on_terminate)
        # In a collective that waits for a peer that is gone, no handler of Python's ever runs; this descriptor is
        # written to all the same.
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
            return
        threading.Thread(target=self._guard, args=(reading,), name="hpcdl SIGTERM", daemon=True).start()

    def _on_terminate(self, number: int, frame: FrameType | None) -> None:
        self._session.terminated = True

    def _guard(self, reading: int) -> None:
        while signal.SIGTERM not in os.read(reading, 64):
            continue
        training = self._training
        self._session.terminated = True
        since = time.monotonic()
        while True:
            time.sleep(0.1)
            patience = min(PATIENCE_LIMIT_S, max(PATIENCE_S, 4 * training.longest_s))
            if not training.saves and time.monotonic() - max(since, training.busy_since) > patience:
                os._exit(ENDED_UNSAVED)
