"""Jobs in LSF: the forms in which bjobs is asked, the most capable first, what each prints, and bhist and jobstat.

Pure: `adapter.py` tries the forms until one is not refused, for versions and relatives differ. Half an answer is none:
a line that is not understood raises ValueError.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from hpcdl.batch.system import BatchError
from hpcdl.core.model.pilot import BatchJob, BatchState
from hpcdl.lsf.text import (
    compute_hosts,
    hosts_of,
    is_noise,
    killed_by_hand,
    limit_of,
    moment,
    run_limit,
    run_time,
    short,
    time_left,
)

_RULER = re.compile(r"^-+ *(Running|Eligible|Blocked) Jobs: *(\d+) *(?:\((.*)\))? *-+$", re.M)

_USED = re.compile(r"(\d+) of (\d+) nodes")

_BUSY = re.compile(r"(\d+)/(\d+)=")


def jobstat_argv() -> list[str]:
    """All jobs of the cluster."""
    return ["jobstat"]


def jobstat_text(text: str) -> str:
    """What the cluster is at, for people: `2 running, 3 eligible, 1 blocked jobs on 4544 of 4604 nodes`.

    `text`: of jobstat, OLCF's own command, in either layout of its clusters. Only its rulers are read. Raises
    ValueError where there is none.
    """
    rulers = _RULER.findall(text)
    if not rulers:
        raise ValueError("jobstat printed none of its three tables")
    used = _nodes_used(text)
    on = "" if used is None else f" on {used[0]} of {used[1]} nodes"
    return f"{', '.join(f'{int(many)} {section.lower()}' for section, many, _ in rulers)} jobs{on}"


def nodes_of_jobstat(text: str) -> int | None:
    """How many nodes the cluster has, of what jobstat prints; None where its first ruler does not say it."""
    used = _nodes_used(text)
    return None if used is None else used[1]


def _nodes_used(text: str) -> tuple[int, int] | None:
    """Nodes with jobs, and nodes in all."""
    running = next((of for section, _, of in _RULER.findall(text) if section == "Running"), "")
    if total := _USED.search(running):
        return int(total[1]), int(total[2])
    if shares := _BUSY.findall(running):
        return sum(int(busy) for busy, _ in shares), sum(int(most) for _, most in shares)
    return None


_INDENTS = (26, 21)
"""Columns at which bjobs -l and bhist -l continue a line, which they break at 80 columns, inside words too."""

_JOB = re.compile(r"^Job(?: Id)? <(\d+(?:\[\d+\])?)>", re.M)

_MOMENT = r"[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d(?: \d{4})?"

_EVENT = re.compile(rf"^({_MOMENT}) *: ?(.*)$", re.M)

_HOST_LIST = r"(?:\d+ +Hosts/Processors +)?((?:<[^<>]+>[ ]*)+)"

_STARTED = re.compile(
    rf"(?:\[\d+\] +)?(?:started|dispatched)(?: +\d+ +Task\(s\))? +(?:on|to)(?: +Host\(s\))? +{_HOST_LIST}", re.I
)

_CODE = re.compile(r"Exited (?:with|by) (exit code|signal) (\d+)", re.I)

_COMPLETED = re.compile(r"Completed <(?:exit|done)>;? *(TERM_[^\n]*?)[.;]? *$", re.M)

_REASONS = re.compile(r"^ *(PENDING|SUSPENDING) REASONS:[ \t]*\n((?:(?! *[A-Z]+(?: [A-Z]+)+:)[^\n]+\n?)*)", re.M)

_KILLED = re.compile(r"\bTERM_[A-Z_]+: [^;.\n]*")


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


def _last_start(events: list[tuple[str, str]]) -> tuple[str, str] | None:
    """The last start, with its hosts: a requeued job has several. `events`: moments and texts."""
    for when, text in reversed(events):
        if found := _STARTED.match(text):
            return when, found[1]
    return None


def parse_long(text: str) -> list[dict[str, str]]:
    """The jobs of bjobs -l or -UF, their values called as the fields of bjobs -o."""
    jobs = []
    for job, block in _blocks(text):
        head = block[: found.start()] if (found := _EVENT.search(block)) else block
        values = {
            "jobid": job,
            "stat": _named(head, "Status"),
            "queue": _named(head, "Queue"),
            "job_name": _named(head, "Job Name"),
            "job_description": _named(head, "Job Description"),
        }
        if start := _last_start(_EVENT.findall(block)):
            values["start_time"], values["exec_host"] = start
            if (limit := limit_of(block)) is not None:
                values["runtimelimit"] = f"{limit / 60:.4f}"
        if code := _CODE.search(block):
            values["exit_code"] = str(_code(code))
        if why := _COMPLETED.search(block) or _KILLED.search(block):
            values["exit_reason"] = why[why.re.groups]
        for kind, reasons in _REASONS.findall(block):
            key = "pend_reason" if kind == "PENDING" else "suspend_reason"
            values[key] = " ".join(line.strip() for line in reasons.splitlines())
        jobs.append(values)
    return jobs


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
    """The jobs of bhist -l, by id, by their last events; `No matching job found` leaves nothing."""
    jobs = {}
    for job, block in _blocks(text):
        events = _EVENT.findall(block)
        state, reason = BatchState.UNKNOWN, ""
        code: int | None = None
        for _, event in events:
            turned = next((to for sign, to in _TURNS if sign.match(event)), None)
            if turned is None:
                continue
            state = turned
            if turned is BatchState.ENDED:
                said, why = _CODE.search(event), _COMPLETED.search(event)
                code = _code(said) if said else 0 if "Done" in event else code
                reason = why[1] if why else reason
            else:
                code, reason = None, event.rstrip(" ;.") if turned is not BatchState.RUNNING else ""
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
            started_at=moment(start[0], now) if start and ran else None,
            until=_planned_end(events, start[0], _last_limit(block), now) if start and state in _RUNS else None,
            reason=reason,
            preempted="preempt" in reason.lower(),
            code=code,
            by_hand=state is BatchState.ENDED and killed_by_hand(reason),
        )
    return jobs


DEPENDENTS_ARGV = ["bjobs", "-l"]
"""This user's jobs that are not over, with what they wait for."""


def dependents_of(batch_id: str, text: str) -> tuple[str, ...]:
    """The jobs that wait for nothing but the end of one, and have its name. `text`: of `DEPENDENTS_ARGV`.

    Raises BatchError where that one is not listed.
    """
    blocks = dict(_blocks(text))
    if batch_id not in blocks:
        raise BatchError(f"bjobs -l does not list job {batch_id}, which runs", again=True)
    name, wait = _named(blocks[batch_id], "Job Name"), f"ended({batch_id})"
    return tuple(
        job
        for job, block in blocks.items()
        if _named(block, "Dependency Condition").replace('"', "") == wait and _named(block, "Job Name") == name
    )


_RUNS = (BatchState.RUNNING, BatchState.ENDING)


_CHANGED = re.compile(r"run\s+limit\s+(?:changes\s+to\s*:\s*(\d{1,9})|set\s+to\s+queue)", re.IGNORECASE)


def _last_limit(block: str) -> float | None:
    """The run limit in a block of bhist -l, in seconds: its RUNLIMIT is that of the submission, and what bmod has made
    of that is among the events. None where there is none, or it is the queue's."""
    changed = _CHANGED.findall(block)
    return limit_of(block) if not changed else 60.0 * int(changed[-1]) if changed[-1] else None


def _planned_end(events: list[tuple[str, str]], start: str, limit_s: float | None, now: float) -> float | None:
    """When the run limit of a run that began at `start` is reached: what it was suspended for does not count."""
    began, stopped, stopped_s = moment(start, now), None, 0.0
    if began is None or limit_s is None:
        return None
    for when, event in events[[when for when, _ in events].index(start) :]:
        turned = next((state for sign, state in _TURNS if sign.match(event)), None)
        at = moment(when, now)
        if turned is BatchState.SUSPENDED:
            stopped = at if stopped is None else stopped
        elif turned is not None and stopped is not None and at is not None:
            stopped_s, stopped = stopped_s + at - stopped, None
    return began + limit_s + stopped_s


SAME_S = 2.0
"""Ends that differ by less are the same one, in two polls."""


@dataclass(frozen=True, slots=True)
class BjobsTimes:
    """A job as one call of bjobs shows it. `start`: as it stands there; `ran_s`: None where it is not shown."""

    job: BatchJob
    start: float | None = None
    ran_s: float | None = None


def start_of(told: Mapping[str, str], now: float) -> float | None:
    """The start, to the second where the time run, which is in seconds, fits to the minute that is shown."""
    start, ran = moment(told.get("start_time", ""), now), run_time(told.get("run_time", ""))
    if start is None or ran is None or start % 60:
        return start
    return now - ran if start <= now - ran < start + 60 else start


def end_of(told: Mapping[str, str], now: float) -> float | None:
    """When LSF ends it: as LSF says, for the asked walltime does not count in an interruptible backfill queue."""
    limit, ran = run_limit(told.get("runtimelimit", "")), run_time(told.get("run_time", ""))
    planned = now + limit - ran if limit is not None and ran is not None else None
    finish = told.get("finish_time", "")
    if (at := moment(finish, now)) is not None and not finish.endswith(("E", "X")):
        return planned if planned is not None and at <= planned < at + 60 else at
    if planned is not None:
        return planned
    if (left := time_left(told.get("time_left", ""))) is not None:
        return now + left
    start = start_of(told, now)
    return start + limit if start is not None and limit is not None else None


class Steady:
    """Starts and ends of runs that stay the same from poll to poll: what the first poll of a run said is kept."""

    def __init__(self) -> None:
        self._last: dict[str, BjobsTimes] = {}

    def job(self, told: BjobsTimes) -> BatchJob:
        """The job, with the start and the end of the first poll. It is another run when its start is shown
        differently, or when it has run for less time than before; that stands still while it is suspended.
        """
        job, last = told.job, self._last.pop(told.job.id, None)
        if last is not None and job.started_at is not None and last.start == told.start:
            if told.ran_s is None or last.ran_s is None or told.ran_s >= last.ran_s:
                until = job.until
                if until is not None and last.job.until is not None:
                    stands = job.state is BatchState.SUSPENDED  # its end moves on with the clock until it is resumed
                    until = last.job.until if stands or abs(until - last.job.until) < SAME_S else until
                job = replace(job, started_at=last.job.started_at, until=until)
        if job.started_at is not None and job.state is not BatchState.ENDED:
            self._last[job.id] = replace(told, job=job)
        return job


class Form(StrEnum):
    """How bjobs is asked; in this order, until one is not refused."""

    JSON = "-o … -json"
    FIELDS = "-o … delimiter='^'"
    FEW = "-o with few fields"
    UF = "-UF"
    LONG = "-l"
    WIDE = "-w"


CAPABLE = (Form.JSON, Form.FIELDS, Form.FEW)
"""With these it is LSF 9.1 or later, whose bsub knows -Jd, -wa, -wt and -rn."""

_FEW = (
    "jobid", "stat", "queue", "exec_host", "start_time", "finish_time", "time_left", "run_time", "exit_code",
    "job_description",
)  # fmt: skip

_ALL = (*_FEW, "exit_reason", "pend_reason", "runtimelimit")

# The name is last: it may hold the delimiter.
FIELDS = (*_ALL, "job_name")

FEW = (*_FEW, "job_name")

_STATES_OF = {
    BatchState.PENDING: "PEND PSUSP WAIT PROV",
    BatchState.RUNNING: "RUN",
    BatchState.SUSPENDED: "USUSP SSUSP",
    BatchState.ENDED: "DONE EXIT",
    BatchState.ENDING: "ZOMBI",
    BatchState.UNKNOWN: "UNKWN",
}
_STATES = {word: state for state, words in _STATES_OF.items() for word in words.split()}

_MEANINGS = {
    "PSUSP": "held while it waits",
    "USUSP": "suspended by its owner or an administrator",
    "SSUSP": "suspended by LSF",
    "ZOMBI": "it will be killed once its host is reachable",
    "UNKWN": "its host cannot be reached",
    "PROV": "its hosts are being prepared",
}

_ROW = re.compile(
    r"^ *(\d+(?:\[\d+\])?) +\S+ +([A-Z]{3,5}) +(\S+) +\S+ +(.*?) +[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d *$", re.M
)

_PREEMPTED = re.compile(r"TERM_PREEMPT|preempt", re.I)

_MARK = "hpcdl:"


def bjobs_argv(form: Form, ids: Collection[str] = ()) -> list[str]:
    """bjobs for these jobs, or for all of this user's that it still knows, ended ones too."""
    return ["bjobs", *_WAYS[form][0], *(list(ids) if ids else ["-a"])]


def parse_bjobs(form: Form, text: str, now: float) -> dict[str, BjobsTimes] | None:
    """The jobs that it lists, by id; None where this form's output is nowhere in `text`. `now`: for years.

    Raises ValueError where it is, beside what nobody understands: half an answer is none.
    """
    found = _WAYS[form][1](text)
    # JSON without a job is an answer, a text without one may be anything.
    if found is None or not (found or form is Form.JSON):
        return None
    return {each["jobid"]: parse_job(each, now) for each in found}


def _json_records(text: str) -> list[dict[str, str]] | None:
    """What stands around the object, as when LSF asked to wait first, is dropped."""
    at = text.find("{")
    if at < 0:
        return None
    try:
        told, _ = json.JSONDecoder(strict=False).raw_decode(text, at)
        records = told["RECORDS"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(records, list):
        return None
    jobs = []
    for record in records:
        if not isinstance(record, dict) or not ("ERROR" in record or (record.get("JOBID") and record.get("STAT"))):
            raise ValueError("a record of its JSON is of no job")
        if "ERROR" not in record:
            jobs.append({str(key).lower(): str(value or "").strip() for key, value in record.items()})
    return jobs


def _cells(fields: tuple[str, ...], text: str) -> list[dict[str, str]]:
    """The rows of -o with these fields, the last of which may hold the delimiter."""
    jobs: list[dict[str, str]] = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split("^", len(fields) - 1)]
        if len(values) == len(fields) and re.fullmatch(r"\d+(?:\[\d+\])?", values[0]):
            jobs.append(dict(zip(fields, values, strict=True)))
        elif jobs and not is_noise(line):  # what a site's own script prints comes before
            raise ValueError(f"it printed a line that nobody understands: {line.strip()[:80]!r}")
    return jobs


def _wide_rows(text: str) -> list[dict[str, str]]:
    """Columns are only as wide as what is in them, and a waiting job's host may be a blank."""
    jobs = []
    for job, stat, queue, rest in _ROW.findall(text):
        first, _, name = rest.partition(" ")
        waits = stat in ("PEND", "PSUSP", "WAIT") and first != "-"
        host, name = ("", rest.strip()) if waits else (first, name.strip())
        jobs.append({"jobid": job, "stat": stat, "queue": queue, "exec_host": host, "job_name": name})
    return jobs


_DELIMITED = " delimiter='^'"
_WAYS: Mapping[Form, tuple[list[str], Callable[[str], list[dict[str, str]] | None]]] = {
    Form.JSON: (["-o", " ".join(FIELDS), "-json"], _json_records),
    Form.FIELDS: (["-noheader", "-o", " ".join(FIELDS) + _DELIMITED], partial(_cells, FIELDS)),
    Form.FEW: (["-noheader", "-o", " ".join(FEW) + _DELIMITED], partial(_cells, FEW)),
    Form.UF: (["-UF"], parse_long),
    Form.LONG: (["-l"], parse_long),
    Form.WIDE: (["-w"], _wide_rows),
}
"""By form its options, and what reads the records that they print: texts by the names of the fields of -o."""


def parse_job(values: Mapping[str, str], now: float) -> BjobsTimes:
    """A job from the values of its fields, called as in bjobs -o; those that were not shown are missing."""
    job, stat = values["jobid"], values["stat"]
    told = {key: value for key, value in values.items() if value and value != "-"}
    state = _STATES.get(stat, BatchState.UNKNOWN)
    waits = state is BatchState.PENDING
    reason = _reason(state, stat, told)
    code = told.get("exit_code", "")
    found = BatchJob(
        id=job,
        state=state,
        mark=next((told[key] for key in ("job_description", "job_name") if told.get(key, "").startswith(_MARK)), ""),
        queue=told.get("queue", ""),
        nodes=() if waits else tuple(short(host) for host in compute_hosts(hosts_of(told.get("exec_host", "")))),
        started_at=None if waits else start_of(told, now),
        until=None if waits or state is BatchState.ENDED else end_of(told, now),
        reason=reason,
        preempted=_PREEMPTED.search(reason) is not None,
        code=0 if stat == "DONE" else int(code) if code.isdecimal() else None,
        by_hand=state is BatchState.ENDED and killed_by_hand(reason),
    )
    return BjobsTimes(found, moment(told.get("start_time", ""), now), run_time(told.get("run_time", "")))


def _reason(state: BatchState, stat: str, told: Mapping[str, str]) -> str:
    if state is BatchState.UNKNOWN and stat != "UNKWN":
        return f"LSF calls its state {stat or 'nothing'}"
    asked = ("exit_reason",) if state is BatchState.ENDED else ("pend_reason", "suspend_reason")
    said = next((told[key].rstrip(" ;:") for key in asked if key in told), "")
    return "; ".join(part for part in (_MEANINGS.get(stat, ""), said) if part)


_FIELDS = ("jobid", "stat", "queue", "nreq_slot", "job_description", "pend_reason", "job_name")

_WAITS_FOR_HOSTS = re.compile(
    r"not enough|job slot limit reached|slots? (?:is|are) not|requirements? not satisfied|spanning requirement"
    r"|exclusive|just started a job|insufficient",
    re.IGNORECASE,
)

_LIMITS = re.compile(r"dependency|(?:user|project|group|account)[^;]*limit|limit of the|dispatch window", re.IGNORECASE)

_WIDE = re.compile(r"^ *(\d+(?:\[\d+\])?) +\S+ +([A-Z]{3,5}) +(\S+) +(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PendingJob:
    """A job that waits. `slots`: how many it asks for. `for_hosts`: it waits for hosts. `is_pilot`: of any hpcdl."""

    id: str
    queue: str
    slots: int
    for_hosts: bool
    is_pilot: bool


def waiting_argv(capable: bool) -> list[str]:
    """bjobs -p of all users: jobs that wait, and for what. `capable`: bjobs knows -o."""
    if capable:
        return ["bjobs", "-noheader", "-u", "all", "-p", "-o", " ".join(_FIELDS) + _DELIMITED]
    return ["bjobs", "-u", "all", "-p", "-w"]


def parse_waiting(capable: bool, text: str) -> tuple[PendingJob, ...]:
    """What `waiting_argv` prints, in its order. Raises ValueError for a line that nobody understands.

    Without -o neither slots nor reasons are shown: a job is taken to wait for one host.
    """
    if not capable:
        rows = _WIDE.findall(text)
        return tuple(PendingJob(id_, queue, 1, stat == "PEND", "hpcdl:" in rest) for id_, stat, queue, rest in rows)
    found = []
    for job in _cells(_FIELDS, text):
        reason, slots = job["pend_reason"], job["nreq_slot"]
        hosts = _WAITS_FOR_HOSTS.search(reason) is not None and _LIMITS.search(reason) is None
        pilot = job["job_description"].startswith(_MARK) or job["job_name"].startswith(_MARK)
        number = int(slots) if slots.isdecimal() else 1
        found.append(PendingJob(job["jobid"], job["queue"], number, job["stat"] == "PEND" and hosts, pilot))
    return tuple(found)
