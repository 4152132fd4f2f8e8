"""What LSF sets for a batch script, with the values of a job of hpcdl: its own id, hosts and slots. Pure.

`agent/steps` starts the script with them; `slurm/script_variables` is its neighbour.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from hpcdl.batch.system import QUEUE

LAUNCH = "batch1"
"""The host on which scripts of jsrun run, where its systems have one that does not compute."""


def script_variables(batch: Mapping[str, Any], environ: Mapping[str, str], nodes: Sequence[str]) -> dict[str, str]:
    """See `BatchSystem`."""
    array = environ.get("HPCDL_ARRAY_JOB")
    job = array or environ["HPCDL_JOB"]
    hosts = hosts_of(batch, nodes)
    name = environ.get("HPCDL_JOB_NAME", "")
    return {
        "LSB_JOBID": job,
        "LSB_BATCH_JID": f"{job}[{environ.get('HPCDL_ARRAY_INDEX')}]" if array else job,
        "LSB_JOBINDEX": environ.get("HPCDL_ARRAY_INDEX", "0"),
        "LSB_JOBNAME": name,
        "LSB_QUEUE": QUEUE,
        "LSB_HOSTS": " ".join(host for host, slots in hosts for _ in range(slots)),
        "LSB_MCPU_HOSTS": " ".join(f"{host} {slots}" for host, slots in hosts),
        "LSB_DJOB_NUMPROC": str(sum(slots for _, slots in hosts)),
        "LSB_MAX_NUM_PROCESSORS": str(sum(slots for _, slots in hosts)),
        "LSB_SUB_HOST": os.uname().nodename,
        "LS_JOBPID": str(os.getpid()),
        **({"LSB_RESTART": "Y"} if environ.get("HPCDL_INCARNATION", "1") != "1" else {}),
    }


def hosts_of(batch: Mapping[str, Any], nodes: Sequence[str]) -> list[tuple[str, int]]:
    """The hosts with their slots; jsrun's systems have another one first, on which the script runs."""
    slots = int(batch.get("tasks_per_node") or -(-int(batch.get("tasks") or len(nodes)) // len(nodes)))
    return [(LAUNCH, 1)] * bool(batch.get("launch_host")) + [(node, slots) for node in nodes]


def file_values(environ: Mapping[str, str]) -> dict[str, str]:
    """See `BatchSystem`."""
    return {"J": environ["LSB_JOBID"], "I": environ["LSB_JOBINDEX"]}
