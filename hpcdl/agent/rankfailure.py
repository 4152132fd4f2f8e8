"""What the output says of a trainer that failed: the line that names the cause, and a rank that a signal ended.

A launcher (torchrun, accelerate, deepspeed) ends with 1 whatever its ranks died of, and prints a banner after what
they said. Pure; text is data here: it changes what people read and whether a retry is spent, nothing else.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from hpcdl.agent.output import last_line, printable

MARK = b"failed (exitcode:"
"""In the line that torchrun writes when it has seen that a rank failed; the ranks' own output is before it."""

_MARK = re.compile(rb"failed \(exitcode: (-?\d+)\) local_rank: \d+ \(pid: (\d+)\)")
_ROOT = re.compile(rb"ChildFailedError:(?s:.*)Root Cause(?s:.*?)exitcode\s*: (-?\d+) \(pid: (\d+)\)")
"""The same in its banner, where a LOGLEVEL hides that line."""
_FORCED = re.compile(rb"(?:shutdown process|Unable to shutdown process) (\d+) via")
_LISTED = re.compile(rb"exitcode\s*: (-?\d+) \(pid: (\d+)\)")
_PREFIX = re.compile(r"^\[(?:rank|default|[\w.-]*?)(\d+)\]:\s?")
_TRACEBACK = "Traceback (most recent call last):"
_ERROR = re.compile(r"[A-Za-z_][\w.]*(?::\s.*|:?)")
_CHAINED = ("During handling of the above", "The above exception was", "Original Traceback")
_LOGGED = re.compile(
    r"(\[\w+\]:)?\[?[DIWEF]\d{4} \d\d:\d\d|(?![\w.]+Error:).*torch[./]distributed[./](elastic|run|launcher)|[\W_]*$"
)
"""Lines of launchers and of libraries in C++, and rules."""
_LAUNCHERS = ("CalledProcessError", "ChildFailedError")
"""What a launcher raises because a process of its own failed."""
_KILLED = (
    re.compile(r"died with <Signals\.(SIG[A-Z]+)"),  # subprocess, so accelerate with one process
    re.compile(r"process \d+ terminated with signal (SIG[A-Z]+)"),  # torch.multiprocessing
    re.compile(r"exits with return code = -(\d+)"),  # deepspeed
    re.compile(r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: (Killed)"),
)
LAST_LINES = 40
AFTER_LINES = 20  # of what Python and libraries say after a traceback, at their end


@dataclass(frozen=True, slots=True)
class RankFailure:
    """How a rank failed: with a code, or by a signal's name, and the line that says why."""

    code: int | None
    signal: str | None
    detail: str


def marked(output: bytes) -> RankFailure | None:
    """The failure that torchrun reported last in this output, None where it reported none."""
    marks = list(_MARK.finditer(output)) or list(_ROOT.finditer(output))
    if not marks:
        return None
    last = marks[-1]
    said = said_before(output[marks[-2].end() if len(marks) > 1 else 0 :])
    # Torchrun blames the rank that it sees first; another one may have been killed, and taken this one with it.
    forced = {each[1] for each in _FORCED.finditer(output)}
    failed = [(int(last[1]), last[2])]
    failed += [(int(each[1]), each[2]) for each in _LISTED.finditer(output, last.end()) if each[2] not in forced]
    code, pid = next((each for each in failed if each[0] == -signal.SIGKILL), failed[0])
    if code < 0:
        name = signal_name(-code)
        return RankFailure(None, name, f"{name} ended one of its ranks (process {pid.decode()})")
    return RankFailure(code, None, cause(said, first=True) or f"a rank ended with exit code {code} and said nothing")


def said_before(output: bytes) -> bytes:
    """What was said before torchrun reported the last failure; all of it where it reported none."""
    marks = list(_MARK.finditer(output)) or list(_ROOT.finditer(output))
    return output[: marks[-1].start()].rpartition(b"\n")[0] if marks else output


def killed(output: bytes) -> str | None:
    """The signal that ended a process below the first one, where the launcher's last words say so."""
    for line in reversed(_lines(output)[-LAST_LINES:]):
        for each in _KILLED:
            if found := each.search(line):
                said = found[1]
                return "SIGKILL" if said == "Killed" else signal_name(int(said)) if said.isdecimal() else said
    return None


def cause(output: bytes, first: bool = False) -> str:
    """The line that names the cause: a traceback's last one, else the last line. `first`: of several ranks' tracebacks
    the first, since the others failed for want of that rank."""
    lines = [line for line in _lines(output) if not _LOGGED.match(line)]
    found = _errors(lines)
    own = [each for each in found if not each[1].partition(":")[0].endswith(_LAUNCHERS)]
    if first and own:
        return printable(own[0][1])
    if own and (own[-1] != found[-1] or len(lines) - own[-1][0] <= AFTER_LINES):
        return printable(own[-1][1])
    return printable(_PREFIX.sub("", lines[-1])) if lines else last_line(output)


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def _lines(output: bytes) -> list[str]:
    text = output.decode("utf-8", "replace").replace("\r", "\n")
    return [line for line in text.split("\n") if line.strip()]


def _errors(lines: Sequence[str]) -> list[tuple[int, str]]:
    """The last line of each traceback, with its place; one that led to another is left out."""
    found: list[tuple[int, str]] = []
    ranks: dict[str, tuple[int, str]] = {}  # whose traceback it is, where ranks say who they are
    inside: set[str] = set()
    for place, line in enumerate(lines):
        prefix = match[0] if (match := _PREFIX.match(line)) else ""
        text = line[len(prefix) :]
        if text.startswith(_CHAINED) and prefix in ranks:
            found.remove(ranks.pop(prefix))
        elif text.startswith(_TRACEBACK):
            inside.add(prefix)
        elif prefix in inside and not text.startswith(" ") and _ERROR.fullmatch(text):
            ranks[prefix] = (place, text)
            found.append((place, text))
            inside.discard(prefix)
    return found


# --- the same again and again ---------------------------------------------------------------------------------------

ALIKE = 3
"""So many failures alike with nothing gained between them, and the next start would fail in the same way."""
UNLIKE = 4
OUTSIDE = 10  # times in a row that something kills them: no fault of the trainer's, but it gets nowhere here
LONG_S = 600.0
"""Ranks that tell nothing of their steps and live for longer may have trained."""
OWN_LONG_S = 60.0
"""The same under a torchrun of the user's own, who has said how often it may start them again."""
ENDED_UNSAVED = 143  # a rank that ended because the others go to another membership
OUTSIDE_SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+")
_PEER = re.compile(r"connection (closed|reset|refused)|broken pipe|peer|gloo|nccl|rendezvous|tcpstore", re.IGNORECASE)


class Repeats:
    """Failures of ranks that torchrun starts again whatever they fail of. Times are the supervisor's clock's."""

    def __init__(self, long_s: float = LONG_S) -> None:
        self._long_s = long_s
        self._last: tuple[object, ...] | None = None
        self._gained: int | None = None
        self._alike = 0
        self._in_a_row = 0
        self._killed = 0
        self._at = 0.0

    def failed(
        self, failure: RankFailure, outside: bool, membership: int, step: int | None, now: float
    ) -> tuple[int, str]:
        """One more. How often it was the same, and why the trainer is to be ended, else "". `outside`: something else
        than the job ended the rank. `step`: the highest so far."""
        if step != self._gained or (step is None and now - self._at > self._long_s):
            self._last, self._alike, self._in_a_row, self._killed = None, 0, 0, 0
        self._gained, self._at = step, now
        where = "before their first step" if step is None else f"at step {step}"
        if failure.code == ENDED_UNSAVED:
            return 1, ""
        if outside:
            self._killed += 1
            again = self._killed >= OUTSIDE
            return 1, f"its ranks were ended from outside {OUTSIDE} times in a row {where}" if again else ""
        # A peer that is lost fails the others alike, each time that one is; then the membership is another.
        means = membership if _PEER.search(failure.detail) else 0
        what = (failure.code, failure.signal, _VARIES.sub("#", failure.detail), means)
        self._alike = self._alike + 1 if what == self._last else 1
        self._last = what
        self._in_a_row += 1
        if self._alike >= ALIKE:
            return self._alike, f"{failure.detail} ({ALIKE} times alike {where})"
        if self._in_a_row >= UNLIKE:
            return self._alike, f"{failure.detail} (its ranks failed {UNLIKE} times in a row {where})"
        return self._alike, ""
