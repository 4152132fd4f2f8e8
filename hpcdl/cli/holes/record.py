"""`hpcdl holes --record`: asks the batch system again and again which nodes idle, and writes what changes.

Runs for weeks on a login node, without a daemon. What it writes is `hpcdl.batch.record`'s business. With `--from-sacct`
the same is made of past jobs.
"""

import os
import shutil
import time
from contextlib import closing
from itertools import count as numbers
from pathlib import Path

import click

from hpcdl.allocation.detect import find_system
from hpcdl.batch.adapter import AdapterSettings, BatchAdapter
from hpcdl.batch.command import run
from hpcdl.batch.record.folder import RecordFolder
from hpcdl.batch.record.recorder import IdleRecorder
from hpcdl.batch.site import load_site
from hpcdl.batch.system import BatchError, systems
from hpcdl.cli.doctor.batch_system import asked_from_here
from hpcdl.cli.interrupt import RepeatUntilSignal
from hpcdl.cli.output import Output, escape, say
from hpcdl.config.settings import load_config
from hpcdl.core.model.units import count
from hpcdl.daemon.clock import WallClock

_SACCT_S = 600.0
"""An accounting may take minutes over all jobs of a month."""


def record(home: Path, folder: Path, every_s: float, polls: int | None, output: Output) -> None:
    """Records until a signal comes, or so many polls were made. Raises ClickException, RecordError, OSError."""
    with RepeatUntilSignal() as rounds, closing(RecordFolder(folder)) as files:
        clock = WallClock(0.0 if files.last is None else files.last.at)
        recording = _Recording(_system(home, clock), files, every_s, clock)
        try:
            for number in numbers(1):
                began = time.monotonic()
                with asked_from_here(recording.kind):
                    recording.look()
                recording.took(time.monotonic() - began)
                if number == 1:
                    often = f"every {every_s:g} s from {recording.kind} into {folder}"
                    say(f"recording what idles {often}; hpcdl holes --stats {folder} shows it")
                if number == polls:
                    rounds.end()
                    break
                rounds.wait((), max(0.0, began + every_s - time.monotonic()))
        finally:
            recording.tell(folder, output)


def record_past(folder: Path, source: Path | str, every_s: float, output: Output) -> None:
    """Records what polls would have seen of past jobs. `source`: what sacct printed; "": it is asked for 30 days.

    Raises ClickException, WorkloadError, RecordError, OSError.
    """
    from hpcdl.sim.idle.accounting import jobs_of_sacct, record_jobs, sacct_argv
    from hpcdl.sim.readers.source import read_text

    if isinstance(source, Path):
        jobs = jobs_of_sacct(source, read_text(source))
    else:
        jobs = jobs_of_sacct(Path("sacct"), _asked(sacct_argv("now-30days")))
    polls, changes = record_jobs(jobs, folder, every_s)
    value = {"record": str(folder), "polls": polls, "changes": changes, "jobs": len(jobs)}
    if not output.print_data(value, [folder]):
        print(escape(f"{count(polls, 'poll')} in {folder}, {count(changes, 'change')} by {count(len(jobs), 'job')}"))


def _asked(argv: list[str]) -> str:
    """What the accounting answers. Raises ClickException with its words."""
    step = "give a file that sacct printed elsewhere: --from-sacct FILE"
    try:
        done = run(argv, _SACCT_S, env={"SLURM_TIME_FORMAT": "%s"})
    except BatchError as error:
        raise click.ClickException(f"{error}; {step}") from None
    if done.code != 0 or not done.out.strip():
        said = (done.err or done.out).strip().splitlines() or ["it printed nothing"]
        raise click.ClickException(f"sacct: {said[-1].removeprefix('sacct: ')}; {step}")
    return done.out


def _system(home: Path, clock: WallClock) -> BatchAdapter:
    """What is asked. Raises ClickException where no batch system is here."""
    config = load_config(home)
    system = find_system(config.batch, os.environ)
    if config.batch == "auto" and (system is None or not system.serves(os.environ)):
        able = [each for each in systems() if any(map(shutil.which, each.idle_commands))]
        system = next((each for each in able if each.serves(os.environ)), system or next(iter(able), None))
    if system is None:
        step = "run this where sinfo, bhosts or bslots work; hpcdl doctor says what it looked for"
        raise click.ClickException(f"no batch system was found here: {step}")
    site = load_site(config.site, config.pilots, home)
    return system.adapter(AdapterSettings(run, clock.now, site.site, site.keys, os.environ))


class _Recording:
    """Polls, and says once when the batch system or the disk is away, and when it is back."""

    def __init__(self, system: BatchAdapter, folder: RecordFolder, every_s: float, clock: WallClock) -> None:
        self.kind = system.kind
        self._system, self._clock, self._every_s = system, clock, every_s
        self._recorder = IdleRecorder(folder, every_s, system.kind, gap=clock.set_back)
        self._polls = self._changes = self._missed = 0
        self._trouble = ""
        self._late = False

    def took(self, seconds: float) -> None:
        """Says once that polls take longer than they are apart."""
        if seconds > self._every_s and not self._late:
            self._late = True
            say(f"a poll took {seconds:.1f} s, longer than --every {self._every_s:g}: polls come later than that")

    def look(self) -> None:
        """One poll. Raises BatchError, OSError where it is the first one: a later one may be missed."""
        at = self._clock.now()
        try:
            seen = self._system.idle_nodes()
            self._changes += self._recorder.take(at, seen)
        except (BatchError, OSError) as error:
            if not self._polls:
                raise
            self._recorder.miss()
            self._missed += 1
            if str(error) != self._trouble:
                self._trouble = str(error)
                say(f"{error}; polls are missed until it is over, one every {self._every_s:g} s")
        else:
            self._polls += 1
            if self._trouble:
                self._trouble = ""
                say("recording goes on")

    def tell(self, folder: Path, output: Output) -> None:
        """What came of it."""
        value = {"record": str(folder), "polls": self._polls, "changes": self._changes, "missed": self._missed}
        if self._polls and not output.print_data(value, [folder]):
            missed = f", {self._missed} without an answer" if self._missed else ""
            print(escape(f"{count(self._polls, 'poll')} in {folder}, {count(self._changes, 'change')}{missed}"))
