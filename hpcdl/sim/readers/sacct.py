"""Slurm's accounting: what `sacct --parsable2 --allocations -o JobID,JobName,User,Submit,...` prints.

Jobs of a log have no model: `job_rules` lets them run for their duration.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from hpcdl.sim.readers.job_rules import ReaderDefaults, WorkloadBuilder, WorkloadRow, parse_asked
from hpcdl.sim.readers.source import MAX_SECONDS, Place, read_text, rows_of, shown
from hpcdl.sim.workload import Workload

REQUIRED = ("Submit",)
_NONE = ("", "Unknown", "None", "N/A")


def read_sacct(path: Path, given: ReaderDefaults) -> Workload:
    """Every job that had GPUs, with its run time on them; the first submit becomes 0.

    Needs JobID or JobIDRaw, Submit, one of AllocTRES, ReqTRES, AllocGRES and ReqGRES, and Elapsed, ElapsedRaw or Start
    and End; takes User, JobName and NNodes where they are there, and passes over other columns. Steps (`12.batch`) are
    no jobs. Left out and counted in the notes: jobs without GPUs, and those that have not started.
    """
    jobs = WorkloadBuilder(Place(path), given)
    for jobs.place, cells in rows_of(path, read_text(path), REQUIRED, None, "|"):
        place = jobs.place
        if not jobs.jobs and not jobs.notes:
            _check_columns(place, cells)
        name = cells.get("JobID") or cells.get("JobIDRaw", "")
        if "." in name:
            continue
        gpus, nodes = _gpus(place, cells), _nodes(place, cells)
        seconds = _elapsed(place, cells)
        if not gpus:
            jobs.note("left out: a job without GPUs")
        elif not seconds:
            jobs.note("left out: a job that has not run")
        else:
            state = cells.get("State", "").split(" ")[0]
            if state not in ("", "COMPLETED"):
                jobs.note(f"its state is {state}: its run time counts as it is")
            if nodes > gpus:
                place.wrong("NNodes", f"{nodes} nodes for {gpus} GPUs")
            each, over = (-(-gpus // nodes), nodes) if nodes > 1 else (gpus, None)
            row = WorkloadRow(
                submit_s=_moment(place, "Submit", cells["Submit"]),
                model="",
                asked=parse_asked(place, each, over, given.per_node),
                duration_s=seconds,
                user=cells.get("User", ""),
                name=f"{name} {cells.get('JobName', '')}".strip()[:200],
            )
            jobs.add(row)
    none = "holds no job with GPUs that ran: ask sacct for AllocTRES too"
    return jobs.workload(f"Slurm accounting {path.name}", none, rebase=True)


_GPUS = ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES")
_TIMES = ("Elapsed", "ElapsedRaw")


def _check_columns(place: Place, cells: Mapping[str, str]) -> None:
    if not {"JobID", "JobIDRaw"} & cells.keys():
        place.wrong("JobID", "missing: ask sacct for it, so that steps can be told from jobs")
    if not any(name in cells for name in _GPUS):
        place.wrong("AllocTRES", "missing: ask sacct for it with -o JobID,User,Submit,Elapsed,State,NNodes,AllocTRES")
    if not any(name in cells for name in _TIMES) and not {"Start", "End"} <= cells.keys():
        place.wrong("Elapsed", "missing: ask sacct for it with -o JobID,User,Submit,Elapsed,State,NNodes,AllocTRES")


def _gpus(place: Place, cells: Mapping[str, str]) -> int:
    """GPUs in all; `gres/gpu=4,gres/gpu:v100=4` are four, and the old `gpu:v100:2` is two."""
    for name in _GPUS:
        text = cells.get(name, "")
        plain = re.search(r"(?:^|,)(?:gres/)?gpu[=:](\d+)(?=,|\(|$)", text)
        found = [plain[1]] if plain else re.findall(r"(?:^|,)(?:gres/)?gpu:[^,=:]+[=:](\d+)", text)
        if found:
            return sum(place.whole(name, number, 0) for number in found)
    return 0


def _nodes(place: Place, cells: Mapping[str, str]) -> int:
    if cells.get("NNodes", "") not in _NONE:
        return max(1, place.whole("NNodes", cells["NNodes"], 0))
    found = re.search(r"(?:^|,)node=(\d+)", cells.get("AllocTRES") or cells.get("ReqTRES") or "")
    return max(1, place.whole("AllocTRES", found[1], 0)) if found else 1


def _elapsed(place: Place, cells: Mapping[str, str]) -> float:
    """Seconds that it ran; 0 where it has not started."""
    if cells.get("ElapsedRaw", "") not in _NONE:
        return place.number("ElapsedRaw", cells["ElapsedRaw"])
    text = cells.get("Elapsed", "")
    if text not in _NONE:
        found = re.fullmatch(r"(?:(?:(\d{1,6})-)?(\d{1,6}):)?(\d{1,6}):(\d\d)(?:\.\d+)?", text)
        if found is None:
            place.wrong("Elapsed", f"expected [DAYS-]HOURS:MINUTES:SECONDS, got {shown(text)}")
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds
    start, end = cells.get("Start", ""), cells.get("End", "")
    if start in _NONE or end in _NONE:
        return 0.0
    seconds_run = _moment(place, "End", end) - _moment(place, "Start", start)
    if seconds_run < 0:
        place.wrong("End", f"{shown(end)} is before Start, {shown(start)}")
    return seconds_run


def _moment(place: Place, column: str, text: str) -> float:
    """Seconds of a local time, as sacct prints it, or of an epoch (SLURM_TIME_FORMAT=%s). Only differences count."""
    if text.isdigit():
        return place.number(column, text, 0, MAX_SECONDS)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        place.wrong(column, f"expected a time such as 2026-02-10T12:00:00, got {shown(text)}")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
