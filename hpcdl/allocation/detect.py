"""Which batch system this process is under, or can ask: by its environment first, then by the commands on PATH."""

import os
import shutil
from collections.abc import Callable, Mapping

from hpcdl.batch import BatchSystem, Run, run
from hpcdl.sites import SiteFile

INSIDE = {"slurm": "SLURM_JOB_ID", "lsf": "LSB_JOBID"}
"""The variable that a batch job of each has."""

COMMANDS = {"slurm": ("sinfo", "squeue"), "lsf": ("bjobs", "bsub", "lsid")}
"""What each has on PATH. Slurm's packages may bring commands named as LSF's, so it is looked for first."""

SLURM_CONF = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")
"""Where Slurm's commands look without SLURM_CONF. Installed without any of these they most often serve no cluster."""


def kind_of(choice: str, environ: Mapping[str, str]) -> str | None:
    """`slurm`, `lsf`, or None where there is neither. `choice`: the setting `batch`."""
    if choice != "auto":
        return None if choice == "none" else choice
    inside = next((kind for kind, name in INSIDE.items() if environ.get(name)), None)
    if inside is not None:
        return inside
    path = environ.get("PATH")
    there = [kind for kind, names in COMMANDS.items() if all(shutil.which(name, path=path) for name in names)]
    if len(there) > 1 and not environ.get("SLURM_CONF") and not any(map(os.path.exists, SLURM_CONF)):
        there.remove("slurm")
    return next(iter(there), None)


def detect(
    choice: str,
    environ: Mapping[str, str],
    run: Run = run,
    *,
    now: Callable[[], float],
    site: SiteFile | None = None,
) -> BatchSystem | None:
    """The batch system that `choice` (the setting `batch`) and the environment lead to; None for none. Asks nothing.

    One that was chosen by name is taken even where its commands are missing: to use it raises BatchError. `now`:
    seconds since the epoch, as the daemon's clock has them. `site`: what is special about this one.
    """
    kind = kind_of(choice, environ)
    site = site or SiteFile()
    if kind == "slurm":
        from hpcdl.slurm.adapter import Slurm

        return Slurm(run, site.site.options, environ)
    if kind == "lsf":
        from hpcdl.lsf.adapter import Lsf, Ways

        ways = Ways(
            site.submit_by,
            site.nodes_by,
            site.launcher,
            site.select,
            site.site.queues,
            site.site.pilots_without_preemption,
        )
        return Lsf(run, now=now, ways=ways)
    return None
