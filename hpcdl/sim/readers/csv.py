"""Jobs in CSV: `submit_s,model,gpus,steps|duration_s[,nodes][,deadline_s][,user][,kind][,name]`."""

from collections.abc import Mapping
from pathlib import Path

from hpcdl.sim.readers.job_rules import Notes, ReaderDefaults, WorkloadRow, make_job, parse_asked
from hpcdl.sim.readers.source import MAX_SECONDS, Place, read_table
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
        row = _row(place, cells, given)
        if jobs and row.submit_s < jobs[-1].submit_s:
            place.wrong(
                "submit_s", f"{row.submit_s:g} is before that of the row above, {jobs[-1].submit_s:g}: sort the rows"
            )
        jobs.append(make_job(place, row, given, notes, len(jobs) + 1))
    if not jobs:
        Place(path).wrong("", "names no job below its header")
    return Workload(path.name, tuple(jobs), given.nodes, source=f"jobs of {path.name}", notes=notes.lines())


def _row(place: Place, cells: Mapping[str, str], given: ReaderDefaults) -> WorkloadRow:
    submit_s = place.number("submit_s", cells["submit_s"])
    asked = parse_asked(place, cells["gpus"], cells.get("nodes") or None, given.per_node)
    steps, duration, deadline = cells.get("steps"), cells.get("duration_s"), cells.get("deadline_s")
    if bool(steps) == bool(duration):
        both = "both are given" if steps else "neither is given"
        place.wrong("steps, duration_s", f"{both}: a job has steps, or a duration_s that stands for them")
    return WorkloadRow(
        submit_s=submit_s,
        model=cells["model"],
        asked=asked,
        steps=place.whole("steps", steps) if steps else None,
        duration_s=positive(place, "duration_s", duration) if duration else None,
        deadline_s=place.number("deadline_s", deadline, -MAX_SECONDS) if deadline else None,
        user=cells.get("user", ""),
        kind=cells.get("kind", "").casefold() or "training",
        name=cells.get("name", ""),
    )


def positive(place: Place, column: str, value: object) -> float:
    """A number above 0."""
    number = place.number(column, value)
    if number == 0:
        place.wrong(column, "must be more than 0")
    return number
