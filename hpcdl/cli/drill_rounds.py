"""One round of a preemption test, from the job's events: rows of the API in, seconds and steps out.

Pure: no clock, no request. drill.py makes the rounds.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

Row = Mapping[str, Any]

SUSPEND, SAVE, BETWEEN = "suspend", "kill in a save", "kill between saves"

MARGIN = 1.5
"""A suspend may take this many times what the longest one took here."""

UNEVEN = 1.25
"""Saves by the clock are not all as many steps apart: one may be this many times the largest number seen."""

LEAST_S = 1.0
"""Seconds of every grace, for what is not the trainer's: a signal's way, a busy node."""


@dataclass(slots=True)
class DrillRound:
    """One preemption, or one kill, of a test. Times are the daemon's, in seconds; None where not seen so far."""

    what: str  # SUSPEND, SAVE or BETWEEN
    incarnation: int = 0  # the one that it ends; 0 while that is not known
    next: int = 0  # the one that was given GPUs after it; 0: none so far
    durable: int | None = None  # the last step that was in a checkpoint when it ended; None: there was none
    asked: float | None = None  # when it was to suspend
    saved: float | None = None
    exited: float | None = None
    freed: float | None = None
    granted: float | None = None
    ready: float | None = None
    stepped: float | None = None
    reached: int | None = None  # the last step that was done
    resumed: int | None = None  # the step at which it went on
    killed: bool = False  # by an order of the test
    ended: str = ""  # why it never trains again
    problem: str = ""  # what went wrong; "" for nothing

    @property
    def over(self) -> bool:
        """Whether it trains again, or never will."""
        return self.stepped is not None or bool(self.ended)

    @property
    def lost(self) -> int | None:
        """Steps that are done twice; None while that is not known."""
        if self.reached is None or self.resumed is None:
            return None
        return max(0, self.reached - self.resumed)

    @property
    def torn(self) -> bool:
        """Whether the kill came before the save was durable: a save that was about to be reported is resumed from."""
        if not self.killed or self.reached is None:
            return False
        return (self.durable is None or self.durable < self.reached) and self.resumed != self.reached

    def seconds(self, since: str, until: str) -> float | None:
        """The seconds between two of its times, by name; None where one is not known."""
        first, last = getattr(self, since), getattr(self, until)
        return None if first is None or last is None else max(0.0, last - first)

    @property
    def row(self) -> dict[str, Any]:
        """The round as JSON."""
        return {
            "what": self.what,
            "incarnation": self.incarnation,
            "save_s": self.seconds("asked", "saved"),
            "exit_s": self.seconds("saved", "exited"),
            "free_s": self.seconds("exited", "freed"),
            "suspend_s": None if self.killed else self.seconds("asked", "freed"),
            "resume_s": self.seconds("granted", "ready"),
            "first_step_s": self.seconds("ready", "stepped"),
            "durable_step": self.durable,
            "reached_step": self.reached,
            "resumed_step": self.resumed,
            "lost_steps": self.lost,
            "in_a_save": self.what == SAVE and self.torn,
            "problem": self.problem,
        }


def read(what: str, events: Iterable[Row], durable: int | None, incarnation: int = 0) -> DrillRound:
    """The round whose events these are: all of the job's since it was asked for. `durable`: the step in the last
    checkpoint before. `incarnation`: the one that is to be killed."""
    found = DrillRound(what, incarnation, durable=durable)
    for event in events:
        _take(found, str(event["kind"]), event["body"], float(event["at"]))
    if found.resumed is not None:
        found.problem = _wrong(found)
    elif found.ended:
        found.problem = found.ended
    return found


def _take(found: DrillRound, kind: str, body: Row, at: float) -> None:
    number = int(body.get("incarnation") or 0)
    own = number == found.incarnation
    after = found.exited is not None and (number > found.incarnation or kind == "Reformed")
    match kind:
        case "PreemptRequested" if not found.incarnation:
            found.incarnation = number
        case "SuspendRequested" if own and found.asked is None:
            found.asked = at
        case "Saved" if own or found.exited is None:
            found.durable = max(found.durable or 0, int(body["step"]))
            found.reached = _highest(found.reached, body["step"])
            if own and found.saved is None and found.asked is not None:
                found.saved = at
        case "Exited" if own and body.get("ended_by") != "leave":
            found.exited = at
            found.reached = _highest(found.reached, body.get("step"))
            found.killed = found.killed or "killed by a preemption test" in str(body.get("detail") or "")
        case "Broken" if own:
            found.reached = _highest(found.reached, body.get("step"))
        case "GpusFreed" if own and found.exited is not None:
            found.freed = at
        case "IncarnationEnded" if own:
            found.reached = _highest(found.reached, body.get("reached"))
        case "IncarnationEnded" if number == found.next and found.stepped is None:
            found.ended = f"it was started again and ended before its first step: {body.get('cause')}" + (
                f", {body['detail']}" if body.get("detail") else ""
            )
            if (missing := body.get("missing")) is not None:
                found.ended = f"it would have gone on at step 0, though step {missing} was saved, and is held"
        case "StartRequested" | "OpenRequested" if after and body.get("placement") is not None:
            if found.granted is None:
                found.granted, found.next = at, number
        case "TrainerReady" | "Reformed" if after and found.ready is None:
            found.ready, found.resumed = at, int(body["step"])
        case "Progressed" if found.ready is not None:
            if found.stepped is None and int(body["step"]) > (found.resumed or 0):
                found.stepped = at
        case "Progressed" if own:
            found.reached = _highest(found.reached, body.get("step"))
        case "JobEnded":
            found.ended = found.ended or f"job {body['job']} is {body['state']}" + (
                f": {body['detail']}" if body.get("detail") else ""
            )


def _highest(known: int | None, step: Any) -> int | None:
    return known if step is None else max(known or 0, int(step))


def _wrong(found: DrillRound) -> str:
    resumed, durable = found.resumed or 0, found.durable
    if durable is not None and resumed < durable:
        return (
            f"it went on at step {resumed}, though step {durable} was in a durable checkpoint: "
            "its script must load the newest one (hpcdl.resume() names it)"
        )
    if found.next and found.reached is not None and resumed > found.reached:
        return f"it went on at step {resumed}, though it had only come to {found.reached}: what did its script load?"
    return ""


def last_durable(events: Iterable[Row]) -> int | None:
    """The last step that is in a checkpoint: one that was reported saved, or that was resumed from."""
    kinds = ("Saved", "TrainerReady")
    return max((int(event["body"]["step"]) for event in events if event["kind"] in kinds), default=None)


def only_in_memory(events: Sequence[Row]) -> bool:
    """Whether its ranks go on without some that were killed, and nothing was saved since: another kill would cost what
    was done since the checkpoint before that."""
    reformed = max((int(e["body"]["step"]) for e in events if e["kind"] == "Reformed"), default=0)
    return (last_durable(events) or 0) < reformed


def interval(events: Sequence[Row]) -> int | None:
    """The largest number of steps between two checkpoints that were made without being asked for; None: none seen."""
    whole, parts = _intervals(events)
    return max(whole or parts, default=None)


def allowed_loss(events: Sequence[Row], rounds: Iterable[DrillRound]) -> int | None:
    """The steps that a kill may cost: an interval, one whose save a kill cut short included; None: none was seen.

    Where a whole interval was seen, what was cut short may not be much longer: it would be two.
    """
    whole, parts = _intervals(events)
    cut = [
        each.reached - each.durable
        for each in rounds
        if each.what == SAVE and each.torn and each.asked is None
        if each.reached is not None and each.durable is not None
    ]
    return max([*whole, *parts, *(gap for gap in cut if not whole or gap <= UNEVEN * max(whole))], default=None)


def _intervals(events: Sequence[Row]) -> tuple[list[int], list[int]]:
    """Steps between checkpoints of its own: whole intervals, and parts of some, after one that was asked for."""
    ready: dict[int, int] = {}
    saves: dict[int, set[int]] = {}
    asked: set[int] = set()
    for event in events:
        kind, body = event["kind"], event["body"]
        number = int(body.get("incarnation") or 0)
        if kind in ("TrainerReady", "Reformed"):
            ready.setdefault(number, int(body["step"]))
        elif kind == "Saved" and body.get("final"):
            asked.add(int(body["step"]))
        elif kind == "Saved":
            saves.setdefault(number, set()).add(int(body["step"]))
    whole: list[int] = []
    parts: list[int] = []
    for number, steps in saves.items():
        own = sorted(steps - asked)
        for last, step in zip([ready.get(number, 0), *own], own, strict=False):
            if step > last:
                (parts if last in asked else whole).append(step - last)
    return whole, parts


def step_s(events: Iterable[Row]) -> float:
    """Seconds of one step, by the slowest stretch between two reports of progress; 0 where there are no two."""
    last: dict[int, tuple[int, float]] = {}
    slowest = 0.0
    for event in events:
        if event["kind"] in ("TrainerReady", "Progressed"):
            number, step, at = int(event["body"]["incarnation"]), int(event["body"]["step"]), float(event["at"])
            known = last.get(number)
            if known is not None and step > known[0] and at > known[1]:
                slowest = max(slowest, (at - known[1]) / (step - known[0]))
            last[number] = step, at
    return slowest


def grace_needed_s(rounds: Iterable[DrillRound], step: float) -> float | None:
    """The grace in which it is saved: the longest from the request to its last process's end, with a margin, and one
    step more, for a request may come at the beginning of one. None where no suspend was seen."""
    seen = [took for each in rounds if not each.killed and (took := each.seconds("asked", "exited")) is not None]
    return None if not seen else math.ceil((MARGIN * max(seen) + step + LEAST_S) * 10) / 10


def middle(rows: Iterable[Row], name: str) -> float | None:
    """The median of a column of rows."""
    values = [row[name] for row in rows if row[name] is not None]
    return median(values) if values else None


def largest(rows: Iterable[Row], name: str) -> float | None:
    """The maximum of a column of rows."""
    return max((row[name] for row in rows if row[name] is not None), default=None)
