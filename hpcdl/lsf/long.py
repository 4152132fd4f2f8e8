"""bjobs -l, bjobs -UF and bhist -l: a block of prose for each job, the first and the last broken at 80 columns.

A line goes on below at an indent of 21 columns, at some sites 26, and is broken inside words too.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from hpcdl.core.pilot import BatchJob, BatchState
from hpcdl.lsf import moments
from hpcdl.lsf.text import compute_hosts, hosts_of, killed_by_hand, short

_INDENTS = (26, 21)
_JOB = re.compile(r"^Job(?: Id)? <(\d+(?:\[\d+\])?)>", re.M)
_MOMENT = r"[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d(?: \d{4})?"
_EVENT = re.compile(rf"^({_MOMENT}) *: ?(.*)$", re.M)
_HOSTS = r"(?:\d+ +Hosts/Processors +)?((?:<[^<>]+>[ ]*)+)"
_STARTED = re.compile(
    rf"(?:\[\d+\] +)?(?:started|dispatched)(?: +\d+ +Task\(s\))? +(?:on|to)(?: +Host\(s\))? +{_HOSTS}", re.I
)
_CODE = re.compile(r"Exited (?:with|by) (exit code|signal) (\d+)", re.I)
_COMPLETED = re.compile(r"Completed <(?:exit|done)>;? *(TERM_[^\n]*?)[.;]? *$", re.M)
_REASONS = re.compile(r"^ *(PENDING|SUSPENDING) REASONS:[ \t]*\n((?:(?! *[A-Z]+(?: [A-Z]+)+:)[^\n]+\n?)*)", re.M)
_KILLED = re.compile(r"\bTERM_[A-Z_]+: [^;.\n]*")


@dataclass(frozen=True, slots=True)
class LongJob:
    """A job's block of bjobs. `values`: called as the fields of bjobs -o."""

    id: str
    state: str
    values: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Event:
    at: float | None
    when: str
    text: str


def unwrapped(text: str) -> str:
    """The text with its broken lines joined. What is indented further than the rest of them keeps its blanks."""
    indents = [len(blanks) for blanks in re.findall(r"\n( {21,})(?=\S)", text)]
    if not indents:
        return text
    indent = next((each for each in _INDENTS if min(indents) >= each), _INDENTS[-1])
    return re.sub(rf"\n {{{indent}}}", "", text)


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Job ids with their blocks, unwrapped."""
    found = list(_JOB.finditer(text))
    for at, each in enumerate(found):
        end = found[at + 1].start() if at + 1 < len(found) else len(text)
        yield each[1], unwrapped(text[each.start() : end])


def _named(block: str, name: str) -> str:
    """A value of the head, `Status <RUN>`. A break may have taken the blank before the bracket."""
    found = re.search(rf"\b{name} *<([^<>]*)>", block)
    return found[1] if found else ""


def _events(block: str, now: float) -> tuple[_Event, ...]:
    return tuple(_Event(moments.moment(when, now), when, text) for when, text in _EVENT.findall(block))


def _last_start(events: tuple[_Event, ...]) -> tuple[_Event, str] | None:
    """The last start, with its hosts: a requeued job has several."""
    for event in reversed(events):
        if found := _STARTED.match(event.text):
            return event, found[1]
    return None


def parse_long(text: str, now: float) -> tuple[LongJob, ...]:
    """The jobs of bjobs -l or -UF."""
    jobs = []
    for job, block in _blocks(text):
        head = block[: found.start()] if (found := _EVENT.search(block)) else block
        events = _events(block, now)
        state = _named(head, "Status")
        values = {
            "queue": _named(head, "Queue"),
            "job_name": _named(head, "Job Name"),
            "job_description": _named(head, "Job Description"),
        }
        if start := _last_start(events):
            values["start_time"], values["exec_host"] = start[0].when, start[1]
            if (limit := moments.limit_of(block)) is not None:
                values["runtimelimit"] = f"{limit / 60:.4f}"
        if code := _CODE.search(block):
            values["exit_code"] = str(_code(code))
        if why := _COMPLETED.search(block) or _KILLED.search(block):
            values["exit_reason"] = why[why.re.groups]
        for kind, reasons in _REASONS.findall(block):
            key = "pend_reason" if kind == "PENDING" else "suspend_reason"
            values[key] = " ".join(line.strip() for line in reasons.splitlines())
        jobs.append(LongJob(job, state, values))
    return tuple(jobs)


def _code(found: re.Match[str]) -> int:
    """The exit code; 128 and the signal's number where a signal ended it, as LSF counts itself."""
    return int(found[2]) + (128 if found[1].lower() == "signal" else 0)


def bhist_argv(ids: Collection[str]) -> list[str]:
    """bhist reads the event log, so it is asked for those only that bjobs does not list any more."""
    return ["bhist", "-l", *ids]


_TURNS: tuple[tuple[re.Pattern[str], BatchState], ...] = (
    (re.compile(r"Done successfully|Completed <done>|Exited|Completed <exit>", re.I), BatchState.ENDED),
    (re.compile(r"Termination request issued", re.I), BatchState.ENDING),
    (re.compile(r"Pending:|Requeued|Job (?:has been|is being) requeued|Migrat", re.I), BatchState.PENDING),
    (re.compile(r"Submitted from host|.* submitted from host", re.I), BatchState.PENDING),
    (re.compile(r"Suspended", re.I), BatchState.SUSPENDED),
    (re.compile(r"Unknown; unable to reach|Host .* unreachable", re.I), BatchState.UNKNOWN),
    (re.compile(r"Starting \(Pid|Running|Resumed|Continue", re.I), BatchState.RUNNING),
    (_STARTED, BatchState.RUNNING),
)


def parse_bhist(text: str, now: float) -> dict[str, BatchJob]:
    """The jobs of bhist -l, by id, as their last events tell; `No matching job found` leaves nothing."""
    jobs = {}
    for job, block in _blocks(text):
        events = _events(block, now)
        state, reason = BatchState.UNKNOWN, ""
        code: int | None = None
        for event in events:
            turned = next((to for sign, to in _TURNS if sign.match(event.text)), None)
            if turned is None:
                continue
            state = turned
            if turned is BatchState.ENDED:
                said, why = _CODE.search(event.text), _COMPLETED.search(event.text)
                code = _code(said) if said else 0 if "Done" in event.text else code
                reason = why[1] if why else reason
            else:
                code, reason = None, event.text.rstrip(" ;.") if turned is not BatchState.RUNNING else ""
        start = _last_start(events)
        ran = start is not None and state is not BatchState.PENDING
        queue = re.search(r"to Queue *<([^<>]*)>", block)
        name = [_named(block, key) for key in ("Job Description", "Job Name")]
        jobs[job] = BatchJob(
            id=job,
            state=state,
            mark=next((each for each in name if each.startswith("hpcdl:")), ""),
            queue=queue[1] if queue else "",
            nodes=tuple(short(host) for host in compute_hosts(hosts_of(start[1]))) if start and ran else (),
            started_at=start[0].at if start and ran else None,
            reason=reason,
            preempted="preempt" in reason.lower(),
            code=code,
            by_hand=state is BatchState.ENDED and killed_by_hand(reason),
        )
    return jobs
