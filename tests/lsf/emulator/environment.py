"""What a job finds: LSF's variables, its host file, its GPUs; and the report at the end of its output."""

import json
import os
import time
from collections.abc import Sequence

from tests.lsf.emulator.records import Config, Job, State
from tests.lsf.emulator.resident import Run
from tests.lsf.emulator.store import Store

LONGEST_HOSTS = 4096
"""Characters of LSB_HOSTS; where it would be longer, LSF leaves it out."""


def gpus_for(config: Config, state: State, job: Job) -> Sequence[tuple[str, Sequence[int]]]:
    """Which GPUs of its hosts a job gets."""
    found = []
    for name, slots in job.hosts:
        host = config.host(name)
        if host is None or name == config.launch_node:
            continue
        taken = {
            index
            for other in state.jobs
            if other.status in ("RUN", "USUSP") and other is not job
            for where, ids in other.gpu_ids
            if where == name
            for index in ids
        }
        left = [index for index in range(host.gpus) if index not in taken]
        whole = job.nodes or job.exclusive or (config.openlava and slots == host.slots)  # there a site's job starter's
        count = host.gpus if whole else job.gpus
        if count:
            found.append((name, left[:count]))
    return tuple(found)


def prepared(store: Store, config: Config, job: Job) -> Run:
    """Writes a job's host file; what is to be run for it."""
    folder = store.path("jobs")
    stem = os.path.join(folder, f"{int(job.submitted)}.{job.key}")
    names = [name for name, slots in job.hosts for _ in range(slots)]
    with open(stem + ".hostfile", "w") as file:
        file.write("".join(name + "\n" for name in names))
    with open(os.path.join(folder, f"{job.id}.env")) as file:
        env: dict[str, str] = json.load(file)
    env = {name: value for name, value in env.items() if not name.startswith(("LSB_", "JSM_", "PMIX_"))}
    first = job.hosts[0][0]
    env |= {
        "LSB_JOBID": str(job.id),
        "LSB_JOBINDEX": str(job.index),
        "LSB_BATCH_JID": job.key,
        "LSB_JOBNAME": job.name,
        "LSB_QUEUE": job.queue,
        "LSB_SUB_HOST": job.from_host,
        "LSB_MCPU_HOSTS": " ".join(f"{name} {slots}" for name, slots in job.hosts),
        "LSB_DJOB_NUMPROC": str(len(names)),
        "LSB_MAX_NUM_PROCESSORS": str(len(names)),
        "LSB_DJOB_HOSTFILE": stem + ".hostfile",
        "LSB_DJOB_RANKFILE": stem + ".hostfile",
        "LSB_JOBFILENAME": stem,
        "LSB_EXEC_CLUSTER": config.name,
        "LSB_PROJECT_NAME": job.project,
        "LS_SUBCWD": job.cwd,
        "LS_EXEC_T": "START",
        "LSF_VERSION": "34",
        "PWD": job.cwd,
        "HOSTNAME": first,
    }
    if len(hosts := " ".join(names)) <= LONGEST_HOSTS:
        env["LSB_HOSTS"] = hosts
    if job.output:
        env["LSB_OUTPUTFILE"] = where(job, job.output)
    if config.launch_node:
        env["CSM_ALLOCATION_ID"] = str(30000 + job.id)
    env.pop("CUDA_VISIBLE_DEVICES", None)
    if (ids := dict(job.gpu_ids).get(first)) is not None:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in ids)
    files = (where(job, job.input), where(job, job.output) or store.path("mail", job.key), where(job, job.error))
    return Run(job.run, job.cwd, env, files, (job.output_over and job.runs <= 1, job.error_over and job.runs <= 1))


def where(job: Job, path: str) -> str:
    """A file of the job's options: %J and %I filled in, from its folder on; "" where there is none."""
    if not path:
        return ""
    path = path.replace("%J", str(job.id)).replace("%I", str(job.index))
    path = os.path.join(job.cwd, path)
    return os.path.join(path, f"{job.id}.out") if os.path.isdir(path) else path


def hosts_text(hosts: Sequence[tuple[str, int]]) -> str:
    """`<4*h1> <4*h2>`, or `<h1>` for one slot."""
    return " ".join(f"<{slots}*{name}>" if slots > 1 else f"<{name}>" for name, slots in hosts)


def dispatched(config: Config, job: Job) -> str:
    """What bhist says of a start."""
    where_text = hosts_text(job.hosts)
    if config.openlava:
        count = sum(slots for _, slots in job.hosts)
        return f"Dispatched to {where_text}" if count == 1 else f"Dispatched to {count} Hosts/Processors {where_text}"
    count = sum(slots for _, slots in job.hosts)
    return (
        f"Dispatched {count} Task(s) on Host(s) {where_text}, Allocated {count} Slot(s) on Host(s) {where_text},"
        " Effective RES_REQ <select[type == local] order[r15s:pg] >"
    )


def write_report(config: Config, job: Job) -> None:
    """What LSF puts below the output of a job that has ended."""
    path = where(job, job.output)
    if not path:
        return
    how = "Done" if job.status == "DONE" else "Exited"
    name = job.name or job.command
    first, *others = [f"<{slots}*{name}>" for name, slots in job.hosts]
    home = os.path.expanduser("~")

    def stamp(at: float) -> str:
        return time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(at))

    end = f"Exited with exit code {job.code}." if job.status == "EXIT" else "Successfully completed."
    reason = f"{job.reason}.\n" if job.reason else ""
    by = f"by user <{job.user}> in cluster <{config.name}> at {stamp(job.submitted)}"
    run = f"in queue <{job.queue}>, as user <{job.user}> in cluster <{config.name}> at {stamp(job.started)}"
    lines = [
        "",
        "-" * 60,
        f"Sender: LSF System <lsfadmin@{job.hosts[0][0]}>",
        f"Subject: Job {job.key}: <{name}> in cluster <{config.name}> {how}",
        "",
        f"Job <{name}> was submitted from host <{job.from_host}> {by}",
        f"Job was executed on host(s) {first}, {run}",
        *(" " * 28 + other for other in others),
        f"<{home}> was used as the home directory.",
        f"<{job.cwd}> was used as the working directory.",
        f"Started at {stamp(job.started)}",
        f"Terminated at {stamp(job.ended)}",
        f"Results reported at {stamp(job.ended)}",
        "",
        f"{reason}{end}",
        "",
        "The output (if any) is above this job summary.",
        "",
    ]
    try:
        with open(path, "a") as file:
            file.write("\n".join(lines))
    except OSError:
        return
