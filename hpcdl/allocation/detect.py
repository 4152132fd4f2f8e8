"""Which batch system this process is under, or can ask: by its environment first, then by the commands on PATH."""

import shutil
from collections.abc import Callable, Mapping

from hpcdl.batch import AdapterSettings, BatchAdapter, BatchSystem, Run, run, system_named, systems
from hpcdl.sites import SiteFile


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
    run: Run = run,
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
