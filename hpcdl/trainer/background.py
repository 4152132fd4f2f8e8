"""Checkpoints from a thread: training stands still only while its state is copied, not while the copy is written.

At most one is under way. `loop.py` decides when, `checkpoints.py` makes it durable; a kill in the middle leaves the
checkpoint before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from hpcdl.trainer.session import Gathering, Session, log


class BackgroundSaves:
    """Saves of one training.

    `snapshot()` copies the state, in the training's thread; what it returns writes the copy into a folder, in the
    thread of the save. `together`: the ranks, where each writes its part; a group of their own, since the training's
    thread goes on with its collectives.
    """

    def __init__(
        self,
        session: Session,
        snapshot: Callable[[], Callable[[Path], object]],
        together: Gathering | None = None,
    ) -> None:
        self._session, self._snapshot, self._together = session, snapshot, together
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._step = 0
        self._saved: int | None = None  # the step of the last that became durable
        self.stall_s = 0.0  # for which the last save held the training up
        self.seconds = 0.0  # until the last one that ended was durable

    def start(self, step: int) -> None:
        """Begin to save `step`, after the save before has ended; raises as `finish`."""
        began = time.monotonic()
        self.finish(None)
        write = self._snapshot()
        self._step = step
        self._thread = threading.Thread(target=self._run, args=(step, write), name="hpcdl save", daemon=True)
        self._thread.start()
        self.stall_s = time.monotonic() - began

    def _run(self, step: int, write: Callable[[Path], object]) -> None:
        began = time.monotonic()
        try:
            self._session.save(step, write, self._together)
            self._saved = step
        except BaseException as error:
            self._failure = error
        self.seconds = time.monotonic() - began

    def finish(self, saved: int | None) -> int | None:
        """Returns once none is under way: the step of the last one that became durable, `saved` where there was none.

        One that failed for want of disk is logged; else what it raised is raised here.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            failure, self._failure = self._failure, None
            if isinstance(failure, OSError):
                log.warning("the checkpoint of step %d failed, training goes on: %s", self._step, failure)
            elif failure is not None:
                raise failure
        return saved if self._saved is None else self._saved
