"""`hpcdl submit --signal lightning`: a command as tasks of a Slurm job, one for each GPU, as Lightning wants them.

Lightning's own requeue saves at SIGUSR1 and calls `scontrol requeue`, and loads that at the next start, where it takes
itself for a task of srun's. The commands of hpcdl/agent/steps are both. Pure: from words to words.
"""

from collections.abc import Sequence

from hpcdl.core.model.job import BatchTasks
from hpcdl.core.rules.launchers import launcher_of

SRUN = "srun"
INTERACTIVE = ("bash", "interactive")
"""Jobs of these names Lightning takes for a shell, in which it handles no signal."""


def as_tasks(
    command: Sequence[str], name: str, gpus: tuple[int, int | None, tuple[int, ...]], nodes: tuple[int, int]
) -> tuple[tuple[str, ...], BatchTasks]:
    """The command as srun starts it, and the Slurm job round it. `gpus`: least, most and the only numbers on a node;
    `nodes`: least and most. Raises ValueError where the number of tasks is not known before it starts."""
    from hpcdl.slurm.system import SYSTEM

    least, most, counts = gpus
    if least != most or len(counts) > 1 or nodes[0] != nodes[1]:
        raise ValueError(
            "--signal lightning: Lightning's own requeue wants one task for each GPU: give a fixed number of them, "
            "--gpus N, and of nodes; or add the callback of hpcdl.trainer.lightning (docs/trainer-guide.md)"
        )
    if launcher := launcher_of(command):
        raise ValueError(
            f"--signal lightning: hpcdl starts one task for each GPU, as srun does, and within {launcher} Lightning "
            "would not requeue: leave it out"
        )
    variables = (("SLURM_JOB_NAME", "lightning"),) if name in INTERACTIVE else ()
    return (SRUN, *command), BatchTasks(SYSTEM.name, tasks_per_node=least, variables=variables)
