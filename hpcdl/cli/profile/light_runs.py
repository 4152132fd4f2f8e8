"""Short runs of a job for its profile: their speed, from their events, and the file that keeps them.

Pure but for reading that file: command.py makes the runs.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdl.cli.output import Row
from hpcdl.core.model.latency import Setting
from hpcdl.estimators.latency import LightRun
from hpcdl.sim.readers.source import read_table

REQUIRED = ("batch", "nodes", "gpus", "samples_per_s")
OPTIONAL = ("startup_s", "steps_per_s")
FEWEST_REPORTS = 3
"""Of progress; what comes before the first one is warming up."""
LEAST_RATE, MOST_RATE = 1e-9, 1e15
_ENDING_S = 0.05  # a report so close to the end of the processes says when they ended, not when the step was done


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of a run, over so many steps; seconds from its start to its training loop, if that was reported."""

    steps_per_s: float
    steps: int
    startup_s: float | None

    def run(self, setting: Setting) -> LightRun:
        """The run as the fit takes it; a step is a batch of the setting."""
        return LightRun(setting, self.steps_per_s * setting.batch, self.startup_s)


def speed_of(events: Sequence[Row], steps: int) -> Speed | None:
    """The speed of a job's last attempt, from its events in order; None: too little for now.

    Enough are FEWEST_REPORTS reports of progress, the last one `steps` steps after the first one; for a job that has
    ended, any two.
    """
    last = max((row["body"].get("incarnation") or 0 for row in events), default=0)
    own = [row for row in events if row["body"].get("incarnation") == last]
    ready = next((_moment(row) for row in own if row["kind"] == "TrainerReady"), None)
    begun = next((_moment(row) for row in own if row["kind"] in ("StartRequested", "OpenRequested")), None)
    ended = next((_moment(row) for row in own if row["kind"] == "Exited"), None)
    reports = [(_moment(row), int(row["body"]["step"])) for row in own if row["kind"] == "Progressed"]
    enough = len(reports) >= FEWEST_REPORTS and reports[-1][1] - reports[0][1] >= steps
    if ended is not None:
        reports = [report for report in reports if report[0] < ended - _ENDING_S]
    if len(reports) < 2 or not (enough or ended is not None):
        return None
    (from_at, from_step), (to_at, to_step) = reports[0], reports[-1]
    if to_at <= from_at or to_step <= from_step:
        return None
    startup_s = None if ready is None or begun is None else max(0.0, ready - begun)
    return Speed((to_step - from_step) / (to_at - from_at), to_step - from_step, startup_s)


def _moment(row: Row) -> float:
    """When an event happened: its message may have been on its way for a while."""
    return float(row["at"]) - float(row["body"].get("age_s") or 0.0)


def read_runs(path: Path) -> list[LightRun]:
    """The runs of a file, in its order. WorkloadError with line and column for what makes no sense."""
    found = []
    for place, cells in read_table(path, REQUIRED, OPTIONAL):
        setting = Setting(*(place.whole(name, cells[name], 1, 1 << 31) for name in ("batch", "nodes", "gpus")))
        rate = place.number("samples_per_s", cells["samples_per_s"], LEAST_RATE, MOST_RATE)
        text = cells.get("startup_s", "")
        found.append(LightRun(setting, rate, place.number("startup_s", text) if text else None))
    return found


def runs_text(runs: Iterable[LightRun]) -> str:
    """The text of a file that `read_runs` reads."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*REQUIRED, *OPTIONAL))
    for run in runs:
        at = run.setting
        startup = "" if run.startup_s is None else f"{run.startup_s:.3f}"
        rate = run.samples_per_s
        writer.writerow((at.batch, at.nodes, at.gpus, f"{rate:.6g}", startup, f"{rate / at.batch:.6g}"))
    return text.getvalue()


def shape_text(setting: Setting) -> str:
    """A setting for people: `batch 32 on 2 GPUs`, `batch 32 on 3 nodes with 2 GPUs each`."""
    gpus = f"{setting.gpus} GPU{'s' if setting.gpus > 1 else ''}"
    each = gpus if setting.nodes == 1 else f"{setting.nodes} nodes with {gpus} each"
    return f"batch {setting.batch} on {each}"
