"""What is known of a GPU's health, what each fault means, and for how long what is bad is avoided. Pure.

The table follows NVIDIA's "Xid Errors" and its catalogue, and for memory errors "NVIDIA GPU Memory Error Management"
(docs.nvidia.com/deploy): which faults need a reset of the GPU, and which an application causes or survives.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

ECC = "ecc"
REMAP_FAILED = "remap failed"
REMAP_PENDING = "remap pending"
RETIRED_PENDING = "retirement pending"
FORGIVEN_S = 24 * 3600.0
"""After so long without a new fault, the next one counts as the first."""

LONGEST_S = 24 * 3600.0
"""However often a GPU fails, it is tried again after this."""

WINDOW_S = 3600.0
"""Within this time, jobs that fail on the same GPUs are counted."""

KEPT = 16
"""Failures of jobs that are remembered of a node."""


class FaultAction(StrEnum):
    """NOTE: it is recorded. AVOID: nothing new is started there for a while. MOVE: and what runs there leaves it."""

    NOTE = "note"
    AVOID = "avoid"
    MOVE = "move"


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault of a GPU, and what follows from it."""

    said: str  # what it is, in words
    action: FaultAction


XIDS: dict[int, Fault] = {
    46: Fault("the GPU stopped processing", FaultAction.MOVE),
    48: Fault("an uncorrectable (double-bit) ECC error", FaultAction.MOVE),
    62: Fault("an internal micro-controller halted", FaultAction.MOVE),
    63: Fault("a memory row or page was marked for repair, at the next reset", FaultAction.NOTE),
    64: Fault("a memory row or page could not be marked for repair", FaultAction.AVOID),
    74: Fault("an NVLink error", FaultAction.MOVE),
    79: Fault("the GPU has fallen off the bus", FaultAction.MOVE),
    92: Fault("many single-bit ECC errors", FaultAction.NOTE),
    94: Fault("a contained ECC error: the application that met it ends, others go on", FaultAction.AVOID),
    95: Fault("an uncontained ECC error: the GPU has to be reset", FaultAction.MOVE),
    109: Fault("a context switch timed out", FaultAction.AVOID),
    119: Fault("the GPU's system processor (GSP) does not answer", FaultAction.MOVE),
    120: Fault("an error of the GPU's system processor (GSP)", FaultAction.MOVE),
    140: Fault("an ECC error that was not recovered", FaultAction.MOVE),
    143: Fault("the GPU could not be initialised", FaultAction.AVOID),
}
"""Xid numbers that say something of the GPU. The others are a program's doing, or nobody's (13, 31, 43, 45, ...)."""

CONDITIONS: dict[str, Fault] = {
    ECC: Fault("uncorrectable ECC errors since the driver was loaded", FaultAction.AVOID),
    REMAP_FAILED: Fault("a row of its memory could not be remapped", FaultAction.AVOID),
    REMAP_PENDING: Fault("a row of its memory is remapped at the next reset", FaultAction.NOTE),
    RETIRED_PENDING: Fault("a page of its memory is retired at the next reset", FaultAction.NOTE),
}
"""What a driver reports besides Xids. With rows or pages pending, jobs may start and go on."""


def fault_of(name: str) -> Fault | None:
    """What is known of `xid 79`, or of one of CONDITIONS; None where that is nothing."""
    kind, _, number = name.partition(" ")
    if kind == "xid" and number.isascii() and number.isdigit() and len(number) < 6:
        return XIDS.get(int(number))
    return CONDITIONS.get(name)


@dataclass(frozen=True, slots=True)
class Health:
    """What a driver reports of a GPU; None where it does not."""

    ecc_uncorrected: int | None = None  # errors since the driver was loaded
    remap_pending: bool | None = None  # rows of its memory, at the next reset
    remap_failed: bool | None = None
    retired_pending: bool | None = None  # pages of its memory, at the next reset
    slowdown: tuple[str, ...] = ()  # why its clocks are held down now
    xids: tuple[int, ...] = ()  # seen since the agent began, the newest last

    @property
    def conditions(self) -> tuple[str, ...]:
        """Which of CONDITIONS hold, but for counted ones."""
        held = (
            (REMAP_FAILED, self.remap_failed),
            (REMAP_PENDING, self.remap_pending),
            (RETIRED_PENDING, self.retired_pending),
        )
        return tuple(name for name, holds in held if holds)


@dataclass(frozen=True, slots=True)
class Avoided:
    """A GPU or a whole node that is excluded: granted to nobody for a while. Times are the daemon's."""

    index: int | None  # of the GPU; None: the whole node
    uuid: str  # of the GPU
    since: float
    until: float
    reason: str  # in words
    times: int = 1  # how often in a row
    moves: bool = False  # what runs there is to leave
    over: bool = False  # it was lifted, and is remembered so that the next time is longer


@dataclass(frozen=True, slots=True)
class Failed:
    """A job's incarnation that ended on a node by no doing of its own."""

    at: float  # when, the daemon's time
    job: int
    gpus: tuple[int, ...]  # that it had there


def again(before: Avoided | None, now: float, avoid_s: float) -> tuple[int, float]:
    """How often in a row this is, and until when: `avoid_s`, doubled each time."""
    times = 1
    if before is not None:
        ended = min(before.until, now) if before.over else now
        times = before.times + 1 if now - ended < FORGIVEN_S else 1
    return times, now + min(LONGEST_S, avoid_s * 2.0 ** min(times - 1, 10))


def suspects(failed: Iterable[Failed], now: float, limit: int) -> tuple[int, ...] | None:
    """The GPUs that `limit` failures of two jobs at least had in common, within WINDOW_S; () where they had none in
    common and the node itself is suspected; None where there are too few."""
    recent = [each for each in failed if now - each.at < WINDOW_S]
    if limit < 1 or len(recent) < limit or len({each.job for each in recent}) < 2:
        return None
    shared = set(recent[0].gpus).intersection(*(each.gpus for each in recent[1:]))
    return tuple(sorted(shared))
