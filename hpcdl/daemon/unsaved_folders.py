"""Checkpoint folders of jobs that ended without a checkpoint: what is in them is the claim of the last attempt alone.

A claim keeps attempts that are not the newest from writing, so it goes only once its job is finished and the agents of
all nodes of all its attempts have said that nothing of these is left. That of another job, whose `--checkpoint-dir` is
this folder, stays. A job that had a part on a lost node keeps it:
nobody knows that part's end. Those, and what `retention` has taken out of the world, `ledger/trim` removes much later.
"""

import json
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from hpcdl.core.controller.controller import Controller
from hpcdl.core.model import events as ev
from hpcdl.core.model.world import Job
from hpcdl.daemon.loop import ControllerLoop
from hpcdl.ledger.trim import is_unsaved, remove_unsaved
from hpcdl.wire.private_files import NotPrivate, read_private

log = logging.getLogger("hpcdl.daemon")

EVENTS = 1_000
"""Of a job, in one piece."""

MOST_EVENTS = 20_000
"""A job with more is not gone through: its folder stays."""

ANSWER_S = 30.0

LIMIT = 65536  # bytes of a claim


class UnsavedFolders:
    """Removes such folders in the daemon's home. For the thread of its tick."""

    def __init__(self, home: Path, loop: ControllerLoop) -> None:
        self._folder = home / "checkpoints"
        self._loop = loop
        self._looked: dict[int, int] = {}
        """Jobs whose folders stay, by their last attempts: a retry makes another one."""

    def look(self) -> None:
        """Removes those of jobs that have ended since the last look."""
        jobs = self._loop.world.jobs
        for number in self._numbers():
            job = jobs.get(number)
            if job is None or not job.finished or self._looked.get(number) == job.last_incarnation:
                continue
            try:
                if job.spec.checkpoint_dir is None and is_unsaved(self._folder / str(number)) and self._all_gone(job):
                    self._remove(job)
            except OSError as error:  # TimeoutError among them: nobody answered
                log.warning("the checkpoint folder of job %d is looked at again later: %s", number, error)
                continue  # the others do not wait for this one
            # Only now: what could not be asked or removed is tried again. Of a finished job no part is heard any more.
            self._looked[number] = job.last_incarnation

    def _numbers(self) -> list[int]:
        try:
            return [int(name) for name in os.listdir(self._folder) if name.isascii() and name.isdigit()]
        except OSError:  # none yet, or their file system is away: there is nothing to remove, and a start says so
            return []

    def _all_gone(self, job: Job) -> bool:
        after, left = 0, MOST_EVENTS
        events: list[ev.Event] = []
        while left > 0:
            piece = self._loop.events(after, EVENTS, job.id)
            events += [record.event for record in piece]
            if len(piece) < EVENTS:
                return all_gone(events)
            after, left = piece[-1].seq, left - EVENTS
        return False

    def _remove(self, job: Job) -> None:
        """In the controller's thread, which alone could begin a new attempt meanwhile."""
        folder = self._folder / str(job.id)

        def remove(controller: Controller) -> None:
            now = controller.world.jobs.get(job.id)
            over = now is not None and now.finished and now.last_incarnation == job.last_incarnation
            if over and _claimed_by(job, folder):
                remove_unsaved(folder)

        self._loop.call(remove).result(ANSWER_S)


def _claimed_by(job: Job, folder: Path) -> bool:
    """Whether the claim is of this job; what earlier versions wrote has no identity, and stays."""
    with suppress(OSError, NotPrivate, ValueError, AttributeError, RecursionError):
        claim = json.loads(read_private(folder / "claim.json", LIMIT))
        return bool(job.identity) and claim.get("identity") == job.identity
    return False


def all_gone(events: Iterable[ev.Event]) -> bool:
    """Whether, by all events of a job, each node that ever had a part of it has said that nothing of it is left."""
    parts: set[tuple[int, str]] = set()
    gone: set[tuple[int, str]] = set()
    for event in events:
        match event:
            case ev.StartRequested():
                parts.update((event.incarnation, node) for node in event.nodes)
            case ev.JoinRequested():
                parts.update((event.incarnation, node) for node in event.placement.nodes)
                gone.difference_update((event.incarnation, node) for node in event.placement.nodes)
            case ev.Exited():
                gone.add((event.incarnation, event.node))
            case _:
                pass
    return bool(parts) and parts <= gone
