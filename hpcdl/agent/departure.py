"""An agent in a batch job: when the job ends, which signals announce that, and how the grace period is spent.

Pure, but for the names of signals: agent.py looks at it once a turn, and acts.
"""

import math
import signal
from dataclasses import dataclass

from hpcdl.batch.system import systems
from hpcdl.wire.messages import LeavingMessage

_SIGNALS = (
    signal.SIGTERM,  # what everybody sends first
    signal.SIGHUP,  # a warning as some sites' scripts ask for it
    signal.SIGUSR1,  # hpcdl itself, for the agents of its allocation
)


def end_signals() -> tuple[signal.Signals, ...]:
    """What batch systems send when they want a node back, or are about to; they all mean the same: leave at once.

    They are those of all batch systems: which one comes first is not documented for every way in which LSF ends a job
    (interruptible backfill sends none), and sites put others in place. SIGCONT is none of them: it follows TERM, so
    that stopped processes can end.
    """
    return tuple(dict.fromkeys((*_SIGNALS, *(each for system in systems() for each in system.end_signals))))


ANSWER_S = 3.0
"""So long a daemon that is there may take to say what a trainer is to do; then it is suspended."""
RESERVE_S = 1.5
"""Of the grace, for what comes after the last trainer's end: its GPUs seen free, and that reported."""
TURN_S = 0.5
"""More between two looks is time in which this process was stopped, and the node was not ours to use."""


@dataclass(frozen=True, slots=True)
class EnclosingJob:
    """The batch job that an agent runs in; "" is none. Seconds from the agent's start.

    `left_s`: until its walltime ends. `place`: where the node is in the network. `grace_s`: how long the batch system
    waits after its first signal. `alone_s`: without a daemon for so long, the agent gives the node back; None: never.
    """

    allocation: str = ""
    left_s: float | None = None
    place: tuple[str, ...] = ()
    grace_s: float = 25.0
    alone_s: float | None = None

    def __post_init__(self) -> None:
        if self.left_s is not None and not math.isfinite(self.left_s):
            raise ValueError(f"the seconds left of an allocation are a finite number, not {self.left_s}")
        if not 0 <= self.grace_s < math.inf or not (self.alone_s is None or self.alone_s > 0):
            raise ValueError("an allocation's grace period is 0 s or more, and the time alone more than 0 s")


class Departure:
    """How an agent leaves its node, from the first signal to its own end. Time in which this process was stopped does
    not count for the grace."""

    def __init__(self, stay: EnclosingJob, now: float) -> None:
        """`now`: seconds of a clock that goes on while the process is stopped."""
        self.stay = stay
        self.reason = ""
        self._began = self._looked = now
        self._spent_s = 0.0
        self._alone_s = 0.0

    @property
    def begun(self) -> bool:
        """Whether the node goes."""
        return bool(self.reason)

    def begin(self, reason: str) -> bool:
        """The node goes; whether that is news."""
        news = not self.reason
        if news:
            self.reason = reason
        return news

    def look(self, now: float, connected: bool) -> None:
        """Counts the time since the last look. Without a daemon for too long, the node goes."""
        turn_s = min(TURN_S, max(0.0, now - self._looked))
        self._looked = now
        if self.begun:
            self._spent_s += turn_s
        self._alone_s = 0.0 if connected else self._alone_s + turn_s
        if self.stay.alone_s is not None and self._alone_s >= self.stay.alone_s:
            self.begin(f"no daemon for {self.stay.alone_s:.0f} s")

    def walltime_left_s(self, now: float) -> float | None:
        """Until the batch job's end; None where that is not known."""
        return None if self.stay.left_s is None else max(0.0, self.stay.left_s - (now - self._began))

    @property
    def left_s(self) -> float:
        """Of the grace."""
        return max(0.0, self.stay.grace_s - self._spent_s)

    @property
    def trainers_s(self) -> float:
        """What trainers may have of that."""
        return max(0.0, self.left_s - RESERVE_S)

    @property
    def patient(self) -> bool:
        """Whether a daemon still has time to say what it wants."""
        return self._spent_s < min(ANSWER_S, self.stay.grace_s / 4)

    def message(self, now: float) -> LeavingMessage:
        """What the daemon needs to know of it."""
        walltime_s = self.walltime_left_s(now)
        return LeavingMessage(self.left_s if walltime_s is None else min(self.left_s, walltime_s), self.reason)
