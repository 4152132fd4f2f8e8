"""What is the same in all of LSF's commands: noise around the output, refusals, and bsub and bkill with their replies.

Every command here is an argv and a parser of what that prints; both are pure.
"""

import calendar
import math
import re
import shlex
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from hpcdl.batch.adapter import TIMEOUT_S, CommandRunner, Completed, PilotScript
from hpcdl.batch.system import BatchError
from hpcdl.core.model.pilot import PilotSpec

WARNING = "URG"
"""The signal asked for before the end: whoever does not expect it is not hurt, for by default it is ignored."""

LAUNCH = re.compile("batch|login")
"""In the names of launch nodes, at most sites that have them."""

_BY_HAND = re.compile(r"TERM_(FORCE_)?(OWNER|ADMIN)\b")

_TRANSIENT = re.compile(
    r"^.*(?:Cannot connect to LSF|LSF is down|Request from non-LSF host rejected|Please wait \.\.\.).*$", re.I | re.M
)

_DOWN = re.compile(
    r"(?:lim|mbatchd|batch daemon|master batch daemon|batch system daemon)[^\n]*(?:down|not responding|not running)"
    r"|Unable to contact|Connection refused|Communication time ?out|Failed in sending/receiving a message"
    r"|Host does not have a software license|try later",
    re.I,
)

_REFUSED = re.compile(
    r"illegal option|invalid option|unrecognized option|unknown option|bad option|requires an argument"
    r"|^ *usage\b|You cannot use the -|(?:illegal|invalid|unknown|undefined)[^\n]*(?:field|format)|only a select",
    re.I | re.M,
)

_NOT_FOUND = re.compile(
    r"^(?:Job <(\d+(?:\[\d+\])?)> is not found.*|No (?:unfinished |matching |more )?jobs? found.*"
    r"|No (?:pending|running|suspended|finished) job found.*)$",
    re.I | re.M,
)

_NOISE = re.compile(r"^You have (?:new )?mail.*$", re.M)

_SUBMITTED = re.compile(r"Job <(\d+)> is submitted to")

_LATER = re.compile(
    r"threshold|limit (?:has been )?reached|reached[^\n]*limit|too many (?:pending )?jobs|pending job|job limit"
    r"|maximum number of[^\n]*jobs|cannot fork|try again",
    re.I,
)

_NO_SCRIPT = re.compile(r"No command is specified|specify a (?:job )?script|script file", re.I)

_GONE = re.compile(r"already finished|No matching job found|is not found|Job has already|finishing", re.I)

_TAKEN = re.compile(r"Job <\d+(?:\[\d+\])?> is being (?:terminated|signaled|signalled|stopped|resumed|requeued)", re.I)


def transient(done: Completed) -> bool:
    """Whether LSF only asks to wait: the same command may do in a moment. Good output may stand beside it."""
    return _TRANSIENT.search(done.out + "\n" + done.err) is not None


def answered(done: Completed) -> bool:
    """Whether it said anything but that one is to wait; LSF has been seen to print nothing at all, with exit code 0."""
    return any(_NOISE.sub("", _TRANSIENT.sub("", text)).strip() for text in (done.out, done.err))


def down(done: Completed) -> bool:
    """Whether a daemon of LSF is away, so that nothing is known."""
    return _DOWN.search(done.err + "\n" + done.out) is not None


def refused(done: Completed) -> bool:
    """Whether this LSF does not know that form of the command."""
    return done.code != 0 and _REFUSED.search(done.err + "\n" + done.out) is not None


def not_found(done: Completed) -> bool:
    """Whether it says that there is no such job, or none at all."""
    return _NOT_FOUND.search(done.err + "\n" + done.out) is not None


def is_noise(line: str) -> bool:
    """Whether a line of an answer says nothing of what was asked: it is blank, asks to wait, or is about mail."""
    return not line.strip() or any(sign.match(line.strip()) for sign in (_NOISE, _TRANSIENT, _NOT_FOUND))


def words(done: Completed) -> str:
    """LSF's own words for people, on one line: stderr's, else what it printed, else the exit code."""
    for text in (done.err, done.out):
        said = [line.strip() for line in _NOISE.sub("", text).splitlines() if line.strip()]
        if said:
            return "; ".join(dict.fromkeys(said))[:300]
    return f"exit code {done.code} and no word"


def short(name: str) -> str:
    """A host's name without its domain, as its agent calls it; an address stays whole."""
    return name if re.fullmatch(r"[\d.]+|.*:.*", name) else name.partition(".")[0]


def hosts_of(text: str) -> tuple[tuple[str, int], ...]:
    """Hosts with their slots, in order, of `40*h1:40*h2`, `h1:h1`, `12*h1 12*h2` or `<42*h1> <h2>`; () for `-`."""
    slots: dict[str, int] = {}
    for part in re.split(r"[:\s<>,]+", text):
        many, star, name = part.rpartition("*")
        if name and name != "-" and (not star or many.isdecimal()):
            slots[name] = slots.get(name, 0) + (int(many) if star else 1)
    return tuple(slots.items())


def compute_hosts(hosts: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """The hosts that compute, of those that LSF lists with their slots: its launch node comes first and is dropped.

    It has "batch" or "login" in its name, or it is the one with a single slot while all others have more.
    """
    first = next((at for at, (name, _) in enumerate(hosts) if not LAUNCH.search(name)), 0)
    if first > 0:
        return tuple(name for name, _ in hosts[first:])
    if len(hosts) > 1 and hosts[0][1] == 1 and all(slots > 1 for _, slots in hosts[1:]):
        return tuple(name for name, _ in hosts[1:])
    return tuple(name for name, _ in hosts)


@dataclass(frozen=True, slots=True)
class Asking:
    """How nodes are asked for here. `slots`: how many a node has, None where that is not known; with `by_nodes` LSF
    counts nodes itself. `capable`: it is LSF 9.1 or later, which knows more options, all but those `without`, by name.
    `select`: which hosts compute, "" for all. `hosts`: the wanted ones as LSF calls them. `gpus`: what a node has, None
    where that is not known.
    """

    slots: int | None
    by_nodes: bool
    capable: bool
    select: str = ""
    hosts: tuple[str, ...] = ()
    gpus: int | None = None
    without: frozenset[str] = frozenset()

    def knows(self, option: str) -> bool:
        """Whether bsub here takes this option of later versions."""
        return self.capable and option not in self.without


def bsub_argv(spec: PilotSpec, script: PilotScript, asking: Asking) -> list[str]:
    """bsub without what it is to run: whole nodes, the walltime in whole minutes rounded down, the mark, a warning.

    An LSF that does not know -Jd would take it for -J, so there the mark is the job's name.
    """
    argv = ["bsub", *script.options]
    argv += ["-J", script.name, "-Jd", script.mark] if asking.knows("Jd") else ["-J", script.mark]
    if spec.queue:
        argv += ["-q", spec.queue]
    argv += ["-W", str(max(1, int(spec.walltime_s // 60))), "-o", script.output]
    if asking.by_nodes and asking.knows("nnodes"):
        argv += ["-nnodes", str(spec.nodes)]
    else:
        slots = asking.slots or 1
        select = f"select[{asking.select}] " if asking.select else ""
        argv += ["-n", str(spec.nodes * slots), "-R", f"{select}span[ptile={slots}]"]
        gpus = asking.gpus if spec.gpus is None else spec.gpus
        if gpus and asking.knows("gpu"):
            argv += ["-gpu", f"num={gpus}:j_exclusive=yes"]
    if asking.hosts:
        argv += ["-m", " ".join(asking.hosts)]
    if asking.knows("rn"):
        argv += ["-rn"]  # a requeued pilot would take nodes that nobody asked for
    notice = math.ceil(script.notice_s / 60)
    if asking.knows("wa") and asking.knows("wt") and 0 < notice < spec.walltime_s // 60:
        argv += ["-wa", WARNING, "-wt", str(notice)]
    return argv


_LATER_OPTIONS = ("Jd", "nnodes", "gpu", "rn", "wa", "wt")


def refused_options(done: Completed) -> frozenset[str]:
    """Which options of later versions bsub refused by name, `illegal option -- gpu`."""
    said = " ".join(re.findall(r"^.*option.*$", done.err + "\n" + done.out, re.M | re.I))
    return frozenset(name for name in _LATER_OPTIONS if re.search(rf"(?<![\w])-*{name}(?!\w)", said))


def script_of(argv: Sequence[str]) -> str:
    """The batch script of a pilot: one command, in the shell's place, so that LSF's signals reach it."""
    return f"#!/bin/sh\nexec {shlex.join(argv)}\n"


def parse_bsub(done: Completed) -> str | None:
    """The id of the job that was taken, None where there is none. A banner or a project's line may stand before it."""
    found = _SUBMITTED.search(done.out) or _SUBMITTED.search(done.err)
    return found[1] if found else None


def taken_later(done: Completed) -> bool:
    """Whether a refusal of bsub is about how much is there now, and not about what was asked for."""
    return _LATER.search(done.err + done.out) is not None


def wants_a_file(done: Completed) -> bool:
    """Whether bsub refused because it does not read its script from stdin here."""
    return _NO_SCRIPT.search(done.err + done.out) is not None


def bkill_argv(ids: Collection[str], signal: str = "") -> list[str]:
    """bkill for all of these; with `signal` (`TERM`, `SIGTERM`) it only sends that."""
    return ["bkill", *(["-s", signal.removeprefix("SIG")] if signal else []), *ids]


def complaints(done: Completed) -> tuple[tuple[str, ...], bool]:
    """What bkill, bstop or bresume did not do, in its words, and whether some job was gone already, which is no
    complaint.
    """
    wrong, gone = [], False
    for line in _NOISE.sub("", done.out + "\n" + done.err).splitlines():
        said = line.strip()
        if not said or _TAKEN.search(said):
            continue
        if _GONE.search(said):
            gone = True
        elif not _TRANSIENT.search(said):
            wrong.append(said)
    if not wrong and not gone and done.code != 0 and not _TAKEN.search(done.out + done.err):
        wrong.append(words(done))
    return tuple(wrong), gone


_LSID = re.compile(r"^(.*?(?:LSF|[Ll]ava)[^\n]*?\d[^\n,]*)", re.M)

_CLUSTER = re.compile(r"My cluster name is (\S+)")


def parse_lsid(text: str) -> tuple[str, str]:
    """Version and cluster, "" where they are not there."""
    version, cluster = _LSID.search(text), _CLUSTER.search(text)
    return (version[1].strip() if version else ""), (cluster[1] if cluster else "")


def killed_by_hand(reason: str) -> bool:
    """Whether LSF's reason for a job's end is that its owner or an administrator killed it."""
    return _BY_HAND.search(reason) is not None


TRIES = 4

FIRST_PAUSE_S = 0.5
"""Twice as long before each further try."""

Which = Callable[[str], str | None]

Pause = Callable[[float], None]


def command_of(argv: Sequence[str]) -> str:
    """The command that is run, behind an `env -u NAME …` that hides variables from it."""
    at = 0
    if argv[0] == "env":
        at = 1
        while argv[at] == "-u":
            at += 2
    return argv[at]


class Calls:
    """Runs LSF's commands: one that only asks to wait is run again, a daemon that is away is reported as that.

    `which`: where a command is, or None; `pause`: waits so many seconds.
    """

    def __init__(self, run: CommandRunner, which: Which = shutil.which, pause: Pause = time.sleep) -> None:
        self._run = run
        self._which = which
        self._pause = pause

    def has(self, command: str) -> bool:
        """Whether there is such a command."""
        return self._which(command) is not None

    def once(self, argv: Sequence[str], timeout_s: float = TIMEOUT_S, *, stdin: str = "") -> Completed:
        """As it is. Raises BatchError (`away`) where LSF does not answer, or says that its daemons do not."""
        try:
            done = self._run(argv, timeout_s, stdin=stdin)
        except BatchError as error:
            said = str(error).replace(argv[0], command_of(argv), 1)
            raise BatchError(said, away=error.away, again=error.again) from None
        if done.code != 0 and not transient(done) and down(done):
            raise BatchError(f"{command_of(argv)}: {words(done)}", away=True)
        return done

    def wait(self, tried: int) -> None:
        """Waits before the next try; `tried`: how often it was tried already."""
        self._pause(FIRST_PAUSE_S * 2 ** (tried - 1))

    def ask(self, argv: Sequence[str], timeout_s: float = TIMEOUT_S) -> Completed:
        """Asks what may be asked again: until it says something. What prints nothing to the end is given as it is.

        Raises BatchError (`away`) where LSF does not answer, or only asks to wait.
        """
        done = self.once(argv, timeout_s)
        for tried in range(1, TRIES):
            if answered(done) or (done.code != 0 and not transient(done)):
                return done
            self.wait(tried)
            done = self.once(argv, timeout_s)
        if not answered(done) and transient(done):
            raise BatchError(f"{argv[0]}: {words(done)}", away=True)
        return done


_MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1
    )
}

_MOMENT = re.compile(
    r"(?:[A-Z][a-z]{2} +)?([A-Z][a-z]{2}) +(\d{1,2}) (\d{1,2}):(\d\d)(?::(\d\d))?(?: (\d{4}))?(?: ?[LEX])?"
)

_YEARS_TRIED = (-4, -3, -2, -1, 0, 1, 2, 3, 4)  # 29 February is found again in one of them


def moment(text: str, now: float) -> float | None:
    """Seconds since the epoch of `Feb  2 00:46 L` and its kin, None where `text` is no moment.

    It is local time. Where the year is not shown it is the one nearest to `now`, so that December seen in January is
    last year's. The marks L, E and X of a finish time (by the run limit, by an estimate, exceeded) are dropped.
    """
    found = _MOMENT.fullmatch(text.strip())
    if found is None or found[1] not in _MONTHS:
        return None
    month, day = _MONTHS[found[1]], int(found[2])
    clock = (int(found[3]), int(found[4]), int(found[5] or 0))
    if found[6]:
        return _local(int(found[6]), month, day, clock)
    this_year = time.localtime(now).tm_year
    tried = (_local(this_year + off, month, day, clock) for off in _YEARS_TRIED)
    return min((at for at in tried if at is not None), key=lambda at: abs(at - now), default=None)


def _local(year: int, month: int, day: int, clock: tuple[int, int, int]) -> float | None:
    if not 1 <= day <= calendar.monthrange(year, month)[1] or clock[0] > 23 or clock[1] > 59 or clock[2] > 60:
        return None
    return time.mktime((year, month, day, *clock, 0, 0, -1))


def window_length(text: str) -> float | None:
    """Seconds of bslots' `1 hours 11 minutes 50 seconds`; None for UNLIMITED. Raises ValueError."""
    if text.strip().upper() == "UNLIMITED":
        return None
    found = re.fullmatch(r"(?:(\d{1,15}) hours? *)?(?:(\d{1,15}) minutes? *)?(?:(\d{1,15}) seconds?)?", text.strip())
    if found is None or not any(found.groups()):
        raise ValueError(f"no length of a backfill window: {text.strip()!r}")
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return 3600 * hours + 60 * minutes + seconds


def time_left(text: str) -> float | None:
    """Seconds of the field time_left, `0:1 L` in hours and minutes or `hh:mm:ss`; None where it says nothing."""
    found = re.fullmatch(r"(\d{1,15}):(\d{1,2})(?::(\d{1,2}))?(?: ?[LEX])?", text.strip())
    if found is None:
        return None
    return 3600.0 * int(found[1]) + 60 * int(found[2]) + int(found[3] or 0)


def run_time(text: str) -> float | None:
    """Seconds of the field run_time, `79 second(s)` or `hh:mm:ss`."""
    if found := re.fullmatch(r"(\d{1,15}) second\(?s?\)?", text.strip()):
        return float(found[1])
    return time_left(text) if text.count(":") == 2 else None


def run_limit(text: str) -> float | None:
    """Seconds of the field runtimelimit: `1440.0` in minutes, perhaps `/host` behind, or `hh:mm:ss`."""
    first = text.strip().partition("/")[0]
    if re.fullmatch(r"\d+:\d\d:\d\d", first):
        return time_left(first)
    found = re.match(r"\d+(?:\.\d+)?", first)
    return 60 * float(found[0]) if found else None


def limit_of(text: str) -> float | None:
    """Seconds of the RUNLIMIT in a block of bjobs -l or bqueues -l: names on a line, `480.0 min of host` below.

    CPULIMIT may stand before it in the same two lines. None where the block has no run limit.
    """
    found = re.search(r"^ *((?:[A-Z]+LIMIT +)*RUNLIMIT[A-Z ]*)\n([^\n]*)$", text, re.MULTILINE)
    if found is None:
        return None
    timed = [name for name in found[1].split() if name in ("CPULIMIT", "RUNLIMIT")]
    values = re.findall(r"(\d+(?:\.\d+)?) min", found[2])
    at = timed.index("RUNLIMIT")
    return 60 * float(values[at]) if at < len(values) else None
