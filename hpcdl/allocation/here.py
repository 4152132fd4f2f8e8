"""Where this process is: which batch system there is, and which batch job this process runs in."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hpcdl.allocation.detect import detect
from hpcdl.allocation.holder import BatchRun, has_ended
from hpcdl.batch import BatchAdapter, BatchError, Commands, system_named
from hpcdl.sites import SiteFile

log = logging.getLogger("hpcdl.batch")


@dataclass(frozen=True, slots=True)
class Here:
    """`system`: None where there is none. `commands`: what it runs its commands with. `run`: the batch job's run that
    this process is in, None outside of any; `trouble`: why that could not be told, in a line, or "".
    """

    system: BatchAdapter | None = None
    commands: Commands = field(default_factory=Commands)
    run: BatchRun | None = None
    cluster: str = ""
    trouble: str = ""

    @property
    def batch_job(self) -> str | None:
        """What a lease says of this process's batch job; see `Lease.acquire`."""
        return None if self.run is None else str(self.run)

    def batch_ended(self, holder: str) -> bool:
        """Whether the batch system says that the batch job is over which a lease names. May take seconds."""
        if self.system is None:
            return False
        try:
            return has_ended(self.system, holder, self.run, self.cluster)
        except BatchError as error:
            log.warning("whether batch job %s has ended is not known: %s", holder, error)
            return False


def look_around(
    choice: str,
    environ: Mapping[str, str] = os.environ,
    *,
    now: Callable[[], float],
    site: SiteFile | None = None,
) -> Here:
    """See `detect`. Never raises BatchError: a daemon works without its batch system, too. May take seconds."""
    commands = Commands()
    system = detect(choice, environ, commands, now=now, site=site)
    if system is None:
        return Here()
    cluster = system_named(system.kind).cluster(environ)
    try:
        allocation = system.allocation(environ)
    except BatchError as error:
        return Here(system, commands, None, cluster, str(error))
    run = None if allocation is None else BatchRun.of(allocation, cluster)
    return Here(system, commands, run, cluster)
