"""Jobs in CSV: `submit_s,model,gpus,steps|duration_s[,nodes][,deadline_s][,user][,kind][,name]`."""

from pathlib import Path

from hpcdl.sim.readers.job_rules import Notes, ReaderDefaults, make_job, parse_row
from hpcdl.sim.readers.source import Place, read_table
from hpcdl.sim.workload import SimJob, Workload

REQUIRED = ("submit_s", "model", "gpus")
OPTIONAL = ("steps", "duration_s", "nodes", "deadline_s", "user", "kind", "name")


def read_csv(path: Path, given: ReaderDefaults) -> Workload:
    """The jobs of the file, which must be in the order of their submits; see `asking` for what its numbers mean.

    `model` is the name of a profile; `deadline_s` a moment on the clock of `submit_s`; each row has steps or a
    duration_s; `kind` is training (also where it is empty) or inference.
    """
    jobs: list[SimJob] = []
    notes = Notes()
    for place, cells in read_table(path, REQUIRED, OPTIONAL):
        values = {name: cell for name, cell in cells.items() if cell or name in REQUIRED}
        row = parse_row(place, values, given)
        if jobs and row.submit_s < jobs[-1].submit_s:
            place.wrong(
                "submit_s", f"{row.submit_s:g} is before that of the row above, {jobs[-1].submit_s:g}: sort the rows"
            )
        jobs.append(make_job(place, row, given, notes, len(jobs) + 1))
    if not jobs:
        Place(path).wrong("", "names no job below its header")
    return Workload(path.name, tuple(jobs), given.nodes, source=f"jobs of {path.name}", notes=notes.lines())
