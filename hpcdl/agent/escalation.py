"""When a trainer that must end is asked, asked again, sent SIGTERM and SIGKILL. Pure; seconds on one clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

ASK_AGAIN_AFTER = 1 / 3  # of the grace
TERMINATE_AFTER = 0.8
KILL_INTERVAL_S = 0.5
SUSPEND, END, ABSENCE, LEAVE = "suspend", "end", "absence", "leave"  # what `exit` says in `ended_by`
DONE = "done"  # it said that it is, and stands still: not asked for by anybody, so `exit` does not say it


class Action(Enum):
    """What is to be done to the trainer's processes; the value says to whom."""

    ASK = "the message and the suspend signal to whoever handles them"
    TERMINATE = "SIGTERM to all"
    KILL = "SIGKILL to all"


@dataclass(frozen=True, slots=True)
class Seen:
    """What is seen of the trainer now. `answerable`: somebody would notice being asked; `expected`: nobody yet, but it
    started just now and may attach; `saving`: a save is under way, or the final one is durable; `heard`: a save was
    begun or ended since it was asked."""

    answerable: bool
    expected: bool
    saving: bool
    heard: bool


class Ending:
    """One request to end, from its beginning to the last process."""

    def __init__(self, ended_by: str, began: float, grace_s: float, askable: bool, patient: bool = False) -> None:
        """`askable`: the trainer has a suspend signal, or is to leave, and this is not a cancel. `patient`: it has done
        all of its steps, so it is left to end by itself for most of the grace."""
        self._patient = patient
        self.ended_by = ended_by
        self._began = began
        self._grace_s = grace_s
        self._askable = askable and ended_by not in (END, DONE)
        self._asked_again = False
        self.asked = False
        self.terminated = False
        self._next_kill = began

    @property
    def deadline(self) -> float:
        return self._began + self._grace_s

    def left(self, now: float) -> float:
        """Seconds of the grace that are left."""
        return max(0.0, self.deadline - now)

    def hasten(self, now: float, grace_s: float) -> bool:
        """Asked again: the end of the grace may come nearer, and never moves away. True if it moved."""
        if now + grace_s >= self.deadline:
            return False
        self._began, self._grace_s = now, grace_s
        return True

    def wants_look(self, now: float) -> bool:
        """False while `next` would answer None whatever is seen, so that nobody needs to look."""
        if now >= self.deadline:
            return now >= self._next_kill
        if self.terminated:
            return False
        if not self.asked and not self._patient:
            return True
        again = not self._asked_again and now >= self._began + ASK_AGAIN_AFTER * self._grace_s
        return again or now >= self._began + TERMINATE_AFTER * self._grace_s

    def next(self, now: float, seen: Seen) -> Action | None:
        """What is to be done now, if anything; done once, SIGKILL again and again."""
        if now >= self.deadline:
            if now < self._next_kill:
                return None
            self._next_kill = now + KILL_INTERVAL_S
            return Action.KILL
        if self.terminated:
            return None
        third = now >= self._began + ASK_AGAIN_AFTER * self._grace_s
        if self._patient:
            late = now >= self._began + TERMINATE_AFTER * self._grace_s
            return self._terminate() if late and not seen.saving else None
        if not self.asked:
            if self._askable and seen.answerable:
                self.asked = True
                self._asked_again = third
                return Action.ASK
            return None if self._askable and seen.expected and not third else self._terminate()
        if now >= self._began + TERMINATE_AFTER * self._grace_s:
            return None if seen.saving else self._terminate()
        if third and not self._asked_again:
            self._asked_again = True
            return None if seen.heard or seen.saving else Action.ASK
        return None

    def _terminate(self) -> Action:
        self.terminated = True
        return Action.TERMINATE
