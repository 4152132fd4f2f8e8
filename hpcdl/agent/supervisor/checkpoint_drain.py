"""The drain of checkpoints: a copy of the newest one on this node, to the checkpoint folder that all nodes see.

One at a time, by a thread, while training goes on: the only thread beside the supervisor's own. It writes by the
trainer's protocol (hpcdl/trainer/checkpoints.py), so a copy is whole or not there. What is not drained is never
removed: the next attempt on this node goes on from it, or drains it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.agent.supervisor.packets import SavedPacket
from hpcdl.agent.supervisor.start_file import Start
from hpcdl.wire.private_files import check_way, make_private_folder

if TYPE_CHECKING:
    from hpcdl.trainer.checkpoints import Checkpoint

TRIES = 3  # of one checkpoint
PAUSE_S = 1.0  # between two of them
OLD_S = 30 * 86_400.0  # a job's folder that nobody has changed for so long is removed


class CheckpointDrain:
    """The drain of one attempt. `saved` is called with each checkpoint that is on the shared file system, `failed` with
    its step and why where it could not be copied, `note` with a text. Times are the supervisor's clock's.

    `error`: why the newest checkpoint is on this node alone, None where it is not.
    """

    def __init__(
        self,
        start: Start,
        saved: Callable[[SavedPacket], None],
        failed: Callable[[int, OSError], None],
        note: Callable[[str], None],
    ) -> None:
        self._start = start
        self._local, self._shared = Path(start.local_checkpoint_dir or ""), Path(start.checkpoint_dir or "")
        self._saved, self._failed, self._note = saved, failed, note
        self._claimed = self._last = self._wanted = False
        self._not_before = 0.0
        self._tries = 0
        self._membership = start.membership
        self._packets: dict[str, tuple[SavedPacket, float]] = {}  # by names of checkpoints: what is not drained yet
        self._drained: Checkpoint | None = None  # the newest, in the shared folder
        self._source: Checkpoint | None = None
        self._thread: threading.Thread | None = None
        self._result: Checkpoint | BaseException | None = None
        self.error: OSError | None = None

    def open(self) -> None:
        """Make the folder on this node, owner-only, and remove those of jobs long gone. Raises OSError, NotPrivate."""
        mine, site = self._local.parent, self._local.parents[1]
        if not site.is_absolute() or not site.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such folder on this node", str(site))
        check_way(mine)
        make_private_folder(mine)
        make_private_folder(self._local)
        os.utime(self._local)
        now = self._local.stat().st_mtime  # by the clock of the file system
        with contextlib.suppress(OSError):
            for each in mine.iterdir():
                if now - each.lstat().st_mtime > OLD_S:
                    shutil.rmtree(each, ignore_errors=True)

    def any_checkpoint(self) -> bool:
        """Whether one is there, here or in the shared folder: whole or damaged, and whosever it is, the trainer or the
        claim says. True where that cannot be known."""
        from hpcdl.trainer import checkpoints  # here, so that first attempts without this tier start fast

        folders = [self._shared, *([self._local] if self._start.local_checkpoint_dir else [])]
        try:
            return any(checkpoints.marked(each) or checkpoints.aside(each) for each in folders)
        except OSError:
            return True

    def claimed(self) -> None:
        """The checkpoint folder is this attempt's: what an earlier one left on this node may be drained."""
        self._claimed = self._wanted = True

    def takes(self, path: str) -> bool:
        """Whether a checkpoint is on this node."""
        return os.path.dirname(path) == str(self._local)

    def add(self, packet: SavedPacket, now: float) -> None:
        """A checkpoint on this node is complete."""
        self._membership = max(self._membership, packet.membership)
        name = os.path.basename(packet.path)
        if self._drained is not None and name == self._drained.path.name:
            self._saved(replace(packet, path=str(self._drained.path)))
            return
        self._packets[name] = packet, self._packets.get(name, (packet, now))[1]
        self._wanted, self._tries, self._not_before = True, 0, now

    @property
    def busy(self) -> bool:
        """Whether there is something to drain."""
        return self._thread is not None or self._wanted

    def look(self, now: float) -> None:
        """Once a turn: what was drained, and what is to be next."""
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._thread = None
            self._ended(now)
        if self._wanted and now >= self._not_before:
            self._wanted = False
            self._thread = threading.Thread(target=self._run, name="drain", daemon=True)
            self._thread.start()

    def over(self, now: float, until: float | None) -> bool:
        """Once a turn after the trainer has ended, perhaps before it could say that it saved: whether nothing is left
        to drain, or no time (`until`, None: as long as it takes)."""
        if not self._claimed:
            return True
        if not self._last:
            self._last = self._wanted = True
            self._tries, self._not_before = 0, now
        self.look(now)
        if self.busy and until is not None and now >= until:
            self.error = self.error or OSError(errno.ETIMEDOUT, "not in time")
            self._note("the last checkpoint is on this node alone, since there was no time left to drain it")
            return True
        return not self.busy

    def close(self) -> None:
        """Nothing is to be drained any more: what is on this node goes, where all of it is elsewhere as well."""
        from hpcdl.trainer import checkpoints

        if self.busy or self.error is not None or not self._claimed:
            return
        with contextlib.suppress(OSError):
            checkpoints.prune_local(self._local, None)
            self._local.rmdir()  # stays where something damaged was kept in it

    def _run(self) -> None:
        self._source = self._result = None
        try:
            from hpcdl.trainer import checkpoints  # here, so that supervisors without this tier start fast

            start = self._start
            self._source = next(iter(checkpoints.complete(self._local)), None)
            if self._source is not None:
                tier = checkpoints.Tier(self._shared, start.incarnation, start.tag, self._membership, start.identity)
                self._result = checkpoints.drain(self._source, self._shared, tier)
        except BaseException as error:
            self._result = error

    def _ended(self, now: float) -> None:
        source, result = self._source, self._result
        if isinstance(result, FileNotFoundError) and source is not None and not source.path.exists():
            self._wanted = True  # a newer one has replaced it
        elif isinstance(result, BaseException):
            self._retry(result, 0 if source is None else source.step, now)
        else:
            self.error = None
            if result is not None and (self._drained is None or result.order > self._drained.order):
                self._drained = result
                self._report(result, now)
            best = -1 if source is None else source.step
            gone = [packet.step for packet, _ in self._packets.values() if packet.step > best]
            if gone and not self._wanted:  # it cannot be read now, or somebody has removed it
                self._retry(OSError(errno.EIO, "it is not on this node, or cannot be read"), max(gone), now)

    def _retry(self, error: BaseException, step: int, now: float) -> None:
        from hpcdl.trainer.checkpoints import StaleIncarnation

        stale = isinstance(error, StaleIncarnation)
        number = errno.ESTALE if stale else getattr(error, "errno", None) or errno.EIO
        self.error = OSError(number, f"{error}"[:1000])
        self._tries += 1
        if self._tries < TRIES and not stale:
            self._wanted, self._not_before = True, now + PAUSE_S
        else:
            self._failed(step, self.error)

    def _report(self, copy: Checkpoint, now: float) -> None:
        own = copy.incarnation == self._start.incarnation
        unsaid = SavedPacket(self._start.incarnation, self._membership, copy.step, "", 0.0)  # it died before it could
        packet, since = self._packets.pop(copy.path.name, (unsaid if own else None, now))
        self._packets = {name: each for name, each in self._packets.items() if each[0].step > copy.step}
        if packet is None:
            self._note(
                f"the checkpoint of step {copy.step} that attempt {copy.incarnation} left on this node is drained"
            )
            return
        seconds = packet.seconds + (now - since if packet.final else 0.0)  # training stood still for so long
        self._saved(replace(packet, path=str(copy.path), seconds=round(seconds, 6)))
