"""Jobs in CSV: `submit_s,model,gpus,steps|duration_s[,nodes][,deadline_s][,user][,kind][,name][,share][,gpu_memory]`.

What the values mean is the same in YAML: see `job_rules`.
"""

from pathlib import Path

from hpcdl.sim.readers.job_rules import ReaderDefaults, WorkloadBuilder, check_order, parse_row
from hpcdl.sim.readers.source import Place, read_table
from hpcdl.sim.workload import Workload

REQUIRED = ("submit_s", "model", "gpus")
OPTIONAL = ("steps", "duration_s", "nodes", "deadline_s", "user", "kind", "name", "share", "gpu_memory")


def read_csv(path: Path, given: ReaderDefaults) -> Workload:
    """The jobs of the file, which must be in the order of their submits; see `job_rules` for what its numbers mean.

    `model` is the name of a profile; `deadline_s` a moment on the clock of `submit_s`; each row has steps or a
    duration_s; `kind` is training (also where it is empty) or inference; `share` and `gpu_memory` are as on submit.
    """
    jobs = WorkloadBuilder(Place(path), given)
    for jobs.place, cells in read_table(path, REQUIRED, OPTIONAL):
        row = parse_row(jobs.place, {name: cell for name, cell in cells.items() if cell or name in REQUIRED}, given)
        if jobs.jobs:
            check_order(jobs.place, row, jobs.jobs[-1].submit_s, "row")
        jobs.add(row)
    return jobs.workload(f"jobs of {path.name}", "names no job below its header")
