"""Where this process is: the batch system here, by the environment first, then by the commands on PATH; the batch job
that the process runs in; and the address at which nodes reach this machine.

The daemon writes its batch job into its lease (`BatchRun`), so that another one can ask whether that has ended.
"""

import ipaddress
import logging
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from hpcdl.batch.adapter import AdapterSettings, Allocation, BatchAdapter, CommandRunner, ask_twice
from hpcdl.batch.command import Commands, run
from hpcdl.batch.site import SiteFile
from hpcdl.batch.system import BatchError, BatchSystem, system_named, systems
from hpcdl.config.settings import Config
from hpcdl.core.model.pilot import BatchState


def find_system(choice: str, environ: Mapping[str, str]) -> BatchSystem | None:
    """The batch system, None for none. `choice`: the setting `batch`; raises BatchError where it is no name of one."""
    if choice != "auto":
        return None if choice == "none" else system_named(choice)
    every = systems()
    inside = next((system for system in every if system.inside(environ)), None)
    if inside is not None:
        return inside
    path = environ.get("PATH")
    there = [each for each in every if all(shutil.which(name, path=path) for name in each.commands)]
    return next((each for each in there if len(there) == 1 or each.serves(environ)), None)


def detect(
    choice: str,
    environ: Mapping[str, str],
    run: CommandRunner = run,
    *,
    now: Callable[[], float],
    site: SiteFile | None = None,
) -> BatchAdapter | None:
    """What talks with the batch system that `choice` and the environment lead to; None for none. Asks nothing.

    One that was chosen by name is taken even where its commands are missing: to use it raises BatchError. `now`:
    seconds since the epoch, as the daemon's clock has them. `site`: what is special about this one.
    """
    system = find_system(choice, environ)
    site = site or SiteFile()
    return None if system is None else system.adapter(AdapterSettings(run, now, site.site, site.keys, environ))


LOOKUP_S = 3.0
"""A name that nobody knows may take the resolver so long; then it is given up."""

LOOPBACK = "127.0.0.1"

OUTSIDE = ("192.0.2.1", "2001:db8::1")
"""Addresses that are nobody's; nothing is sent there, only the way is asked for."""


def own_address(nodes: Iterable[str]) -> str:
    """The one by which the first of `nodes` that has another address than this machine is reached from here.

    Where no name leads anywhere: this machine's by its name, or on the way to anywhere; at last the loopback.
    """
    for name in (*list(nodes)[:3], socket.gethostname()):
        for found in _looked_up(name):
            mine = _towards(found)
            if mine is not None and not ipaddress.ip_address(mine).is_loopback:
                return mine
    ways = (mine for mine in map(_towards, OUTSIDE) if mine is not None)
    return next((mine for mine in ways if not ipaddress.ip_address(mine).is_loopback), LOOPBACK)


def listen_address(config: Config, pilots: bool) -> str:
    """Where a daemon listens: as its settings say; without a word of theirs for this machine alone.

    `pilots`: it may have some. Their agents are on other machines, and have to reach it.
    """
    if pilots and config.origin("listen_host") == "default":
        return own_address(())
    return config.listen_host


def _looked_up(name: str) -> list[str]:
    found: list[str] = []

    def ask() -> None:
        try:
            found.extend(str(each[4][0]) for each in socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM))
        except OSError:
            return

    asking = threading.Thread(target=ask, name="resolver", daemon=True)
    asking.start()
    asking.join(LOOKUP_S)
    return list(found)


def _towards(address: str) -> str | None:
    """This machine's address on the way to another one; None where there is no way."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # of a datagram socket: nothing is sent
            return str(probe.getsockname()[0])
    except OSError:
        return None


SAME_START_S = 60.0
"""Starts of one run of a batch job, by its environment and by a poll, differ by less."""


@dataclass(frozen=True, slots=True)
class BatchRun:
    """One run of a batch job, as a daemon writes it into its lease: a requeued one has the same id and another start
    (seconds since the epoch).

    `cluster`: its name, "" where the batch system has none; two clusters may share a file system.
    """

    kind: str
    id: str
    started_at: float | None = None
    cluster: str = ""

    def __str__(self) -> str:
        start = "" if self.started_at is None else f"{self.started_at:.0f}"
        return f"{self.kind}:{self.id}:{start}:{self.cluster}"

    @classmethod
    def parse(cls, text: str) -> "BatchRun | None":
        """What `str` made; None where it is no such text."""
        parts = text.split(":", 3)
        if len(parts) != 4 or not parts[0] or not parts[1] or not (parts[2] == "" or parts[2].isdecimal()):
            return None
        return cls(parts[0], parts[1], float(parts[2]) if parts[2] else None, parts[3])

    @classmethod
    def of(cls, allocation: Allocation, cluster: str) -> "BatchRun":
        """The run that this process is in. `cluster`: see `BatchSystem.cluster`."""
        return cls(allocation.kind, allocation.id, allocation.started_at, cluster)


def has_ended(system: BatchAdapter, holder: str, mine: BatchRun | None, cluster: str) -> bool:
    """Whether the batch system says that the run is over which `holder` names. Raises BatchError.

    Not to be listed proves nothing, nor does what another cluster's batch system says. A run is over, too, when its
    batch job waits again, or runs since a later time. `mine`: the run that this process is in, None outside of any;
    `cluster`: this cluster's name, "" where it is not known.
    """
    run = BatchRun.parse(holder)
    if run is None or run.kind != system.kind or (run.cluster and cluster and run.cluster != cluster):
        return False
    job = ask_twice(system, run.id)
    if job.state in (BatchState.MISSING, BatchState.UNKNOWN, BatchState.GONE):
        return False
    later = None  # whether this is another run than the holder's; None: not known
    if run.started_at is not None and job.started_at is not None:
        if job.started_at < run.started_at - SAME_START_S:
            return False  # it cannot be that batch job: another cluster's, of the same number
        later = job.started_at > run.started_at + SAME_START_S
    same_cluster = (run.cluster != "" and run.cluster == cluster) or (mine is not None and mine.id == run.id)
    if later or (job.state is BatchState.PENDING and run.started_at is not None):
        return same_cluster
    return job.state is BatchState.ENDED


log = logging.getLogger("hpcdl.batch.system")


@dataclass(frozen=True, slots=True)
class BatchContext:
    """Where this process is. `system`: None where there is none. `commands`: what it runs its commands with. `run`: the
    batch job's run that this process is in, None outside of any; `trouble`: why that is not known, in a line, or "".
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
) -> BatchContext:
    """See `detect`. Never raises BatchError: a daemon works without its batch system, too. May take seconds."""
    commands = Commands()
    system = detect(choice, environ, commands, now=now, site=site)
    if system is None:
        return BatchContext()
    cluster = system_named(system.kind).cluster(environ)
    try:
        allocation = system.allocation(environ)
    except BatchError as error:
        return BatchContext(system, commands, None, cluster, str(error))
    run = None if allocation is None else BatchRun.of(allocation, cluster)
    return BatchContext(system, commands, run, cluster)
