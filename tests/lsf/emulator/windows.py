"""bslots, from the scheduler's own plan; and OLCF's jobstat."""

import sys
import time
from collections.abc import Sequence

from tests.lsf.emulator.options import Refused, parse
from tests.lsf.emulator.planning import FOREVER, windows
from tests.lsf.emulator.records import STARTED, Config, Job
from tests.lsf.emulator.store import Store

NO_WINDOW = "No backfill window exists at this time"
NONE_MEETS = "No backfill window meets these requirements."


def bslots(store: Store, argv: list[str], _faults: dict[str, str]) -> int:
    given = parse(argv, ("l",), ("n", "R", "W"), command="bslots")
    config, state, now = store.config(), store.read(), time.time()
    select = given.get("R")
    if given.has("R") and not select.startswith("select["):
        raise Refused("Error in select section: only a select section is allowed")
    if not any(queue.backfill for queue in config.queues):
        print(NO_WINDOW)
        return 0
    hours, _, minutes = given.get("W", "0").rpartition(":")
    least_s = (60 * int(hours or 0) + int(minutes)) * config.minute_s
    found = windows(config, state, now, compute_only="CN" in select)
    rows = sorted(((until, hosts) for until, hosts in found.items()), key=lambda row: -row[0])
    kept = [
        (until, hosts)
        for until, hosts in rows
        if until - now >= max(least_s, 1.0) and sum(slots for _, slots in hosts) >= int(given.get("n", "1"))
    ]
    if not rows:
        print(NO_WINDOW)
        return 0
    if not kept:
        raise Refused(NONE_MEETS)
    if given.has("l"):
        print("\n".join(_block(until, hosts, now) for until, hosts in kept), end="")
        return 0
    print("SLOTS          RUNTIME")
    for until, hosts in kept:
        print(f"{sum(slots for _, slots in hosts):<15}{duration(until - now)}")
    return 0


def _block(until: float, hosts: Sequence[tuple[str, int]], now: float) -> str:
    names = " ".join(f"{slots}*{name}" for name, slots in hosts)
    return f"SLOTS:    {sum(slots for _, slots in hosts)}\nRUNTIME:  {duration(until - now)}\nHOSTS:    {names} \n"


def duration(seconds: float) -> str:
    """`25 hours 42 minutes 51 seconds`; the hours are left out below one."""
    if seconds == FOREVER:
        return "UNLIMITED"
    whole = int(seconds)
    hours = f"{whole // 3600} hours " if whole >= 3600 else ""
    return f"{hours}{whole % 3600 // 60} minutes {whole % 60} seconds"


# --- jobstat


def jobstat(store: Store, argv: list[str], _faults: dict[str, str]) -> int:
    given = parse(argv, (), ("u",), command="jobstat")
    config, now = store.config(), time.time()
    jobs = [job for job in store.read().jobs if given.get("u", job.user) == job.user]
    running = [job for job in jobs if job.status in STARTED]
    eligible = [job for job in jobs if job.status == "PEND" and "depend" not in job.pend_reason]
    blocked = [job for job in jobs if job.status == "PSUSP" or (job.status == "PEND" and job not in eligible)]
    compute = len([host for host in config.hosts if host.name != config.launch_node])
    used = sum(_nodes(config, job) for job in running)
    if config.jobstat == "ascent":
        print("compute-hm: Bad host name, host group name or cluster name", file=sys.stderr)
        title = f"Running Jobs: {len(running)} (batch: {used}/{compute}={100 * used / compute:.2f}% + batch-hm: 0/0)"
        titles, width, queue = (title, "Eligible Jobs", "Blocked Jobs"), 130, "Queue    "
        who, project = "JobID      User       ", "Project    "
    else:
        title = f"Running Jobs: {len(running)} ({used} of {compute} nodes, {100 * used / compute:.2f}%)"
        titles, width, queue = (title, "Eligible Jobs", "Blocked Jobs"), 100, ""
        who, project = "JobId    Username   ", "Project          "
    print(_ruler(titles[0], width))
    if running or not queue:
        print(f"{who}{queue}{project}Nodes Remain     StartTime       JobName")
    for job in running:
        began = time.strftime("%m/%d %H:%M:%S", time.localtime(job.started))
        remain = clock(job.limit_s - job.run_s(now)) if job.limit_s else "-"
        print(f"{_who(config, job)}{_nodes(config, job):<6}{remain:<11}{began:<16}{job.name or 'Not_Specified'}")
    print(_ruler(f"{titles[1]}: {len(eligible)}", width))
    if eligible or not queue:
        print(f"{who}{queue}{project}Nodes Walltime   QueueTime       Priority JobName")
    for job in eligible:
        asked = time.strftime("%m/%d %H:%M:%S", time.localtime(job.submitted))
        line = f"{_nodes(config, job):<6}{clock(job.asked_s):<11}{asked:<16}501.00   {job.name or 'Not_Specified'}"
        print(f"{_who(config, job)}{line}")
    print(_ruler(f"{titles[2]}: {len(blocked)}", width))
    if blocked or not queue:
        print(f"{who}{queue}{project}Nodes Walltime   BlockReason")
    for job in blocked:
        reason = job.pend_reason.rstrip(";") if job.status == "PEND" else "Job held by user"
        print(f"{_who(config, job)}{_nodes(config, job):<6}{clock(job.asked_s):<11}{reason}")
    return 0


def _ruler(title: str, width: int) -> str:
    return f" {title} ".center(width, "-")


def _who(config: Config, job: Job) -> str:
    if config.jobstat == "ascent":
        return f"{job.id:<10} {job.user:<10} {job.queue:<8} {job.project:<10} "
    return f"{job.id:<8} {job.user:<10} {job.project:<16} "


def _nodes(config: Config, job: Job) -> int:
    if job.hosts:
        return len([name for name, _ in job.hosts if name != config.launch_node])
    most = max(host.slots for host in config.hosts if host.name != config.launch_node)
    return job.nodes or -(-job.slots // (job.ptile or most))


def clock(seconds: float) -> str:
    """`57:06`, `2:00:00`."""
    whole = max(0, int(seconds))
    hours = f"{whole // 3600}:{whole % 3600 // 60:02}" if whole >= 3600 else str(whole // 60)
    return f"{hours}:{whole % 60:02}"
