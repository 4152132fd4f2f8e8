"""hpcdl's own batch jobs in Slurm: the arguments of sbatch, scancel and srun, and what these answer.

Pure: `adapter.py` runs the commands. A pilot is never requeued, and takes whole nodes.
"""

import math
import re
import shlex
from collections.abc import Collection, Sequence

from hpcdl.batch.adapter import Allocation, PilotScript
from hpcdl.batch.system import BatchError
from hpcdl.core.model.pilot import PilotSpec
from hpcdl.slurm.text import complaint, is_away, pairs

_EARLY_S = 60.0
"""Slurm looks at times once a minute: a signal before the end of the walltime may come by so much too early."""

_NOTICE_MAX_S = 65535

_FULL = ("limit", "temporarily", "try again", "too many", "maxjob", "maxsubmit", "resource busy", "retry")
"""Words of refusals that pass: as many jobs as are allowed are there already, or Slurm is busy."""

_NEVER = ("time limit is invalid", "requested time limit", "node count specification", "perjob")
"""Words of refusals of what was asked for, by limits of one batch job."""


_KEPT = {
    "JobName": "--job-name", "Partition": "--partition", "Account": "--account", "QOS": "--qos",
    "TimeLimit": "--time", "WorkDir": "--chdir",
}  # fmt: skip
"""What scontrol shows of a batch job that the next one of a chain is to have, too, with sbatch's option for it."""

_OF_THE_ALLOCATION = (
    *("SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK", "SLURM_GRES"),
    *("SLURM_CPUS_PER_GPU", "SLURM_CPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_GPU_BIND", "SLURM_CPU_BIND"),
    *("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE", "SLURM_EXACT", "SLURM_DISTRIBUTION"),
    *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_CORE", "SLURM_NTASKS_PER_SOCKET"),
    *("SLURM_NTASKS_PER_GPU", "SLURM_THREADS_PER_CORE", "SLURM_HINT", "SLURM_TRES_BIND"),
)
"""What srun would take for options of the step: `sbatch --gpus=8` of two nodes makes a step of one node fail."""


def submit_argv(spec: PilotSpec, script: PilotScript, stale: Collection[str] = ()) -> list[str]:
    """sbatch for a pilot: whole nodes, given back when it ends (never requeued), its mark in the comment.

    It outlives the loss of a node. TERM reaches its steps `notice_s` before its end, up to a minute earlier. `stale`:
    variables that sbatch must not hand on. Raises BatchError where the walltime is below Slurm's one minute.
    """
    minutes = math.floor(spec.walltime_s / 60.0)
    if minutes < 1:
        raise BatchError(f"Slurm counts walltimes in minutes, and a pilot of {spec.walltime_s:.0f} s is below one")
    argv = ["env", *(part for name in sorted(stale) for part in ("-u", name))] if stale else []
    argv += [
        *("sbatch", "--parsable", f"--comment={script.mark}", f"--job-name={script.name}"),
        *(f"--nodes={spec.nodes}", "--ntasks-per-node=1", "--exclusive", "--mem=0", f"--time={minutes}"),
        *(f"--output={script.output}", "--open-mode=append", "--no-requeue", "--no-kill"),
    ]
    notice_s = min(_NOTICE_MAX_S, math.ceil(script.notice_s))
    if 0 < notice_s < minutes * 60.0 - _EARLY_S:
        argv.append(f"--signal=TERM@{notice_s}")
    if spec.queue:
        argv.append(f"--partition={spec.queue}")
    if spec.gpus:
        argv.append(f"--gres=gpu:{spec.gpus}")
    if spec.on:
        argv.append(f"--nodelist={','.join(spec.on)}")
    return [*argv, *script.options]


def submit_script(script: PilotScript) -> str:
    """What sbatch reads: it becomes `argv`, each argument quoted."""
    return f"#!/bin/sh\nexec {shlex.join(script.argv)}\n"


def next_argv(batch_id: str, shown: str) -> list[str]:
    """sbatch for a batch job like this one, after its end. `shown`: what `scontrol --oneliner show job` says of it."""
    fields = pairs(shown)
    argv = ["sbatch", "--parsable", f"--dependency=afterany:{batch_id}"]
    for name, option in _KEPT.items():
        value = fields.get(name, "")
        if value and not value.startswith("(null)"):
            argv.append(f"{option}={value}")
    nodes = fields.get("NumNodes", "").split("-")[0]
    return [*argv, f"--nodes={nodes}"] if nodes.isdigit() else argv


def submitted(out: str) -> str:
    """The batch id among what sbatch prints: alone on a line, with `;cluster` behind it where there are several.

    Whatever a site prints before it is no id. Raises BatchError where there is none.
    """
    lines = [line.strip() for line in out.splitlines()]
    for pattern in (r"(\d+)(?:;[\w.-]+)?", r"Submitted batch job (\d+)(?: on cluster [\w.-]+)?"):
        for line in reversed(lines):
            if (match := re.fullmatch(pattern, line)) is not None:
                return match[1]
    said = next((line for line in lines if line), "nothing")
    raise BatchError(f"sbatch took the batch job but printed no job id (it printed: {said[:200]})", again=True)


def refusal(err: str, out: str = "") -> BatchError:
    """Why sbatch did not take a pilot, in Slurm's words."""
    said = complaint(err, out)
    details = [line for line in (complaint(each) for each in err.splitlines()) if line != said and "Max" in line]
    words = f"{said} ({details[-1]})" if details else said
    low = f"{err}\n{out}".lower()
    passes = any(word in low for word in _FULL) and not any(word in words.lower() for word in _NEVER)
    return BatchError(f"sbatch: {words}", away=is_away(err), again=passes)


def cancel_argv(ids: Collection[str]) -> list[str]:
    """Ends batch jobs: first CONT and TERM for all their processes, after KillWait KILL."""
    return ["scancel", *ids]


def signal_argv(batch_id: str, name: str) -> list[str]:
    """A signal for the steps of a batch job: the agents, not the shell of the batch script."""
    return ["scancel", f"--signal={name}", batch_id]


def launch_argv(allocation: Allocation, node: str, argv: Sequence[str]) -> list[str]:
    """srun of one process on a node, beside whatever runs there, with all CPUs, memory and GPUs of the allocation.

    It gives up after a minute where the step cannot be made, and neither its exit nor another node's loss ends others.
    """
    gres = [f"--gres=gpu:{allocation.gpus}"] if allocation.gpus else []
    return [
        "env",
        *(part for name in _OF_THE_ALLOCATION for part in ("-u", name)),
        *("srun", f"--jobid={allocation.id}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}"),
        *("--mem=0", *gres, "--cpu-bind=none", "--export=ALL", "--input=none", "--immediate=60"),
        *("--kill-on-bad-exit=0", "--no-kill", "--unbuffered", "--quiet", "--", *argv),
    ]
