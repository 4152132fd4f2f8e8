"""The step gate: a background asks at each step boundary whether it may go on, in memory that it shares with its agent.

The agent writes the page (hpcdl/agent/colocation.py): a duty, the share of its time for which the background may use
the GPU, and a heartbeat. Without a fresh heartbeat the gate is closed, so nobody is slowed down for want of an agent. A
suspend gets through a closed gate at once, and a rank of several once a minute. The trainers of both sides write when
their steps ended. Nothing here may fail a training: where there is no page there is no gate.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.trainer.group.step_counters import StepCounters, start_ticks

if TYPE_CHECKING:
    from hpcdl.trainer.session import Session

PAGE_FILE = "share"  # in the run folder
FOREGROUND, BACKGROUND = "foreground", "background"  # HPCDL_SHARE

STALE_S = 0.7
"""A heartbeat of before that is of a controller that is gone; it writes one in 0.1 s."""

POLL_S = 0.005

HOLD_S = 60.0
"""A rank of several waits no longer at one boundary: those of other nodes have gates of their own and may stand in a
collective already, which gives up after some minutes (NCCL's after ten)."""

RECENT = 16
"""Steps the shortest of which says what a step takes where no rank waits for another's gate."""

FULL = 1_000_000  # a duty of 1
ALONE = FULL + 1  # nobody shares its GPUs: no heartbeat is needed

# Words of 8 bytes. JOB and ATTEMPT: the foreground whose GPU this background shares. BAN: when the collective began in
# which this foreground is now, 0 outside of any. WRITER: the process that writes the steps.
# WAITING: 1 while this background waits at its gate.
HEARTBEAT, DUTY, JOB, ATTEMPT, BAN, WRITER, COUNT, WAITING = range(8)
RING, STEPS = 8, 1016  # where the ends of steps begin, and how many are kept
SIZE = 8 * (RING + STEPS)


class SharePage:
    """The page of one attempt on one node. Times are nanoseconds of CLOCK_MONOTONIC."""

    def __init__(self, folder: Path) -> None:
        """Maps the page of a run folder, and makes it where it is missing: then the gate is closed. Raises OSError."""
        file = os.open(str(folder / PAGE_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(file, 0, SIZE)  # a hole that no disk has room for would be SIGBUS
            self.words = memoryview(mmap.mmap(file, SIZE)).cast("Q")
        finally:
            os.close(file)

    def control(self, duty: float, foreground: tuple[int, int] | None) -> None:
        """The controller's heartbeat. `foreground`: job and attempt; None: the background is alone."""
        self.words[JOB], self.words[ATTEMPT] = (0, 0) if foreground is None else foreground
        self.words[DUTY] = ALONE if foreground is None else int(duty * FULL)
        self.words[HEARTBEAT] = time.monotonic_ns()

    @property
    def duty(self) -> float | None:
        """What the background may take now, 0 where the gate is closed; None where it is alone."""
        duty = self.words[DUTY]
        if duty == ALONE:
            return None
        fresh = time.monotonic_ns() - self.words[HEARTBEAT] < STALE_S * 1e9
        return duty / FULL if fresh else 0.0

    @property
    def waiting(self) -> bool:
        """Whether the background waits at its gate."""
        return bool(self.words[WAITING])

    def record(self) -> None:
        """A step has ended."""
        count = self.words[COUNT]
        self.words[RING + count % STEPS] = time.monotonic_ns()
        self.words[COUNT] = count + 1

    def ends(self, after: int) -> tuple[int, list[int]]:
        """How many steps have ended, and when those after `after` did; of very many only the newest."""
        count = self.words[COUNT]
        return count, [self.words[RING + each % STEPS] for each in range(max(after, count - STEPS // 2), count)]


class StepGate:
    """What a rank does at its step boundaries, of a job that shares its GPUs."""

    def __init__(self, session: Session, folder: Path, role: str, ranks: int) -> None:
        """`folder`: the run folder. `role`: FOREGROUND or BACKGROUND. `ranks`: of the job. Raises OSError, and
        ValueError for a rank that has no place."""
        self.page = SharePage(folder)
        self._session = session
        self._gated = role == BACKGROUND
        self._passes: StepCounters | None = None
        if ranks > 1:
            rank = session.local_rank if session.rescale == "in-process" else session.rank
            self._passes = StepCounters(folder, session.incarnation, rank, "passes")
            self.adopt(session.membership)
        self._began = time.monotonic()  # of the step that ends next
        self._busy: deque[float] = deque(maxlen=RECENT if ranks > 1 else 1)  # seconds of the newest steps
        self._pid = os.getpid()
        if not start_ticks(self.page.words[WRITER]):
            self.page.words[WRITER] = self._pid  # of several ranks that do this at once the last one
            self.page.words[WAITING] = 0

    def boundary(self) -> None:
        """A step has ended: returns once the next one may begin, or something is asked of this rank."""
        writes = self.page.words[WRITER] == self._pid
        if writes:
            self.page.record()
        if not self._gated:
            return
        duty = self.page.duty
        if duty is not None and duty < 1.0:
            _drain()
            if writes:
                self.page.words[WAITING] = 1
            self._wait()
            if writes:
                self.page.words[WAITING] = 0
        if self._passes is not None:
            self._passes.arrive(False)
        self._began = time.monotonic()

    def _wait(self) -> None:
        """For as long as a step takes, by the duty. A rank that is past this boundary takes all others of its node
        along: else it would wait for them in a collective, whose time may run out."""
        ended = time.monotonic()
        self._busy.append(ended - self._began)
        # In a longer step this rank may have waited for a rank of another node that stood at its gate. Both would wait
        # the longer for that, each for the other's wait.
        busy_s = min(self._busy)
        until = None if self._passes is None else ended + HOLD_S
        while not self._wanted and not (self._passes is not None and self._passes.behind()):
            duty, now = self.page.duty, time.monotonic()
            left_s = POLL_S
            if duty is None or (until is not None and now >= until):
                return
            if duty:
                left_s = ended + busy_s * (1 / duty - 1) - now
                if left_s <= 0:
                    return
            time.sleep(min(left_s, POLL_S))

    @property
    def _wanted(self) -> bool:
        session = self._session
        newer = session.target is not None and session.target.number > session.membership
        return session.poll() or session.leaving or session.terminated or newer

    def adopt(self, membership: int) -> None:
        """The ranks of a new membership count their boundaries anew; where they are new processes they do anyway."""
        if self._passes is not None and self._session.rescale == "in-process":
            self._passes.restart(membership << 32)


def _drain() -> None:
    """Waits for what this process has launched on its GPU: a step takes as long as its kernels run."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
