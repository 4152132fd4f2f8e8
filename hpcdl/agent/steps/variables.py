"""What srun and jsrun set for a task, beyond what the script has. Pure.

What the script itself has of its batch system is in `slurm/script_variables` and `lsf/script_variables`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from hpcdl.agent.steps.layout import Task, per_node_text
from hpcdl.core.model.units import node_list


class SrunVariables:
    """What srun sets for a task of the step of this number; called with the task and all tasks of its step."""

    def __init__(self, number: int, nodes: Sequence[str], cpus: int | None, gpus: int | None = None) -> None:
        """`cpus`: of each task, None: not said. `gpus`: that it has on each node, None: the job's."""
        self._number, self._nodes, self._cpus = number, nodes, cpus
        self._gpus = int(os.environ.get("HPCDL_GPU_COUNT") or 0) if gpus is None else gpus

    def __call__(self, task: Task, tasks: Sequence[Task]) -> dict[str, str]:
        places = sorted({each.node for each in tasks})
        listed = node_list([self._nodes[place] for place in places])
        size, per_node = str(len(tasks)), per_node_text(tasks)
        found = {
            "SLURM_PROCID": str(task.rank),
            "SLURM_LOCALID": str(task.local),
            "SLURM_NODEID": str(places.index(task.node)),
            "SLURM_NTASKS": size,
            "SLURM_NPROCS": size,
            "SLURM_NNODES": str(len(places)),
            "SLURM_TASKS_PER_NODE": per_node,
            "SLURM_GTIDS": ",".join(str(each.rank) for each in tasks if each.node == task.node),
            "SLURMD_NODENAME": self._nodes[task.node],
            "SLURM_TOPOLOGY_ADDR": self._nodes[task.node],
            "SLURM_LAUNCH_NODE_IPADDR": os.environ.get("HPCDL_ADDRESS", ""),
            "SLURM_SRUN_COMM_HOST": os.environ.get("HPCDL_ADDRESS", ""),
            "SLURM_STEP_ID": str(self._number),
            "SLURM_STEPID": str(self._number),
            "SLURM_STEP_NODELIST": listed,
            "SLURM_STEP_NUM_NODES": str(len(places)),
            "SLURM_STEP_NUM_TASKS": size,
            "SLURM_STEP_TASKS_PER_NODE": per_node,
        }
        seen = range(self._gpus) if task.gpus is None else task.gpus
        found["SLURM_GPUS_ON_NODE"] = str(self._gpus)
        found["SLURM_STEP_GPUS"] = ",".join(map(str, seen))
        if self._cpus is not None:
            found["SLURM_CPUS_PER_TASK"] = str(self._cpus)
            others = re.sub(r"(^|,)cpu=\d+", "", os.environ.get("SLURM_TRES_PER_TASK", "")).strip(",")
            found["SLURM_TRES_PER_TASK"] = f"cpu={self._cpus},{others}".rstrip(",")
        return found


def jsrun_variables(task: Task, tasks: Sequence[Task]) -> dict[str, str]:
    """What jsrun's runtime sets for a task."""
    size, local = str(len(tasks)), str(sum(each.node == task.node for each in tasks))
    return {
        "OMPI_COMM_WORLD_RANK": str(task.rank),
        "OMPI_COMM_WORLD_SIZE": size,
        "OMPI_COMM_WORLD_LOCAL_RANK": str(task.local),
        "OMPI_COMM_WORLD_LOCAL_SIZE": local,
        "OMPI_COMM_WORLD_NODE_RANK": str(task.local),
        "PMIX_RANK": str(task.rank),
        "PMIX_NAMESPACE": "1",
        "JSM_NAMESPACE_RANK": str(task.rank),
        "JSM_NAMESPACE_SIZE": size,
        "JSM_NAMESPACE_LOCAL_RANK": str(task.local),
        "JSM_NAMESPACE_LOCAL_SIZE": local,
    }
