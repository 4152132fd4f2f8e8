"""bjobs: the forms that it is asked in, the most capable first, and what each prints.

A form is one way to ask; which of them this LSF knows is found by asking, for versions and relatives differ.
"""

import json
import re
from collections.abc import Collection, Mapping
from enum import StrEnum

from hpcdl.core.pilot import BatchJob, BatchState
from hpcdl.lsf import moments
from hpcdl.lsf.long import parse_long
from hpcdl.lsf.steady import Told, end_of, start_of
from hpcdl.lsf.text import compute_hosts, hosts_of, is_noise, killed_by_hand, short


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

_STATES = {
    "PEND": BatchState.PENDING,
    "PSUSP": BatchState.PENDING,
    "WAIT": BatchState.PENDING,
    "PROV": BatchState.PENDING,
    "RUN": BatchState.RUNNING,
    "USUSP": BatchState.SUSPENDED,
    "SSUSP": BatchState.SUSPENDED,
    "DONE": BatchState.ENDED,
    "EXIT": BatchState.ENDED,
    "ZOMBI": BatchState.ENDING,
    "UNKWN": BatchState.UNKNOWN,
}
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
    some = list(ids) if ids else ["-a"]
    match form:
        case Form.JSON:
            return ["bjobs", "-o", " ".join(FIELDS), "-json", *some]
        case Form.FIELDS:
            return ["bjobs", "-noheader", "-o", " ".join(FIELDS) + " delimiter='^'", *some]
        case Form.FEW:
            return ["bjobs", "-noheader", "-o", " ".join(FEW) + " delimiter='^'", *some]
        case Form.UF:
            return ["bjobs", "-UF", *some]
        case Form.LONG:
            return ["bjobs", "-l", *some]
        case Form.WIDE:
            return ["bjobs", "-w", *some]


def parse_bjobs(form: Form, text: str, now: float) -> dict[str, Told] | None:
    """The jobs that it lists, by id; None where this form's output is nowhere in `text`. `now`: for years.

    Raises ValueError where it is, beside what nobody understands: half an answer is none.
    """
    match form:
        case Form.JSON:
            return _parse_json(text, now)
        case Form.FIELDS:
            return _parse_fields(FIELDS, text, now)
        case Form.FEW:
            return _parse_fields(FEW, text, now)
        case Form.UF | Form.LONG:
            jobs = {each.id: job_of(each.id, each.state, each.values, now) for each in parse_long(text, now)}
            return jobs or None
        case Form.WIDE:
            return _parse_wide(text, now)


def _parse_json(text: str, now: float) -> dict[str, Told] | None:
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
    jobs = {}
    for record in records:
        if not isinstance(record, dict) or not ("ERROR" in record or (record.get("JOBID") and record.get("STAT"))):
            raise ValueError("a record of its JSON is of no job")
        if "ERROR" not in record:
            values = {str(key).lower(): str(value or "").strip() for key, value in record.items()}
            jobs[values["jobid"]] = job_of(values["jobid"], values.get("stat", ""), values, now)
    return jobs


def _parse_fields(fields: tuple[str, ...], text: str, now: float) -> dict[str, Told] | None:
    jobs = {}
    other = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split("^", len(fields) - 1)]
        if len(values) == len(fields) and re.fullmatch(r"\d+(?:\[\d+\])?", values[0]):
            jobs[values[0]] = job_of(values[0], values[1], dict(zip(fields, values, strict=True)), now)
        elif jobs and not is_noise(line):  # what a site's own script prints comes before
            other.append(line)
    if other:
        raise ValueError(f"it printed a line that nobody understands: {other[0].strip()[:80]!r}")
    return jobs or None


def _parse_wide(text: str, now: float) -> dict[str, Told] | None:
    """Columns are only as wide as what is in them, and a waiting job's host may be a blank."""
    jobs = {}
    for job, stat, queue, rest in _ROW.findall(text):
        first, _, name = rest.partition(" ")
        waits = stat in ("PEND", "PSUSP", "WAIT") and first != "-"
        values = {"queue": queue, "exec_host": "" if waits else first, "job_name": (rest if waits else name).strip()}
        jobs[job] = job_of(job, stat, values, now)
    return jobs or None


def job_of(job: str, stat: str, values: Mapping[str, str], now: float) -> Told:
    """A job from the values of its fields, called as in bjobs -o; those that were not told are missing."""
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
    return Told(found, moments.moment(told.get("start_time", ""), now), moments.run_time(told.get("run_time", "")))


def _reason(state: BatchState, stat: str, told: Mapping[str, str]) -> str:
    if state is BatchState.UNKNOWN and stat != "UNKWN":
        return f"LSF calls its state {stat or 'nothing'}"
    asked = ("exit_reason",) if state is BatchState.ENDED else ("pend_reason", "suspend_reason")
    said = next((told[key].rstrip(" ;:") for key in asked if key in told), "")
    return "; ".join(part for part in (_MEANINGS.get(stat, ""), said) if part)
