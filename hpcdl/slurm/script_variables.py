"""What Slurm sets for a batch script, with the values of a job of hpcdl: its own id, nodes, GPUs and tasks.

Pure. The partition and the cluster are called as hpcdl is: by that srun and scontrol know such a job (agent/steps).
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from hpcdl.batch.system import QUEUE
from hpcdl.core.model.units import node_list, repeated


def tasks_in(batch: Mapping[str, Any], nodes: int) -> int:
    """How many tasks the job has."""
    return int(batch.get("tasks") or nodes * (batch.get("tasks_per_node") or 1))


def cpus_of(environ: Mapping[str, str]) -> int:
    """Processors of this node that the job may use."""
    return int(environ.get("HPCDL_CPUS") or 0) or len(os.sched_getaffinity(0))


def script_variables(
    batch: Mapping[str, Any], environ: Mapping[str, str], nodes: Sequence[str], here: int
) -> dict[str, str]:
    """See `BatchSystem`."""
    job, tasks = environ["HPCDL_JOB"], tasks_in(batch, len(nodes))
    listed, user = node_list(nodes), environ.get("USER") or environ.get("LOGNAME") or str(os.getuid())
    gpus, cpus = int(environ.get("HPCDL_GPU_COUNT") or 0), cpus_of(environ)
    each = -(-tasks // len(nodes))
    counts = [max(0, min(each, tasks - each * place)) for place in range(len(nodes))]
    if batch.get("tasks") and not batch.get("tasks_per_node"):
        counts = [tasks // len(nodes) + (place < tasks % len(nodes)) for place in range(len(nodes))]
    name = environ.get("HPCDL_JOB_NAME", "")
    if environ.get("HPCDL_ARRAY_JOB"):  # in Slurm all members have the name of their array
        name = name.removesuffix(f"[{environ.get('HPCDL_ARRAY_INDEX', '')}]")
    found = {
        "SLURM_JOB_ID": job,
        "SLURM_JOBID": job,
        "SLURM_JOB_NAME": name,
        "SLURM_JOB_PARTITION": QUEUE,
        "SLURM_CLUSTER_NAME": QUEUE,
        "SLURM_JOB_USER": user,
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_JOB_GID": str(os.getgid()),
        "SLURM_JOB_NODELIST": listed,
        "SLURM_NODELIST": listed,
        "SLURM_JOB_NUM_NODES": str(len(nodes)),
        "SLURM_NNODES": str(len(nodes)),
        "SLURM_NODEID": str(here),
        "SLURMD_NODENAME": nodes[here],
        "SLURM_TOPOLOGY_ADDR": nodes[here],
        "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_GTIDS": "0",
        "SLURM_TASK_PID": str(os.getpid()),
        "SLURM_TASKS_PER_NODE": repeated(counts),
        "SLURM_CPUS_ON_NODE": str(cpus),
        "SLURM_JOB_CPUS_PER_NODE": repeated([cpus] * len(nodes)),
        "SLURM_GPUS_ON_NODE": str(gpus),
        "SLURM_JOB_GPUS": ",".join(map(str, range(gpus))),
        "SLURM_SUBMIT_HOST": os.uname().nodename,
        "SLURM_OOM_KILL_STEP": "0",
    }
    if batch.get("tasks") or batch.get("tasks_per_node"):
        found |= {"SLURM_NTASKS": str(tasks), "SLURM_NPROCS": str(tasks)}
    if batch.get("tasks_per_node"):
        found["SLURM_NTASKS_PER_NODE"] = str(batch["tasks_per_node"])
    if environ.get("HPCDL_ARRAY_JOB"):
        found["SLURM_ARRAY_JOB_ID"] = environ["HPCDL_ARRAY_JOB"]
        found["SLURM_ARRAY_TASK_ID"] = environ.get("HPCDL_ARRAY_INDEX", "")
    if (again := int(environ.get("HPCDL_INCARNATION") or 1) - 1) > 0:
        found["SLURM_RESTART_COUNT"] = str(again)
    return found


def file_values(environ: Mapping[str, str]) -> dict[str, str]:
    """See `BatchSystem`."""
    job, index = environ["SLURM_JOB_ID"], environ.get("HPCDL_ARRAY_INDEX", "")
    return {
        "j": job, "J": job, "A": environ.get("SLURM_ARRAY_JOB_ID", job), "a": index or "4294967294", "b": index or "0",
        "x": environ["SLURM_JOB_NAME"], "u": environ["SLURM_JOB_USER"], "N": environ["SLURMD_NODENAME"],
        "n": "0", "t": "0", "s": "batch",
    }  # fmt: skip
