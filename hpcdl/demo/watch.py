"""What the user sees while jobs run: a line for each change, and on a terminal a block that is redrawn below them.

It folds the daemon's events as the daemon does.
"""

import shutil
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from hpcdl.core.fold.fold import fold
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause
from hpcdl.core.model.transitions import state_of
from hpcdl.core.model.units import count
from hpcdl.core.model.world import Job, JobState, World
from hpcdl.report import event_of

_BAR = 24


class EventWatch:
    """Folds the events of a daemon as they come, and says what changed. `scale`: emulated seconds in one of ours."""

    def __init__(self, scale: float, live: bool) -> None:
        self.world = World()
        self.rows: list[Mapping[str, Any]] = []
        self._scale = scale
        self._live = live
        self._drawn = 0
        self._begin: float | None = None
        self._saved: dict[int, ev.Saved] = {}

    @property
    def finished(self) -> bool:
        """Whether there are jobs, and all are finished."""
        return bool(self.world.jobs) and not self.world.active

    def take(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """The next event rows of the API: shown and kept."""
        lines: list[str] = []
        for row in rows:
            self.rows.append(row)
            event = event_of(row)
            before = self.world
            self.world = fold(before, [ev.Recorded(row["seq"], row["at"], row["version"], event)])
            if isinstance(event, ev.JobSubmitted) and self._begin is None:
                self._begin = row["at"]
            text = self._change(before, event)
            if text is not None:
                lines.append(f"{self._stamp(row['at'])}  {text}")
        self._show(lines)

    def close(self) -> None:
        """Ends the block that is redrawn."""
        self._live = False

    def _stamp(self, at: float) -> str:
        ours = max(0.0, at - self._begin) if self._begin is not None else 0.0
        return f"{ours:6.1f} s = {ours * self._scale:4.0f} emulated s"

    def _change(self, before: World, event: ev.Event) -> str | None:
        """The event in words; None for what a newcomer need not see."""
        match event:
            case ev.TroubleSeen():
                return f"trouble: {event.where}: {event.detail}"
            case ev.NodeSilent():
                return f"node {event.node} is silent: {event.reason}"
            case ev.NodeLost():
                return f"node {event.node} is lost: {event.reason}"
            case ev.JobEvent():
                job = self.world.jobs[event.job]
                told = self._change_of_job(before.jobs.get(event.job), event)
                return None if told is None else f"{job.spec.name} {told}"
            case _:
                return None

    def _change_of_job(self, before: Job | None, event: ev.JobEvent) -> str | None:
        """What happened to a job, which stood as `before` says; None for what a newcomer need not see."""
        match event:
            case ev.JobSubmitted():
                return f"submitted, {event.spec.steps} steps"
            case ev.StartRequested(placement=placement) | ev.OpenRequested(placement=placement) if (
                placement is not None
            ):
                gpus = f"on {count(len(placement.gpus), 'GPU')} as {placement.role.value}"
                again = before is not None and before.progress.saved_step is not None
                return f"resumed {gpus}" if again else f"started {gpus}"
            case ev.RoleChanged():
                return f"is {event.role.value} now"
            case ev.TrainerReady() if event.step:
                return f"trains on from step {event.step}"
            case ev.Saved() if event.final:
                self._saved[event.job] = event
            case ev.IncarnationEnded(cause=Cause.SUSPENDED):
                running = before.running if before is not None else None
                gpus = count(len(running.placement.gpus), "GPU") if running and running.placement else "its GPUs"
                saved = self._saved.get(event.job)
                how = f" (saved at step {saved.step} in {saved.seconds:.2f} s)" if saved is not None else ""
                return f"suspended on {gpus}{how}"
            case ev.IncarnationEnded() if event.cause is not Cause.DONE:
                return f"ended: {event.cause.value} {event.detail}".rstrip()
            case ev.JobEnded():
                return f"{event.state.value} {event.detail}".rstrip()
            case _:
                pass
        return None

    def _show(self, lines: list[str]) -> None:
        out = sys.stdout
        if self._live and self._drawn:
            out.write(f"\x1b[{self._drawn}A\x1b[J")
        for line in lines:
            out.write(line + "\n")
        self._drawn = 0
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            block = ["", *(self._job_line(job) for job in self.world.jobs.values())]
            for line in block:
                out.write(line[:width] + "\n")
            self._drawn = len(block)
        out.flush()

    def _job_line(self, job: Job) -> str:
        total = job.progress.total or 1
        step = total if job.outcome is JobState.DONE else job.progress.step or 0
        filled = round(_BAR * min(1.0, step / total))
        placement = job.running.placement if job.running is not None else None
        where = f"{count(len(placement.gpus), 'GPU'):6} {placement.role.value}" if placement is not None else ""
        bar = "█" * filled + "·" * (_BAR - filled)
        return f"  {job.spec.name:16} {state_of(job).value:10} {bar} {step:5}/{total:<5} {where}"
