"""The step boundary at which the ranks of one node stop, agreed on in memory that they share: a file of the run folder.

At each boundary a rank writes its number, and then looks whether a stop is requested: two accesses to memory. The first
rank that knows of a request sets it for all, reads how far every other is, and fixes the boundary: nobody is past it,
and who is before it trains on to it. So nobody waits, and no collective is needed; a rank may be inside of one, slow,
ahead, or not there yet.

Of several nodes each has such memory (`shared` is false), and stop_exchange.py fixes the boundary. Who comes to one
meanwhile waits there for it, and for no other rank: so nobody goes beyond what `furthest` said. Files, processes and
locks only; what the ranks say to each other otherwise is in peers.py.
"""

from __future__ import annotations

import fcntl
import logging
import math
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger("hpcdl.trainer")

RANKS_LIMIT = 1024
SETTLE_S = 0.002
"""From setting the request to reading the numbers: who missed the one has written the other long before."""

WAIT_S = 0.001
"""Between two looks at the boundary that several nodes agree on."""

LATE_S = 10.0
"""After so long without that the log says so, once."""

LAUNCH, REQUEST, STOP = range(3)  # words of 8 bytes: which set of processes this is; 1; the boundary, 0 for none
FIRST, WORDS = 8, 4  # where the ranks' own begin, and how many each has:
BOUNDARY, PID, START, HEARD = range(4)  # HEARD: the boundary at which it knew of the request, before any of its steps
SIZE = 8 * (FIRST + WORDS * RANKS_LIMIT)


class StepCounters:
    """One rank's view of the shared memory. Boundaries are counted from 1, on every rank alike, over the whole life of
    the process: a second training loop goes on counting."""

    def __init__(self, folder: Path, incarnation: int, rank: int, name: str = "steps") -> None:
        """Takes the rank's place. `name`: of the file. Raises OSError; ValueError for a rank that has none."""
        if not 0 <= rank < RANKS_LIMIT:
            raise ValueError(f"rank {rank} must be 0 to {RANKS_LIMIT - 1}")
        self._rank = rank
        path = folder / f"{name}.{incarnation}"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with self._locked():
            if os.fstat(self._file).st_size < SIZE:
                os.pwrite(self._file, bytes(SIZE), 0)  # a hole in memory that no disk has room for would be SIGBUS
            self._memory = mmap.mmap(self._file, SIZE)
            self._words = memoryview(self._memory).cast("Q")
            if not any(self.lives(each) for each in range(RANKS_LIMIT) if each != rank):
                # All that is there is of processes that ended: a launcher starts the ranks anew.
                launch = self._words[LAUNCH] + 1
                for word in range(SIZE // 8):
                    self._words[word] = 0
                self._words[LAUNCH] = launch
            self.launch = self._words[LAUNCH]
            self._put(BOUNDARY, 0)
            self._put(HEARD, 0)
            self._put(PID, os.getpid())
            self._put(START, start_ticks(os.getpid()))
        self._mine = FIRST + WORDS * rank
        self._boundary = 0
        self._stop = 0
        self.shared = True  # by all ranks of the training; else those of other nodes have a word in it

    def close(self) -> None:
        """Gives the memory back. The rank keeps its place for as long as its process lives."""
        self._words.release()
        self._memory.close()
        os.close(self._file)

    def arrive(self, flag: bool) -> bool:
        """The next boundary. `flag`: this rank knows of a request to stop. True where all stop: here."""
        self._boundary = boundary = self._boundary + 1
        words = self._words
        words[self._mine] = boundary
        if not flag and not words[REQUEST]:
            return False
        if not self._stop:
            words[self._mine + HEARD] = boundary
            self._stop = self._fix()
        return boundary >= self._stop

    def behind(self) -> bool:
        """Whether another rank has come to a later boundary than this one."""
        return any(self._words[at] > self._boundary for at in range(FIRST, SIZE // 8, WORDS))

    def restart(self, boundary: int) -> None:
        """Boundaries are counted from here on, on every rank."""
        self._boundary = boundary

    def _fix(self) -> int:
        """The boundary to stop at. Whoever comes first fixes it, and waits for no other rank."""
        if not self.shared:
            self.request()
            late = time.monotonic() + LATE_S
            while not self.stopped:
                time.sleep(WAIT_S)
                if time.monotonic() > late:
                    log.warning("no word yet of another node at which step to stop: it may have ended")
                    late = math.inf
            return self._words[STOP]
        with self._locked():
            words = self._words
            if not words[STOP]:
                self.request()
                words[STOP] = self.furthest()
            return words[STOP]

    def request(self) -> None:
        """From now on no rank goes beyond the boundary that is next for it, before it knows where all stop."""
        self._words[REQUEST] = 1

    @property
    def requested(self) -> bool:
        """Whether a rank of this node, or of another, knows of a request to stop."""
        return bool(self._words[REQUEST])

    def furthest(self) -> int:
        """Once it is requested: the first boundary at which all ranks of this node can stop."""
        time.sleep(SETTLE_S)
        return max(self._earliest(at) for at in range(FIRST, SIZE // 8, WORDS))

    def stop(self, boundary: int) -> None:
        """The ranks of all nodes stop there."""
        self._words[STOP] = boundary

    @property
    def stopped(self) -> bool:
        """Whether it is known where all stop."""
        return bool(self._words[STOP])

    def _earliest(self, at: int) -> int:
        """The first boundary at which the rank whose words begin there can stop: where it is if it knows of the
        request, for then it waits there; else it may have begun the step that follows."""
        boundary = self._words[at]  # read once, and first: it may go on meanwhile
        return boundary if boundary and self._words[at + HEARD] == boundary else boundary + 1

    def lives(self, rank: int) -> bool:
        """Whether a process has taken this rank's place and runs."""
        pid = self._get(rank, PID)
        return pid > 0 and start_ticks(pid) == self._get(rank, START)

    def came(self, rank: int) -> bool:
        """Whether a process has ever taken this rank's place."""
        return self._get(rank, PID) > 0

    def _get(self, rank: int, word: int) -> int:
        return self._words[FIRST + WORDS * rank + word]

    def _put(self, word: int, value: int) -> None:
        self._words[FIRST + WORDS * self._rank + word] = value

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)  # given up by the kernel where its holder dies
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def start_ticks(pid: int) -> int:
    """When a process started, which tells it from a later one of the same number; 0 where it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])
