"""`hpcdl allocation --chain`: submits the same batch script once more, to run when this batch job has ended.

How that is done is the batch system's (`BatchSystem.submit_next`); a requeued batch job submits no second one.
"""

from collections.abc import Mapping
from pathlib import Path

from hpcdl.batch.adapter import Allocation, CommandRunner
from hpcdl.batch.system import BatchError, BatchSystem, system_named, systems

LEFT = "HPCDL_CHAIN"
"""How many more allocations the next one may submit; for `hpcdl allocation`, as --chain."""


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


def submit_next(run: CommandRunner, allocation: Allocation, script: str, left: int, environ: Mapping[str, str]) -> str:
    """Submits it; its batch id. `left`: how many it may submit in turn. Raises BatchError."""
    lost = sorted({name for system in systems() for name in system.inherited(environ)})
    env = ["env", *(part for name in lost for part in ("-u", name)), f"{LEFT}={left}"]
    return system_named(allocation.kind).submit_next(run, allocation.id, script, env)


def of_a_chain(environ: Mapping[str, str], given: int | None) -> int:
    """How many more allocations may follow: as an earlier one of the chain says, else as `given`.

    0 where this batch job was requeued: its first run has submitted the next one.
    """
    if any(system.requeued(environ) for system in systems()):
        return 0
    text = environ.get(LEFT, "")
    if text.isascii() and text.isdigit():
        return int(text)
    return given or 0
