"""`bjobs -l` and `bjobs -UF`: paragraphs about one job."""

import os

from tests.lsf.emulator.environment import hosts_text
from tests.lsf.emulator.planning import FOREVER
from tests.lsf.emulator.records import UNFINISHED, Config, Job
from tests.lsf.emulator.store import Store
from tests.lsf.emulator.text import INDENT, long_stamp, wrapped

NONE = "   -     -     -     -       -     -    -     -     -      -      -  "
LOADS = f"""
 SCHEDULING PARAMETERS:
           r15s   r1m  r15m   ut      pg    io   ls    it    tmp    swp    mem
 loadSched{NONE}
 loadStop {NONE}
"""
RESOURCES = """
 RESOURCE REQUIREMENT DETAILS:
 Combined: select[type == local] order[r15s:pg]
 Effective: select[type == local] order[r15s:pg]
"""


def long(store: Store, config: Config, job: Job, now: float, *, unformatted: bool) -> str:
    """One job. `-UF` is the same without line breaks within a paragraph."""

    def put(text: str) -> str:
        return text if unformatted else wrapped(text)

    lines = ["", put(head(job))]
    lines.append(put(f"{long_stamp(job.submitted)}: {_submitted(job)};"))
    if limit := job.limit_s or job.asked_s:
        on = f" of {job.hosts[0][0]}" if job.hosts else ""
        lines += ["", " RUNLIMIT", f" {limit / 60:.1f} min{on}"]
    if job.started:
        lines.append(put(f"{long_stamp(job.started)}: {_started(config, job)};"))
    if job.status in ("USUSP", "SSUSP"):
        lines.append(put(f"{long_stamp(job.since)}: Suspended: {job.suspend_reason};"))
    if job.status == "PEND" and job.pend_reason:
        lines += ["", " PENDING REASONS:", f" {job.pend_reason}"]
        lines += _estimate(store, job)
    if job.status not in UNFINISHED:
        lines += [
            put(f"{long_stamp(at)}: {text}.") for at, text in job.events if text.startswith(("Done", "Exit", "Comp"))
        ]
    elif job.pid:
        used = (
            f"{long_stamp(now)}: Resource usage collected.",
            "MEM: 7 Mbytes;  SWAP: 0 Mbytes;  NTHREAD: 1",
            f"PGID: {job.pid};  PIDs: {job.pid} ",
        )
        lines.append((" " if unformatted else "\n" + " " * INDENT).join(used))
    messages = _messages(job)
    return "\n".join(lines) + "\n" + (LOADS if not unformatted else LOADS.lstrip()) + messages + RESOURCES


def head(job: Job) -> str:
    """The first paragraph, without the blank line before it."""
    name = f", Job Name <{job.name}>" if job.name else ""
    described = f", Job Description <{job.description}>" if job.description else ""
    return (
        f"Job <{job.key}>{name}, User <{job.user}>, Project <{job.project}>, Status <{job.status}>,"
        f" Queue <{job.queue}>, Command <{job.command}>, Share group charged </{job.user}>{described}"
    )


def _submitted(job: Job) -> str:
    text = f"Submitted from host <{job.from_host}>, CWD <{job.cwd}>"
    if job.output:
        over = " (overwrite)" if job.output_over else ""
        text += f", Output File{over} <{job.output}>"
    if job.error:
        over = " (overwrite)" if job.error_over else ""
        text += f", Error File{over} <{job.error}>"
    if job.rerunnable:
        text += ", Re-runnable"
    if job.slots > 1:
        text += f", {job.slots} Task(s)"
    if job.exclusive:
        text += ", Exclusive Execution"
    if job.dependency:
        text += f", Dependency Condition <{job.dependency}>"
    if job.resreq:
        text += f", Requested Resources <{job.resreq}>"
    if job.gpus:
        text += f", Requested GPU <num={job.gpus}>"
    if job.wanted:
        text += ", Specified Hosts " + ", ".join(f"<{name}>" for name in job.wanted)
    return text


def _started(config: Config, job: Job) -> str:
    hosts = hosts_text(job.hosts)
    count = sum(slots for _, slots in job.hosts)
    places = f"Execution Home <{os.path.expanduser('~')}>, Execution CWD <{job.cwd}>"
    if config.openlava:
        on = f"Started on {hosts}" if count == 1 else f"Started on {count} Hosts/Processors {hosts}"
        return f"{on}, {places}"
    return f"Started {count} Task(s) on Host(s) {hosts}, Allocated {count} Slot(s) on Host(s) {hosts}, {places}"


def _estimate(store: Store, job: Job) -> list[str]:
    found = [each for each in store.read().reservations if each.job == job.key and each.at < FOREVER]
    return [f" Estimated Job Start Time: {long_stamp(each.at)}" for each in found]


def _messages(job: Job) -> str:
    if not job.gpu_ids:
        return ""
    head = "\n EXTERNAL MESSAGES:\n MSG_ID FROM       POST_TIME      MESSAGE                             ATTACHMENT \n"
    ids = ";".join(f"{name}:gpus={','.join(str(index) for index in ids)}" for name, ids in job.gpu_ids) + ";"
    return head + f" 0      {job.user[:10]:10} {long_stamp(job.started)[4:16]}   {ids[:35]:35}     N     \n"
