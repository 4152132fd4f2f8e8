"""The Standard Workload Format of the Parallel Workloads Archive: 18 fields a line, comments begin with `;`.

Some logs have more fields at the end of each line (energy, GPUs): these are passed over.
"""

from pathlib import Path

from hpcdl.sim.readers.job_rules import ReaderDefaults, WorkloadBuilder, WorkloadRow, parse_asked
from hpcdl.sim.readers.source import MAX_ROWS, Place, read_text, shown
from hpcdl.sim.workload import Workload

FIELDS = (
    "job", "submit", "wait", "run time", "processors", "cpu time", "memory", "processors asked", "time asked",
    "memory asked", "status", "user", "group", "executable", "queue", "partition", "after", "think time",
)  # fmt: skip
_PARTS = (2, 3, 4)  # statuses of lines for a part of a job that a line of its own sums up


def read_swf(path: Path, given: ReaderDefaults) -> Workload:
    """Every job that ran, with its run time on the processors that it had; `given.procs_per_gpu` are a GPU.

    Lines are sorted by submit, the first of which becomes 0. Jobs without a run time, and parts of jobs that were
    interrupted, are left out and counted in the notes; jobs that failed ran, and count.
    """
    place = Place(path)
    jobs = WorkloadBuilder(place, given)
    latest = 0.0
    for place.line, line in enumerate(read_text(path).splitlines(), 1):
        cells = line.partition(";")[0].split()
        if not cells:
            continue
        if place.line > MAX_ROWS:
            place.wrong("", f"more than {MAX_ROWS} lines: cut the file to the part that is to be simulated")
        if len(cells) < len(FIELDS):
            place.wrong("", f"has {len(cells)} fields, and a line of the Standard Workload Format has {len(FIELDS)}")
        if len(cells) > len(FIELDS):
            jobs.note(f"passed over: what a line has beyond {len(FIELDS)} fields")
        numbers = {name: place.number(name, cell, -1) for name, cell in zip(FIELDS, cells, strict=False)}
        submit = place.number("submit", cells[1])
        if submit < latest:
            place.wrong("submit", f"{submit:g} is before that of an earlier line, {latest:g}: sort the lines by submit")
        latest = submit
        procs = int(numbers["processors"] if numbers["processors"] > 0 else numbers["processors asked"])
        if numbers["processors"] != int(numbers["processors"]):
            place.wrong("processors", f"expected a whole number, got {shown(cells[4])}")
        if procs == 0:
            place.wrong("processors", "must not be 0 (-1: not known)")
        if numbers["status"] in _PARTS:
            jobs.note("left out: the line of a part of a job that was interrupted")
        elif procs < 0 or numbers["run time"] <= 0:
            jobs.note("left out: it never ran, or its run time or processors are not known")
        else:
            gpus = -(-procs // given.procs_per_gpu)
            row = WorkloadRow(
                submit_s=submit,
                model="",
                asked=parse_asked(place, gpus, None, given.per_node),
                duration_s=numbers["run time"],
                user=f"user {cells[11]}" if numbers["user"] >= 0 else "",
                name=f"swf/{cells[0]}",
            )
            jobs.add(row)
    per = f"{given.procs_per_gpu} processors a GPU" if given.procs_per_gpu > 1 else "a processor a GPU"
    return jobs.workload(f"SWF log {path.name}, {per}", "holds no job that ran", rebase=True)
