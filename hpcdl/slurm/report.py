"""Slurm's limits for `hpcdl doctor --site`: its partitions, and the limits that the accounting has for this user.

Asked only there; what pilots may use is then in the site's file (`hpcdl.batch.site`).
"""

import getpass
import shutil
from collections.abc import Sequence

from hpcdl.batch.adapter import BatchAdapter, CommandRunner, SiteQueue, SiteReport
from hpcdl.batch.system import BatchError
from hpcdl.core.model.units import seconds_text
from hpcdl.slurm import cluster as site
from hpcdl.slurm.text import checked


def report(adapter: BatchAdapter, run: CommandRunner) -> SiteReport:
    """See `BatchSystem.site_report`."""

    def ask(argv: Sequence[str]) -> str:
        return checked(argv[0], run(argv))

    config = site.parse_config(ask(site.config_argv()))
    queues = []
    not_preempted = adapter.capabilities().not_preempted
    for part in site.parse_partitions(ask(site.partitions_argv())):
        told = [f"preemption {part.preemption}" if part.preemption else "", "the default" if part.default else ""]
        if part.preemption not in ("", "OFF"):
            told.append(f"grace period {seconds_text(part.grace_s)}" if part.grace_s else "no grace period")
        why = not_preempted.get(part.name, "it is not known")
        lines = tuple(each for each in told if each)
        queues.append(SiteQueue(part.name, part.open, part.walltime_s, part.nodes_max, lines, why))
    jobs_max: int | None = None
    notes: tuple[str, ...] = ("No accounting: no limits of users.",)
    kept = config.get("AccountingStorageType", "") not in ("", "accounting_storage/none")
    if kept and shutil.which("sacctmgr") is not None:
        show = ["sacctmgr", "--noheader", "--parsable2", "show"]
        mine = ["user=" + getpass.getuser(), "format=Account,MaxSubmit,MaxJobs,QOS"]
        try:
            jobs_max, notes = limits_of(
                ask([*show, "associations", *mine]), ask([*show, "qos", "format=Name,MaxSubmitPU,MaxJobsPU,MaxWall"])
            )
        except BatchError as error:
            notes = (str(error),)
    version, cluster = config.get("SLURM_VERSION", ""), config.get("ClusterName", "")
    return SiteReport("slurm", version, cluster, tuple(queues), jobs_max, notes)


def limits_of(associations: str, qos: str) -> tuple[int | None, tuple[str, ...]]:
    """From what sacctmgr prints: the largest number of batch jobs that some account or QOS of the user allows."""
    notes, most, names = [], list[int](), set[str]()
    for line in associations.splitlines():
        account, submit, jobs, allowed = [*line.split("|"), "", "", "", ""][:4]
        names.update(name for name in allowed.split(",") if name)
        if submit or jobs:
            notes.append(f"account {account}: {submit or 'any number of'} batch jobs, {jobs or 'all'} running")
        most += [int(each) for each in (submit, jobs) if each.isdigit()][:1]
    for line in qos.splitlines():
        name, submit, jobs, wall = [*line.split("|"), "", "", "", ""][:4]
        if (names and name not in names) or not (submit or jobs or wall):
            continue
        notes.append(
            f"QOS {name}: {submit or 'any number of'} batch jobs, {jobs or 'all'} running, walltime {wall or 'any'}"
        )
        most += [int(each) for each in (submit, jobs) if each.isdigit()][:1]
    return max(most, default=None), tuple(notes)
