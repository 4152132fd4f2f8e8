"""bjobs: tables, `-o`, `-json`; the long forms are in bjobs_long."""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from tests.lsf.emulator.environment import where
from tests.lsf.emulator.options import Options, Refused, parse
from tests.lsf.emulator.records import UNFINISHED, Config, Job, State
from tests.lsf.emulator.select_jobs import by_id, matching
from tests.lsf.emulator.store import Store
from tests.lsf.emulator.text import as_json, format_of, stamp, table

FLAGS = (
    "a",
    "w",
    "W",
    "l",
    "UF",
    "p",
    "r",
    "s",
    "d",
    "noheader",
    "json",
    "hms",
    "A",
    "sum",
    "gpu",
    "X",
    "N",
    "pe",
    "pi",
)
VALUED = ("u", "q", "J", "o", "m", "P", "g", "G", "Jd")
NO_FORMAT = (
    "bjobs: You cannot use the -json option when the -o option is not specified or the LSB_BJOBS_FORMAT parameter is"
    " not defined."
)


def bjobs(store: Store, argv: list[str], faults: dict[str, str]) -> int:
    config, state, now = store.config(), store.read(), time.time()
    refused = ("noheader", "json", "hms", "o") if config.openlava else ()
    given = parse(argv, FLAGS, VALUED, command="bjobs", without=refused)
    jobs, unknown = _chosen(config, state, given, now, faults.get("lost", ""))
    if given.has("json"):
        return _json(config, jobs, unknown, given, now)
    if jobs:
        _print(store, config, jobs, given, now)
    sys.stdout.flush()
    for name in unknown:
        print(f"Job <{name}> is not found", file=sys.stderr)
    if not jobs and not unknown:
        print(_nothing(given), file=sys.stderr)
    return 255 if unknown or not jobs else 0


def _print(store: Store, config: Config, jobs: Sequence[Job], given: Options, now: float) -> None:
    if given.has("l") or given.has("UF"):
        from tests.lsf.emulator.bjobs_long import long

        print("\n".join(long(store, config, job, now, unformatted=given.has("UF")) for job in jobs))
        return
    text = given.get("o") or ("" if given.has("w") or given.has("W") else os.environ.get("LSB_BJOBS_FORMAT", ""))
    if text and not config.openlava:
        fields, delimiter = format_of(text)
        widths = [width or WIDTHS.get(name, 10) for name, width in fields]
        rows = [[_value(name, config, job, now, padded=delimiter is not None) for name, _ in fields] for job in jobs]
        headers = [name.upper() for name, _ in fields]
        print(table(headers, rows, widths, delimiter, header=not given.has("noheader")), end="")
    elif given.has("w") or given.has("W"):
        _wide(config, jobs, given, now)
    else:
        _narrow(config, jobs, given)


def _chosen(config: Config, state: State, given: Options, now: float, lost: str) -> tuple[list[Job], list[str]]:
    """The jobs, and the ids that are not known."""
    known = [job for job in state.jobs if job.status in UNFINISHED or now - job.ended <= config.clean_s]
    state.jobs = [job for job in known if str(job.id) != lost]
    unknown: list[str] = []
    if given.rest and given.rest != ["0"]:
        found: list[Job] = []
        for name in given.rest:
            mine = by_id(state, name)
            found.extend(mine)
            if not mine:
                unknown.append(name)
        return found, unknown
    jobs = matching(state, given)
    if given.has("p"):
        jobs = [job for job in jobs if job.status in ("PEND", "PSUSP")]
    elif given.has("r"):
        jobs = [job for job in jobs if job.status == "RUN"]
    elif given.has("s"):
        jobs = [job for job in jobs if job.status in ("PSUSP", "USUSP", "SSUSP")]
    elif given.has("d"):
        jobs = [job for job in jobs if job.status not in UNFINISHED]
    elif not given.has("a"):
        jobs = [job for job in jobs if job.status in UNFINISHED]
    return jobs, unknown


def _nothing(given: Options) -> str:
    kinds = {"p": "pending", "r": "running", "s": "suspended", "d": "finished"}
    kind = next((word for flag, word in kinds.items() if given.has(flag)), "" if given.has("a") else "unfinished")
    return f"No {kind} job found" if kind else "No job found"


# --- the tables


def exec_host(config: Config, job: Job) -> str:
    """`h1`, `4*h1:4*h2`, or each name once a slot."""
    if config.short_hosts:
        return ":".join(f"{slots}*{name}" if slots > 1 else name for name, slots in job.hosts)
    return ":".join(name for name, slots in job.hosts for _ in range(slots))


def _narrow(config: Config, jobs: Sequence[Job], given: Options) -> None:
    width = 7 if config.openlava else 10
    print(f"{'JOBID':{width}} USER    STAT  QUEUE      FROM_HOST   EXEC_HOST   JOB_NAME   SUBMIT_TIME")
    for job in jobs:
        hosts = exec_host(config, job).split(":")
        name = job.name or job.command
        name = name if len(name) <= 10 else "*" + name[-9:]
        print(
            f"{job.id:<{width}} {job.user[:7]:7} {job.status:5} {job.queue[:10]:10} {job.from_host[:11]:11}"
            f" {hosts[0][:11]:11} {name:10} {stamp(job.submitted)}"
        )
        for host in hosts[1:]:
            print(" " * (width + 38) + f"{host[:11]:55}")
        if given.has("p") and job.pend_reason:
            print(f" {job.pend_reason}")


def _wide(config: Config, jobs: Sequence[Job], given: Options, now: float) -> None:
    more = "  PROJ_NAME CPU_USED MEM SWAP PIDS START_TIME FINISH_TIME" if given.has("W") else ""
    print(f"JOBID   USER    STAT  QUEUE      FROM_HOST   EXEC_HOST   JOB_NAME   SUBMIT_TIME{more}")
    for job in jobs:
        at = time.strftime("%m/%d-%H:%M:%S", time.localtime(job.submitted)) if more else stamp(job.submitted)
        tail = ""
        if more:
            began = time.strftime("%m/%d-%H:%M:%S", time.localtime(job.started)) if job.started else "-"
            ended = time.strftime("%m/%d-%H:%M:%S", time.localtime(job.ended)) if job.ended else "-"
            tail = f" {job.project} 000:00:00.00 0      0      {job.pid or '-'} {began} {ended}"
        print(
            f"{job.id:<7} {job.user:7} {job.status:5} {job.queue:10} {job.from_host:11}"
            f" {exec_host(config, job) or '-':11} {job.name or job.command:10} {at}{tail}"
        )


# --- -o and -json

Field = Callable[[Config, Job, float], str]


def _left(_config: Config, job: Job, now: float) -> str:
    if job.status not in ("RUN", "USUSP", "SSUSP") or not job.limit_s:
        return ""
    minutes = int(max(0.0, job.limit_s - job.run_s(now)) // 60)
    return f"{minutes // 60}:{minutes % 60} L"


def _finish(_config: Config, job: Job, now: float) -> str:
    if job.ended:
        return stamp(job.ended)
    if job.started and job.limit_s:
        return stamp(now + job.limit_s - job.run_s(now)) + " L"
    return ""


def _complete(_config: Config, job: Job, now: float) -> str:
    return f"{100 * job.run_s(now) / job.limit_s:.2f}% L" if job.started and job.limit_s and not job.ended else ""


def _run_time(_config: Config, job: Job, now: float) -> str:
    return f"{int(job.run_s(now))} second(s)"


def _slots(job: Job) -> str:
    return str(sum(slots for _, slots in job.hosts)) if job.hosts else ""


FIELDS: Mapping[str, Field] = {
    "jobid": lambda _c, job, _n: str(job.id),
    "jobindex": lambda _c, job, _n: str(job.index),
    "stat": lambda _c, job, _n: job.status,
    "user": lambda _c, job, _n: job.user,
    "user_group": lambda _c, _j, _n: "",
    "queue": lambda _c, job, _n: job.queue,
    "job_name": lambda _c, job, _n: job.name or job.command,
    "name": lambda _c, job, _n: job.name or job.command,
    "job_description": lambda _c, job, _n: job.description,
    "proj_name": lambda _c, job, _n: job.project,
    "app": lambda _c, _j, _n: "",
    "job_group": lambda _c, _j, _n: "",
    "job_priority": lambda _c, _j, _n: "",
    "dependency": lambda _c, job, _n: job.dependency,
    "command": lambda _c, job, _n: job.command,
    "from_host": lambda _c, job, _n: job.from_host,
    "first_host": lambda _c, job, _n: job.hosts[0][0] if job.hosts else "",
    "exec_host": lambda config, job, _n: exec_host(config, job),
    "nexec_host": lambda _c, job, _n: str(len(job.hosts)) if job.hosts else "",
    "alloc_slot": lambda config, job, _n: exec_host(config, job),
    "nalloc_slot": lambda _c, job, _n: _slots(job),
    "slots": lambda _c, job, _n: _slots(job),
    "nreq_slot": lambda config, job, _n: str(_asked(config, job)),
    "min_req_proc": lambda config, job, _n: str(_asked(config, job)),
    "max_req_proc": lambda config, job, _n: str(_asked(config, job)),
    "gpu_num": lambda _c, job, _n: str(sum(len(ids) for _, ids in job.gpu_ids)) if job.gpu_ids else "",
    "submit_time": lambda _c, job, _n: stamp(job.submitted),
    "start_time": lambda _c, job, _n: stamp(job.started) if job.started else "",
    "estimated_start_time": lambda _c, _j, _n: "",
    "finish_time": _finish,
    "time_left": _left,
    "%complete": _complete,
    "run_time": _run_time,
    "pend_time": lambda _c, job, now: str(int(_pended(job, now))),
    "runtimelimit": lambda _c, job, _n: (
        f"{(job.limit_s or job.asked_s) / 60:.1f}" if job.limit_s or job.asked_s else ""
    ),
    "warning_action": lambda _c, job, _n: job.warn,
    "action_warning_time": lambda _c, job, _n: str(int(job.warn_s // 60)) if job.warn else "",
    "cpu_used": lambda _c, job, _n: "0 second(s)" if job.started else "",
    "mem": lambda _c, job, _n: "7 Mbytes" if job.started else "",
    "max_mem": lambda _c, job, _n: "7 Mbytes" if job.started else "",
    "swap": lambda _c, job, _n: "0 Mbytes" if job.started else "",
    "pids": lambda _c, job, _n: str(job.pid) if job.pid and job.status in ("RUN", "USUSP", "SSUSP") else "",
    "nthreads": lambda _c, _j, _n: "",
    "exit_code": lambda _c, job, _n: str(job.code) if job.code and job.status == "EXIT" else "",
    "exit_reason": lambda _c, job, _n: job.reason,
    "pend_reason": lambda _c, job, _n: job.pend_reason if job.status == "PEND" else "",
    "suspend_reason": lambda _c, job, _n: job.suspend_reason if job.status in ("USUSP", "SSUSP") else "",
    "kill_reason": lambda _c, _j, _n: "",
    "resume_reason": lambda _c, _j, _n: "",
    "resreq": lambda _c, job, _n: job.resreq,
    "effective_resreq": lambda _c, job, _n: "select[type == local] order[r15s:pg] " if job.started else "",
    "sub_cwd": lambda _c, job, _n: job.cwd,
    "exec_cwd": lambda _c, job, _n: job.cwd if job.started else "",
    "exec_home": lambda _c, job, _n: os.path.expanduser("~") if job.started else "",
    "input_file": lambda _c, job, _n: job.input,
    "output_file": lambda _c, job, _n: where(job, job.output),
    "error_file": lambda _c, job, _n: where(job, job.error),
    "idle_factor": lambda _c, job, _n: "0.54" if job.status == "RUN" else "",
}
WIDTHS = {"jobid": 7, "jobindex": 8, "stat": 5, "user": 7, "from_host": 11, "exec_host": 11, "command": 15}


def _asked(config: Config, job: Job) -> int:
    """Slots that were asked for; of `-nnodes` those of the nodes and one on the launch node."""
    if not job.nodes:
        return job.slots
    most = max((host.slots for host in config.hosts if host.name != config.launch_node), default=1)
    return job.nodes * most + (1 if config.launch_node else 0)


def _pended(job: Job, now: float) -> float:
    past = dict(job.spent).get("PEND", 0.0)
    return past + (now - job.since if job.status == "PEND" else 0.0)


def _value(name: str, config: Config, job: Job, now: float, *, padded: bool) -> str:
    if (field := FIELDS.get(name)) is None:
        raise Refused(f"bjobs: {name} is not a valid output field.")
    text = field(config, job, now)
    if padded and name == "from_host":
        return text + " "
    if padded and name == "exec_host" and not text:
        return "         -          "
    return text or "-"


def _json(config: Config, jobs: Sequence[Job], unknown: Sequence[str], given: Options, now: float) -> int:
    text = given.get("o") or os.environ.get("LSB_BJOBS_FORMAT", "")
    if not text:
        raise Refused(NO_FORMAT)
    if given.has("noheader"):
        raise Refused("bjobs: You cannot use the -noheader option with the -json option.")
    fields, _ = format_of(text)
    records: list[dict[str, str]] = []
    for job in jobs:
        record = {}
        for name, _width in fields:
            value = _value(name, config, job, now, padded=False)
            record[name.upper()] = "" if value == "-" else value
        records.append(record)
    records.extend({"JOBID": name, "ERROR": f"Job <{name}> is not found"} for name in unknown)
    print(as_json("bjobs", "JOBS", records), end="")
    return 255 if unknown else 0
