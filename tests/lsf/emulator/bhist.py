"""bhist: what happened to a job, also after bjobs has forgotten it."""

import sys
import time

from tests.lsf.emulator.options import Refused, parse
from tests.lsf.emulator.records import UNFINISHED, Config, Job
from tests.lsf.emulator.select_jobs import by_id, matching
from tests.lsf.emulator.store import Store
from tests.lsf.emulator.text import long_stamp, wrapped

STATES = ("PEND", "PSUSP", "RUN", "USUSP", "SSUSP", "UNKWN")


def bhist(store: Store, argv: list[str], _faults: dict[str, str]) -> int:
    given = parse(
        argv, ("a", "l", "w", "b", "d", "e", "p", "r", "s", "UF", "hms"), ("n", "u", "q", "J", "C", "D", "S", "f", "N"),
        command="bhist",
    )  # fmt: skip
    config, state, now = store.config(), store.read(), time.time()
    jobs: list[Job] = []
    for name in given.rest:
        jobs += by_id(state, name)
    if not given.rest:
        jobs = matching(state, given)
        if given.has("d"):
            jobs = [job for job in jobs if job.status not in UNFINISHED]
        elif not given.has("a") and not given.has("C"):
            jobs = [job for job in jobs if job.status in UNFINISHED]
    if not jobs:
        if not config.openlava:
            raise Refused("No matching job found")
        print("No matching job found")
        return 255
    if given.has("l") or given.has("UF"):
        for job in jobs:
            print(_long(job, config, now, unformatted=given.has("UF")))
        return 0
    print("Summary of time in seconds spent in various states:")
    print("JOBID   USER    JOB_NAME  PEND    PSUSP   RUN     USUSP   SSUSP   UNKWN   TOTAL")
    for job in jobs:
        name = job.name or job.command
        if not given.has("w"):
            name = name if len(name) <= 9 else "*" + name[-8:]
        times = spent(job, now)
        cells = "".join(f"{int(times[state]):<8}" for state in STATES)
        print(f"{job.key:7} {job.user:7} {name:9} {cells}{int(sum(times.values()))}")
    sys.stdout.flush()
    return 0


def spent(job: Job, now: float) -> dict[str, float]:
    times = dict.fromkeys(STATES, 0.0) | dict(job.spent)
    if job.status in UNFINISHED:
        times[job.status] += now - job.since
    return {state: times[state] for state in STATES}


def _long(job: Job, config: Config, now: float, *, unformatted: bool) -> str:
    def put(text: str) -> str:
        return text if unformatted else wrapped(text)

    name = f", Job Name <{job.name}>" if job.name else ""
    described = f", Job Description <{job.description}>" if job.description else ""
    lines = [
        "",
        put(f"Job <{job.key}>{name}, User <{job.user}>, Project <{job.project}>, Command <{job.command}>{described}"),
    ]
    lines += [put(f"{long_stamp(at)}: {text};") for at, text in job.events]
    if limit := job.asked_s or job.limit_s:  # as it was submitted: what bmod made of it is an event
        on = f" of {job.hosts[0][0]}" if job.hosts else ""
        lines += ["", " RUNLIMIT", f" {limit / 60:.1f} min{on}"]
    if not config.openlava:
        lines += ["", "MEMORY USAGE:", "MAX MEM: 7 Mbytes;  AVG MEM: 7 Mbytes"]
    times = spent(job, now)
    cells = "".join(f"{int(times[state]):<9}" for state in STATES)
    lines += [
        "",
        f"Summary of time in seconds spent in various states by  {long_stamp(now)}",
        "  PEND     PSUSP    RUN      USUSP    SSUSP    UNKWN    TOTAL",
        f"  {cells}{int(sum(times.values()))}",
    ]
    return "\n".join(lines)
