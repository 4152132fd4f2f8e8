"""How a trainer ended, for its `exit` record: from the wait status, the kernel's counter and the last output.

A launcher (torchrun, accelerate, deepspeed) ends with 1 whatever its ranks died of, and prints a banner after what they
said. Output is data here: it changes what people read and whether a retry is spent, nothing else.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from hpcdl.agent.supervisor import node_faults
from hpcdl.agent.supervisor.output import last_line, printable
from hpcdl.core.rules import lost_peers

TEXTS = (b"CUDA out of memory", b"OutOfMemoryError", b"RESOURCE_EXHAUSTED")

ROOT = "/sys/fs/cgroup"

_COUNTER = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class OomKillCounter:
    """Whether an attempt ran out of memory: how many processes the kernel has killed for want of it in the cgroups of
    an incarnation."""

    def __init__(self, cgroup: str | None) -> None:
        """`cgroup`: the folder whose memory.events counts; None: those of the processes that `watch` names."""
        self._fixed = cgroup is not None
        self._before: dict[str, int] = {}
        if cgroup is not None:
            self._note(os.path.join(cgroup, "memory.events"))

    def watch(self, pid: int) -> None:
        """From now on the cgroup of this process counts, too."""
        if not self._fixed:
            for path in _of(pid):
                self._note(path)

    def grew(self) -> bool:
        """Whether one of them counts more than when it was seen first."""
        return any((now := _kills(path)) is not None and now > before for path, before in self._before.items())

    def verdict(self, tail: bytes, counts: bool) -> tuple[bool, str]:
        """Whether it ran out of memory, and the line of its last output that says so, if one does. `counts`: what the
        kernel says does."""
        if _in_output(tail):
            return True, last_line(tail, TEXTS)
        return counts and self.grew(), ""

    def _note(self, path: str) -> None:
        count = _kills(path) if path not in self._before else None
        if count is not None:
            self._before[path] = count


def _kills(path: str) -> int | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            found = _COUNTER.search(file.read(65536))
    except OSError:
        return None
    return int(found[1]) if found else None


def _of(pid: int) -> list[str]:
    """The files of its cgroup that count, of version 2 and of version 1."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    unified = [f"{ROOT}{path}/memory.events" for _, names, path in lines if not names]
    older = [f"{ROOT}/memory{path}/memory.oom_control" for _, names, path in lines if names == "memory"]
    return unified + older


def _in_output(tail: bytes) -> bool:
    """The last lines of the output say that a GPU's memory was not enough."""
    last = b"\n".join(tail.rstrip().split(b"\n")[-LAST_LINES:])
    return any(text in last for text in TEXTS)


MARK = b"failed (exitcode:"
"""In the line that torchrun writes when it has seen that a rank failed; the ranks' own output is before it."""

_MARK = re.compile(rb"failed \(exitcode: (-?\d+)\) local_rank: \d+ \(pid: (\d+)\)")

_ROOT = re.compile(rb"ChildFailedError:(?s:.*)Root Cause(?s:.*?)exitcode\s*: (-?\d+) \(pid: (\d+)\)")
"""What says so in torchrun's banner, where a LOGLEVEL hides that line."""

_ROOT_RANK = re.compile(rb"Root Cause(?s:.*?)\brank\s*: (\d+)")

_FORCED = re.compile(rb"(?:shutdown process|Unable to shutdown process) (\d+) via")

_LISTED = re.compile(rb"exitcode\s*: (-?\d+) \(pid: (\d+)\)")

_PREFIX = re.compile(r"^\[(?:rank|default|[\w.-]*?)(\d+)\](?:<std(?:out|err)>)?:\s?")

_TRACEBACK = "Traceback (most recent call last):"

_ERROR = re.compile(r"[A-Za-z_][\w.]*(?::\s.*|:?)")

_CHAINED = ("During handling of the above", "The above exception was", "Original Traceback")

_LOGGED = re.compile(
    r"(\[\w+\]:)?\[?[DIWEF]\d{4} \d\d:\d\d|(?![\w.]+Error:).*torch[./]distributed[./](elastic|run|launcher)|[\W_]*$"
)
"""Lines of launchers and of libraries in C++, and rules."""

_LAUNCHERS = re.compile(
    r"[\w.]*(CalledProcessError|ChildFailedError|HorovodInternalError)\b|RuntimeError: Horovod detected that one or "
)
"""What a launcher raises because a process of its own failed, and a rank because another one did."""

_KILLED = (
    re.compile(r"died with <Signals\.(SIG[A-Z]+)"),  # subprocess, so accelerate with one process
    re.compile(r"process \d+ terminated with signal (SIG[A-Z]+)"),  # torch.multiprocessing
    re.compile(r"exits with return code = -(\d+)"),  # deepspeed
)

WORKER_GONE = "a worker of a DataLoader is gone"

_READ, _UNREAD = (
    ("utils/data/", "resource_sharer.py"),
    ("Connection", "BrokenPipeError", "EOFError", "FileNotFoundError"),
)
"""What a traceback names, and how its last line begins, where a worker is gone before its batch was read."""

_WORKER = r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) "
_WORKER_LOST = re.compile(
    rf"{_WORKER}(?:is killed by signal: |exited unexpectedly\s*$)|^{WORKER_GONE}|Pin memory thread exited unexpectedly"
)
"""What PyTorch's DataLoader raises in a process whose worker has ended."""

_WORKER_END = re.compile(_WORKER + r"(?:is killed by signal: (\w+)|exited unexpectedly with exit code)")
"""How it ended: in what is raised, or in what that was raised from; without its handler of SIGCHLD, nowhere."""

_WORKER_ERROR = re.compile(r"^(?:\[[^\]]*\]:?\s?)?Process \S+:$|in spawn_main$", re.MULTILINE)
"""In what Python says of an exception that ended such a process."""

_NAMES_CAUSE = re.compile(
    r"error|exception|fail|fatal|panic|abort|assert|kill|signal|terminat|segmentation|cannot|can't|could not|unable|"
    r"denied|refused|not found|no such|not there|missing|invalid|illegal|exceed|memory|no space|usage:|exit|timeout|"
    r"timed out|interrupt|warning|gone|lost|died|^[A-Za-z_][\w.]*(Exit|Interrupt)\b",
    re.IGNORECASE,
)
"""In a line that may say why its program failed; another last line is only what it printed last."""

LAST_LINES = 40

AFTER_LINES = 20  # of what Python and libraries say after a traceback, at their end


@dataclass(frozen=True, slots=True)
class RankFailure:
    """How a rank failed: with a code, or by a signal's name, and the line that says why."""

    code: int | None
    signal: str | None
    detail: str


SILENT = "a rank ended with exit code {} and said nothing"


def torchrun_failure(output: bytes) -> RankFailure | None:
    """The failure that torchrun reported last in this output, None where it reported none."""
    marks = list(_MARK.finditer(output)) or list(_ROOT.finditer(output))
    if not marks:
        return None
    last = marks[-1]
    said = output_before_failure(output[marks[-2].end() if len(marks) > 1 else 0 :])
    # Torchrun blames the rank that it sees first; another one may have been killed, and taken this one with it.
    forced = {each[1] for each in _FORCED.finditer(output)}
    failed = [(int(last[1]), last[2])]
    failed += [(int(each[1]), each[2]) for each in _LISTED.finditer(output, last.end()) if each[2] not in forced]
    code, pid = next((each for each in failed if each[0] == -signal.SIGKILL), failed[0])
    if code < 0:
        name = signal_name(-code)
        detail = f"{name} ended one of its ranks (process {pid.decode()})"
        # Gloo's threads abort a rank on its way out, with an error of its own.
        error = cause_line(said, first=True) if name == signal.SIGABRT.name else ""
        return RankFailure(None, name, error if error and not _only_peers_lost(said) else detail)
    root = _ROOT_RANK.search(output, last.end())
    silent = _only_peers_lost(said) and (code != FAILED or (root is not None and not _raised(said, int(root[1]))))
    return RankFailure(code, None, (not silent and cause_line(said, first=True)) or SILENT.format(code))


def output_before_failure(output: bytes) -> bytes:
    """What was said before torchrun reported the last failure; all of it where it reported none."""
    marks = list(_MARK.finditer(output)) or list(_ROOT.finditer(output))
    return output[: marks[-1].start()].rpartition(b"\n")[0] if marks else output


_HOROVODRUN = re.compile(rb"Horovod detected that one or more processes exited(?s:.*?)\bExit code: (\d+)")
"""horovodrun's last words, with the exit code that a shell gave it for the first rank that failed."""

_HOROVOD_KILLED = re.compile(rb"^\[\d+\]<stderr>:Killed\r?$", re.MULTILINE)
"""What that shell says of a rank; another rank that failed for want of it may have ended before."""


def killed_rank(output: bytes) -> str | None:
    """The signal that ended a process below the first one, where the launcher's last words say so."""
    if horovodrun := _HOROVODRUN.search(output):
        if _HOROVOD_KILLED.search(output):
            return "SIGKILL"
        code = int(horovodrun[1])
        return signal_name(code - SHELL_SIGNALLED) if code > SHELL_SIGNALLED else None
    for line in reversed(_lines(output)[-LAST_LINES:]):
        if lost := _WORKER_LOST.search(line):
            return _killed_worker(lost, output)
        for each in _KILLED:
            if found := each.search(line):
                return signal_name(int(found[1])) if found[1].isdecimal() else found[1]
    lost = _WORKER_LOST.search(cause_line(output))
    return None if lost is None else _killed_worker(lost, output)


def _killed_worker(lost: re.Match[str], output: bytes) -> str | None:
    """The signal from outside that ended a DataLoader's worker; None where it ended by itself, or by its own fault."""
    text, pids = output.decode("utf-8", "replace"), set((lost[1] or "").split(", "))
    ends = [each[2] for each in _WORKER_END.finditer(text) if pids & set(each[1].split(", "))]
    if not ends:
        if lost[0].startswith("Pin") and not any(error.startswith(WORKER_GONE) for _, error in _errors(_lines(output))):
            return None  # it failed otherwise
        return None if _WORKER_ERROR.search(text) else signal.SIGKILL.name
    return next((OUTSIDE_WORDS[each] for each in ends if each in OUTSIDE_WORDS), None)


def cause_line(output: bytes, first: bool = False) -> str:
    """The line that names the cause: a traceback's last one, else the last line; that of a rank which lost another one
    is no cause where the other one said why it failed. `first`: of several ranks' tracebacks the first, since the
    others failed for want of that rank."""
    lines = [line for line in _lines(output) if not _LOGGED.match(line)]
    found = _errors(lines)
    own = [each for each in found if not _LAUNCHERS.match(each[1])]
    if first and own:
        return printable(next((each for _, each in own if not _lost_a_peer(each)), own[0][1]))
    if own and (own[-1] != found[-1] or len(lines) - own[-1][0] <= AFTER_LINES):
        return printable(_lost_rank(lines, own) or own[-1][1])
    return printable(_PREFIX.sub("", lines[-1])) if lines else last_line(output)


def _lost_rank(lines: Sequence[str], errors: Sequence[tuple[int, str]]) -> str:
    """The error of the rank that those of the last errors lost, which came right after it; "" where they lost none."""
    for (place, error), (until, follower) in zip(reversed(errors[:-1]), reversed(errors), strict=False):
        between = [line for line in lines[place + 1 : until] if not _PREFIX.sub("", line).startswith(" ")]
        if not _lost_a_peer(follower) or len(between) > AFTER_LINES:
            break
        if not _lost_a_peer(error):
            return error
    return ""


def _only_peers_lost(output: bytes) -> bool:
    """Whether ranks failed, and each of them for want of another one."""
    errors = [text for _, text in _errors(_lines(output))]
    return bool(errors) and all(map(_lost_a_peer, errors))


def _raised(output: bytes, rank: int) -> bool:
    """Whether an error is of this rank, or of one that does not say who it is."""
    lines = _lines(output)
    prefixes = [_PREFIX.match(lines[place]) for place, _ in _errors(lines)]
    return any(prefix is None or int(prefix[1]) == rank for prefix in prefixes)


def _lost_a_peer(error: str) -> bool:
    """Whether a rank failed for want of another one."""
    return lost_peers.PEER.search(error) is not None and not error.startswith(WORKER_GONE)


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
    inside: dict[str, str] = {}  # what of a traceback there was so far
    for place, line in enumerate(lines):
        prefix = match[0] if (match := _PREFIX.match(line)) else ""
        text = line[len(prefix) :]
        if text.startswith(_CHAINED) and prefix in ranks:
            found.remove(ranks.pop(prefix))
        elif text.startswith(_TRACEBACK):
            inside[prefix] = ""
        elif prefix in inside and text.startswith(" "):
            inside[prefix] += text
        elif prefix in inside and _ERROR.fullmatch(text):
            frames = inside.pop(prefix)
            if text.startswith(_UNREAD) and all(each in frames for each in _READ):
                text = f"{WORKER_GONE}: {text}"
            ranks[prefix] = (place, text)
            found.append((place, text))
    return found


ALIKE = 3
"""So many failures alike with nothing gained between them, and the next start would fail in the same way."""

UNLIKE = 4

OUTSIDE = 10  # times in a row that something kills them: no fault of the trainer's, but it gets nowhere here

LONG_S = 600.0
"""Ranks that report no steps and live for longer may have trained."""

OWN_LONG_S = 60.0
"""As LONG_S, under a torchrun of the user's own, who has said how often it may start them again."""

ENDED_UNSAVED = 143  # a rank that ended because the others go to another membership

OUTSIDE_SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
OUTSIDE_WORDS = {signal.strsignal(signal.Signals[name]): name for name in OUTSIDE_SIGNALS}  # as the C library has them

_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+")

_WORD = re.compile(r"[A-Za-z_]+")


class Repeats:
    """Failures of ranks that torchrun starts again whatever they fail of. Times are the supervisor's clock's."""

    def __init__(self, long_s: float = LONG_S) -> None:
        self._long_s = long_s
        self._last: tuple[object, ...] | None = None
        self._detail = ""  # of the last one, as one rank alone says it
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
        means = membership if lost_peers.PEER.search(failure.detail) else 0
        what = (failure.code, failure.signal, means)
        alike = what == self._last and _same_words(failure.detail, self._detail)
        self._alike = self._alike + 1 if alike else 1
        self._detail = min(failure.detail, self._detail, key=len) if alike else failure.detail
        self._last = what
        self._in_a_row += 1
        if self._alike >= ALIKE:
            return self._alike, f"{self._detail} ({ALIKE} times alike {where})"
        if self._in_a_row >= UNLIKE:
            return self._alike, f"{failure.detail} (its ranks failed {UNLIKE} times in a row {where})"
        return self._alike, ""


def _same_words(one: str, other: str) -> bool:
    """Whether two details say the same, but for numbers. Python writes a line of its errors in pieces, so those of
    ranks that fail at once are mixed, each time in another way: one line may say it all twice."""
    texts = (_VARIES.sub("", one), _VARIES.sub("", other))
    return texts[0] == texts[1] or any(
        (words := _WORD.findall(text)) and all(word in longer for word in words)
        for text, longer in (texts, reversed(texts))
    )


FAILED = 1

STALE = os.EX_TEMPFAIL

SHELL_SIGNALLED = 128  # and the signal's number is what a shell makes of it
SHELL_KILLED = SHELL_SIGNALLED + signal.SIGKILL

HIDDEN_KILL = SHELL_KILLED << 8
"""The wait status, as a shell would have made it, of what ended with 0 although its rank was killed."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a trainer ended. `code` or `signal`: of the first process; both None where it never ran. `stale`: another one
    has the checkpoint folder. `oom`: it ran out of memory. `killed`: the signal from outside that ended a process below
    the first one. `repeats`: so many times its ranks had failed alike, with nothing gained between. `node_fault`: its
    node failed it, and another may not; `permanent`: no other attempt on that node does better, nor elsewhere where it
    is `oom`: the limit is its own. `still`: it was ended since its script's end stood still. `claimed`: the number of
    the attempt that has the checkpoint folder, where this one was not started for that. `missing`: a step that was
    saved, where it would have begun at step 0."""

    code: int | None
    signal: str | None = None
    detail: str = ""
    stale: bool = False
    oom: bool = False
    killed: str | None = None
    repeats: int = 1
    node_fault: bool = False
    permanent: bool = False
    still: bool = False
    claimed: int = 0
    missing: int | None = None

    @property
    def fields(self) -> dict[str, object]:
        """The keys of the `exit` record that say how it ended."""
        return {**asdict(self), "detail": printable(self.detail)}


def exit_of(
    status: int | None, tail: bytes, attached: bool, ours: bool, oom_kills: OomKillCounter, killed_one: bool = False
) -> Exit:
    """`status`: as waitpid gives it. `ours`: who was killed may have been killed by us. `killed_one`: a rank was seen
    to end by SIGKILL, which a launcher of the job's own may have sent once another one had failed."""
    code, name = (None, None) if status is None else describe(status)
    if code == 0:
        return Exit(0)
    rank = torchrun_failure(tail)
    killed = None if rank is None else rank.signal
    if killed is None and (rank is None or rank.code == 1):
        killed = killed_rank(tail)
    if killed is None and rank is None and code == FAILED and killed_one and _only_peers_lost(tail):
        killed = signal.SIGKILL.name
    # The kernel's counter may speak of a neighbour: it counts only for who was killed, and not by us.
    counts = not ours and (signal.SIGKILL.name in (name, killed) or code == SHELL_KILLED)
    oom, detail = oom_kills.verdict(output_before_failure(tail), counts)
    if not detail:
        detail = cause_line(tail) if rank is None else rank.detail
        if rank is None and code not in (None, FAILED) and lost_peers.COLLECTIVE.search(detail):
            detail = SILENT.format(code)  # a traceback's is another code: this is of the rank that the others lost
    outside = killed if killed in OUTSIDE_SIGNALS and name is None and not ours else None
    # Its program says so, which may be wrong: a closed terminal gives EIO, too. So it may be its user's doing.
    said = name is None and not oom and node_faults.says_mount(detail)
    if detail and rank is None and not oom and not _NAMES_CAUSE.search(detail):
        detail = printable(f'printed last "{detail}"')
    stale = code == STALE and attached
    return Exit(code, name, detail, stale, oom, None if oom else outside, node_fault=said, permanent=said)


def node_failure(code: int, error: OSError, detail: str) -> Exit:
    """Of a trainer that was not started, because its node lacks a file or folder that it needs, or cannot reach it."""
    number = error.errno
    return Exit(
        code, detail=detail, node_fault=node_faults.is_of_node(number), permanent=node_faults.is_lasting(number)
    )


def given_up(failure: RankFailure, oom: bool, why: str, repeats: int) -> Exit:
    """Of ranks that torchrun would start again, and that would fail again."""
    if oom or failure.signal in OUTSIDE_SIGNALS:
        return Exit(FAILED, None, why, oom=oom, killed=None if oom else failure.signal, repeats=repeats)
    return Exit(failure.code, failure.signal, why, repeats=repeats)


def describe(status: int) -> tuple[int | None, str | None]:
    """Exit code and signal name of a wait status; one of them is None."""
    if os.WIFSIGNALED(status):
        return None, signal_name(os.WTERMSIG(status))
    return os.WEXITSTATUS(status), None
