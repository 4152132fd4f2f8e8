"""`hpcdl allocation --chain`: submits the same batch script once more, to run when this batch job has ended.

How that is done is the batch system's (`BatchSystem.submit_next`). What was submitted is remembered in HPCDL_HOME, so
that a batch job that runs again, whoever requeued it, submits no second next one while the first is there. An entry is
written before anything is submitted: where the process was killed between the two, the batch system is asked.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcdl.batch.adapter import Allocation, BatchAdapter, CommandRunner
from hpcdl.batch.system import BatchError, BatchSystem, system_named, systems
from hpcdl.core.model.pilot import BatchState
from hpcdl.core.rules.batch_poll import agreed
from hpcdl.wire.private_files import NotPrivate, atomic_write, read_private

LEFT = "HPCDL_CHAIN"
"""How many more allocations the next one may submit; for `hpcdl allocation`, as --chain."""
AFTER = "HPCDL_CHAIN_AFTER"
"""The batch job that submitted this one, as `ChainRecord` calls it."""

KEPT = 64
"""Batch jobs of which is remembered what they submitted next; older ones are forgotten."""
LARGEST = 64 << 10
ASK_S = 15.0
"""Between two looks at the batch system."""
LOOKS = 2
"""So many looks in a row must say that there is no next one before another is submitted."""


def script_of(path: Path | None, system: BatchSystem, environ: Mapping[str, str]) -> str:
    """The batch script. `path`: where it is said to be; some batch systems say it, too. Raises BatchError.

    A `path` that is no script is a shell that reads one.
    """
    why = 'add --script "$0" to the line in it that starts hpcdl'
    for place in (path, *map(Path, system.scripts(environ))):
        try:
            text = "" if place is None else place.read_text()
        except (OSError, ValueError) as error:
            why = f"{place} cannot be read: {error}"
            continue
        if text:
            return system.script_in(text)
    raise BatchError(f"--chain needs the batch script: {why}")


def submit_next(
    run: CommandRunner, allocation: Allocation, script: str, left: int, environ: Mapping[str, str], after: str = ""
) -> str:
    """Submits it; its batch id. `left`: how many it may submit in turn; `after`: see `AFTER`. Raises BatchError."""
    lost = sorted({name for system in systems() for name in system.inherited(environ)})
    env = ["env", *(part for name in lost for part in ("-u", name)), f"{LEFT}={left}"]
    env += [f"{AFTER}={after}"] if after else []
    return system_named(allocation.kind).submit_next(run, allocation.id, script, env)


def of_a_chain(environ: Mapping[str, str], given: int | None) -> int:
    """How many more allocations may follow: as an earlier one of the chain says, else as `given`."""
    text = environ.get(LEFT, "")
    if text.isascii() and text.isdigit():
        return int(text)
    return given or 0


class ChainRecord:
    """`chain.json` of HPCDL_HOME: by batch job (`slurm:205:CLUSTER`) the id of the one that it has submitted next, ""
    while it does so. One process writes it: that whose daemon holds the lease. Raises NotPrivate and OSError.
    """

    def __init__(self, home: Path) -> None:
        self._path = home / "chain.json"

    def read(self) -> dict[str, str]:
        """All that is remembered, the oldest first; {} where there is nothing, or nothing that can be understood."""
        try:
            known = json.loads(read_private(self._path, LARGEST))
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        if not isinstance(known, dict):
            return {}
        return {name: batch_id for name, batch_id in known.items() if isinstance(batch_id, str)}

    def write(self, batch_job: str, submitted: str | None) -> None:
        """`submitted`: see the class; None: nothing."""
        known = self.read()
        known.pop(batch_job, None)
        if submitted is not None:
            known[batch_job] = submitted
        kept = dict(list(known.items())[-KEPT:])
        atomic_write(self._path, json.dumps(kept).encode())

    def after(self, batch_job: str) -> list[str]:
        """The ids of those that followed, each submitted by the one before it, as far as they are known."""
        known, found = self.read(), list[str]()
        head, _, tail = batch_job.split(":", 2)
        while (batch_id := known.get(batch_job, "")) and batch_id not in found:
            found.append(batch_id)
            batch_job = f"{head}:{batch_id}:{tail}"
        return found


@dataclass(slots=True)
class NextAllocation:
    """The batch job that goes on after this one. `look` is called again and again, until it is submitted or found.

    `left`: how many may follow; 0: none is submitted. `script()`: the batch script; raises BatchError.
    """

    home: Path
    system: BatchAdapter
    allocation: Allocation
    left: int
    script: Callable[[], str]
    run: CommandRunner
    environ: Mapping[str, str]
    say: Callable[[str], None]
    monotonic: Callable[[], float] = time.monotonic
    id: str = ""
    """Its batch id, "" while there is none."""
    _record: ChainRecord = field(init=False)
    _name: str = field(init=False)
    _settled: bool = field(init=False)
    _again: bool = field(init=False)
    _look_at: float = 0.0
    _absent: int = 0
    _said: str = ""

    def __post_init__(self) -> None:
        about = system_named(self.allocation.kind)
        self._record = ChainRecord(self.home)
        self._name = f"{about.name}:{self.allocation.id}:{about.cluster(self.environ)}"
        self._settled = self.left <= 0
        self._again = about.requeued(self.environ)

    def look(self) -> None:
        """Submits the next one where there is none. What cannot be known now is asked again later."""
        if self._settled or self.monotonic() < self._look_at:
            return
        try:
            self._look()
        except (NotPrivate, OSError) as error:
            self._tell(f"what is submitted next cannot be remembered: {error}")
        except BatchError as error:
            self._absent = 0
            self._tell(str(error))
        self._look_at = self.monotonic() + ASK_S

    def _look(self) -> None:
        before = self.environ.get(AFTER, "")
        known = self._record.read()
        if known.get(before) == "":  # it was killed before it could write down that this is the next one
            self._record.write(before, self.allocation.id)
        submitted = self._record.after(self._name)
        if not submitted and self._name not in known and not self._again:
            self._submit()
            return
        there = self._living(submitted) if submitted else self._waiting()
        if there:
            if not submitted:
                self._record.write(self._name, there)
            self._settle(there, "is to go on after this one already")
        elif (absent := self._absent + 1) < LOOKS:
            self._absent = absent
        else:
            self._submit()

    def _living(self, submitted: list[str]) -> str:
        """Which of them is not over, "" for none. Raises BatchError where two commands do not agree on one."""
        first, second = self.system.poll(submitted), self.system.confirm(submitted)
        jobs = [agreed(first[batch_id], second[batch_id]) for batch_id in reversed(submitted)]
        for job in jobs:
            if job.state not in (BatchState.ENDED, BatchState.GONE, BatchState.MISSING, BatchState.UNKNOWN):
                return job.id
        unsure = next((job for job in jobs if job.state in (BatchState.MISSING, BatchState.UNKNOWN)), None)
        if unsure is not None:
            why = f": {unsure.reason}" if unsure.reason else ""
            raise BatchError(f"whether batch job {unsure.id} is still there is not known, so none is submitted{why}")
        return ""

    def _waiting(self) -> str:
        """The one that waits for this batch job's end, "" for none."""
        about = system_named(self.allocation.kind)
        return next(iter(about.waiting_next(self.run, self.allocation.id, self.environ)), "")

    def _submit(self) -> None:
        try:
            script = self.script()
        except BatchError:
            self._settled = True
            raise
        self._record.write(self._name, "")
        try:
            batch_id = submit_next(self.run, self.allocation, script, self.left - 1, self.environ, self._name)
        except BatchError as error:
            self._settled = not error.again  # an answer that was lost may have been a yes: then it is looked for
            if self._settled:
                self._record.write(self._name, None)
            raise
        self._settle(batch_id, "is to go on after this one")
        self._record.write(self._name, batch_id)

    def _settle(self, batch_id: str, how: str) -> None:
        self.id, self._settled = batch_id, True
        self.say(f"batch job {batch_id} {how} ({self.left - 1} more may follow)")

    def _tell(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self.say(text)
