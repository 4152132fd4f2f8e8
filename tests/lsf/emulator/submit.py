"""bsub."""

import json
import os
import shlex
import stat
import sys
import time

from tests.lsf.emulator.options import Options, Refused, parse
from tests.lsf.emulator.records import UNFINISHED, Config, Job, Queue
from tests.lsf.emulator.select_jobs import me
from tests.lsf.emulator.store import Store

FLAGS = ("x", "r", "rn", "K", "I", "Is", "Ip", "H", "B", "N", "Zs")
VALUED = (
    *("J", "Jd", "q", "n", "nnodes", "W", "P", "o", "oo", "e", "eo", "i", "is", "cwd", "R", "gpu", "m", "M", "v", "G"),
    *("U", "app", "w", "wa", "wt", "Q", "env", "alloc_flags", "core_isolation", "sp", "L", "E", "Ep", "k", "We", "g"),
)
OPENLAVA_LACKS = ("rn", "Jd", "nnodes", "gpu", "wa", "wt")
SIGNALS = ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "URG", "CONT", "TSTP", "STOP", "KILL", "XCPU", "ALRM")


def bsub(store: Store, argv: list[str], faults: dict[str, str]) -> int:
    """`bsub [options] COMMAND`, `bsub [options] < FILE`, and `bsub [options] FILE` where the cluster reads files."""
    config = store.config()
    given = _parse(config, argv)
    script = ""
    if not given.rest:
        script = sys.stdin.read()
    elif config.script_file and len(given.rest) == 1 and os.path.isfile(given.rest[0]):
        with open(given.rest[0]) as file:
            script = file.read()
    if not script.strip() and not given.rest:
        raise Refused("No command is specified. Job not submitted.")
    for line in script.splitlines():
        if line.startswith("#BSUB"):
            words = shlex.split(line[len("#BSUB") :], comments=True)
            inside = _parse(config, words)
            given.flags |= inside.flags
            given.values = inside.values | given.values
    job = _job(config, given, script)
    now = time.time()
    with store.change() as state:
        _limits(config, job, [j for j in state.jobs if j.queue == job.queue and j.status in UNFINISHED])
        job.id, state.next_id = state.next_id, state.next_id + 1
        job.submitted = job.since = now
        _write(store, job, script)
        state.jobs = (*state.jobs, *_elements(job, now))
    if "banner" in faults or config.project_needed:
        print(f"Job is submitted to <{job.project}> project.")
    where = f"queue <{job.queue}>" if job.queue_named else f"default queue <{job.queue}>"
    print(f"Job <{job.id}> is submitted to {where}.", flush=True)
    return _wait(store, job.id) if given.has("K") else 0


def _parse(config: Config, argv: list[str]) -> Options:
    lacks = OPENLAVA_LACKS if config.openlava else () if config.node_jobs else ("nnodes",)
    try:
        return parse(argv, FLAGS, VALUED, command="bsub", mixed=False, without=lacks)
    except Refused as refused:
        raise Refused(f"{refused}. Job not submitted.") from None


def _job(config: Config, given: Options, script: str) -> Job:
    name = given.get("q") or os.environ.get("LSB_DEFAULTQUEUE", "").split(" ")[0] or config.default_queue
    queue = config.queue(name)
    if queue is None:
        raise Refused(
            f"{name}: No such queue. Job not submitted." if config.openlava else "No such queue. Job not submitted."
        )
    if not queue.open:
        raise Refused("Queue has been closed. Job not submitted.")
    if config.project_needed and not given.has("P"):
        raise Refused("Please specify a project ID with the -P option. Job not submitted.")
    nodes = _number(given, "nnodes", "nodes")
    if nodes and given.has("n"):
        raise Refused("-n is not allowed together with -nnodes. Job not submitted.")
    if given.has("wa") != given.has("wt"):
        raise Refused("-wa and -wt must be specified together. Job not submitted.")
    warn = given.get("wa").removeprefix("SIG")
    if warn and warn not in SIGNALS:
        raise Refused(f"{warn}: Illegal signal value. Job not submitted.")
    resreq = given.get("R").strip("\"'")
    if resreq.count("select[") > 1:
        raise Refused('Error near "select" : duplicate section. Job not submitted.')
    command = " ".join(given.rest)
    if script and not given.rest:
        command = ";".join(line for line in script.splitlines() if line.strip())
    return Job(
        name=given.get("J").strip("\"'"),
        user=me(),
        project=given.get("P") or "default",
        queue=queue.name,
        queue_named=given.has("q"),
        command=command,
        run=("/bin/sh", "-c", command) if not script else (),
        cwd=os.path.abspath(given.get("cwd") or os.getcwd()),
        description=given.get("Jd"),
        dependency=given.get("w"),
        resreq=resreq,
        slots=max(1, _number(given, "n", "slots")),
        nodes=nodes,
        ptile=_within(resreq, "ptile="),
        exclusive=given.has("x"),
        gpus=(1 if given.get("gpu") == "-" else _within(given.get("gpu"), "num="))
        or _within(resreq, "ngpus_physical="),
        wanted=tuple(given.get("m").split()),
        asked_s=_minutes(config, given, "W", "RUNLIMIT"),
        warn=warn,
        warn_s=_minutes(config, given, "wt", "-wt"),
        requeue_values=tuple(int(word) for word in given.get("Q").replace(",", " ").split() if word.isdigit()),
        rerunnable=(queue.rerunnable or given.has("r")) and not given.has("rn"),
        no_rerun=given.has("rn"),
        output=given.get("oo") or given.get("o"),
        output_over=given.has("oo"),
        error=given.get("eo") or given.get("e"),
        error_over=given.has("eo"),
        input=given.get("i"),
        status="PSUSP" if given.has("H") else "PEND",
        pend_reason="New job is waiting for scheduling;",
    )


def _limits(config: Config, job: Job, others: list[Job]) -> None:
    """Raises Refused where the queue or the cluster can never run this."""
    queue = config.queue(job.queue)
    assert isinstance(queue, Queue)
    if queue.limit_s and job.asked_s > queue.limit_s:
        raise Refused("RUNLIMIT: Cannot exceed queue's hard limit(s). Job not submitted.")
    compute = [host for host in config.hosts if host.name != config.launch_node]
    if job.slots > sum(host.slots for host in compute) or job.nodes > len(compute):
        raise Refused("Too many processors requested. Job not submitted.")
    for name in job.wanted:
        if config.host(name) is None:
            raise Refused(f"{name}: Bad host name, host group name or cluster name. Job not submitted.")
    if queue.user_jobs and sum(other.user == job.user for other in others) >= queue.user_jobs * 10:
        raise Refused("User's pending job threshold has been reached. Job not submitted.")


def _elements(job: Job, now: float) -> list[Job]:
    """One job, or those of an array `name[1-4,7]%2`."""
    if not job.name.endswith(("]",)) and "]%" not in job.name:
        job.note(now, _submitted(job))
        return [job]
    stem, _, rest = job.name.partition("[")
    numbers: list[int] = []
    for part in rest.partition("]")[0].split(","):
        first, _, last = part.partition(":")[0].partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    found = []
    for number in numbers:
        values = dict(job.__dict__) | {"index": number, "name": f"{stem}[{number}]", "array": stem}
        found.append(Job(**values))
        found[-1].note(now, _submitted(job))
    return found


def _submitted(job: Job) -> str:
    named = f"to Queue <{job.queue}>, " if job.queue else ""
    asked = f", Requested Resources <{job.resreq}>" if job.resreq else ""
    tasks = f", {job.slots} Task(s)" if job.slots > 1 else ""
    return f"Submitted from host <{job.from_host}>, {named}CWD <{job.cwd}>{tasks}{asked}"


def _write(store: Store, job: Job, script: str) -> None:
    """The job's environment, as `-env all` copies it, and its script."""
    stem = store.path("jobs", str(job.id))
    with open(os.open(stem + ".env", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        json.dump(dict(os.environ), file)
    if script:
        with open(stem + ".sh", "w") as file:
            file.write(script if script.startswith("#!") else "#!/bin/sh\n" + script)
        os.chmod(stem + ".sh", stat.S_IRWXU)
        job.run = (stem + ".sh",)


def _wait(store: Store, number: int) -> int:
    """-K: until the job has ended."""
    said = 0
    print("<<Waiting for dispatch ...>>", flush=True)
    while True:
        job = next(job for job in store.read().jobs if job.id == number)
        if job.hosts and not said:
            said = 1
            print(f"<<Starting on {job.hosts[0][0]}>>", flush=True)
        if job.status not in UNFINISHED:
            print("<<Job is finished>>")
            return job.code or (1 if job.status == "EXIT" else 0)
        time.sleep(0.05)


def _number(given: Options, name: str, what: str) -> int:
    text = given.get(name).split(",")[0]
    if text and not text.isdigit():
        raise Refused(f"{text}: Bad {what} specification. Job not submitted.")
    return int(text or 0)


def _minutes(config: Config, given: Options, name: str, what: str) -> float:
    """`[hour:]minute[/host]` in seconds."""
    text = given.get(name).split("/")[0]
    parts = text.split(":")
    if not text:
        return 0.0
    if len(parts) > 2 or not all(part.isdigit() for part in parts):
        raise Refused(f"{text}: Bad {what} specification. Job not submitted.")
    hours = int(parts[0]) if len(parts) == 2 else 0
    return (60 * hours + int(parts[-1])) * config.minute_s


def _within(text: str, name: str) -> int:
    """The number after `name` in a requirement, 0 where it is not asked."""
    _, found, rest = text.partition(name)
    digits = ""
    for letter in rest:
        if not letter.isdigit():
            break
        digits += letter
    return int(digits or 0) if found else 0
