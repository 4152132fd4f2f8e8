"""`hpcdl doctor --site`: the batch system's limits, written as a site file for its user to complete.

An existing file is never written over. The keys are those of conf/sites/example.yaml.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from hpcdl.allocation.detect import detect
from hpcdl.batch.adapter import SiteQueue, SiteReport
from hpcdl.batch.command import run
from hpcdl.batch.site import read_site
from hpcdl.batch.system import system_named
from hpcdl.cli.doctor.batch_system import asked_from_here, read_settings
from hpcdl.cli.output import Output, escape, say
from hpcdl.core.model.units import count, seconds_text
from hpcdl.daemon.clock import WallClock
from hpcdl.wire.private_files import make_private_folder


def write_site_file(ctx: click.Context, home: Path, name: str, target: Path | None, output: Output) -> None:
    """Ask the batch system for its limits, write them, and say where. Raises ClickException."""
    config, site, checks = read_settings(home)
    if checks[0].state == "FAIL":
        raise click.ClickException(checks[0].detail)
    system = detect(config.batch, os.environ, now=WallClock(0.0).now, site=site)
    if system is None:
        raise click.ClickException("no batch system was found here: hpcdl doctor says what it looked for")
    with asked_from_here(system.kind):
        told = system_named(system.kind).site_report(system, run)
    name = name or re.sub(r"[^a-z0-9._-]+", "-", told.cluster.lower()).strip("-.") or told.kind
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise click.ClickException(f"{name!r} is no site's name: letters, digits, . _ - only")
    text = site_text(told)
    if target is not None and str(target) == "-":
        print(text, end="")
        return
    path = target or home / "sites" / f"{name}.yaml"
    if target is None:
        make_private_folder(path.parent)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise click.ClickException(f"{path} is there already: move it away, or name another with --output") from None
    read_site(path)
    queues = [
        {name: getattr(each, name) for name in ("name", "usable", "walltime_s", "nodes_max")}
        | {"preemptable": not each.not_preempted}
        for each in told.queues
    ]
    value = {"site": {"file": str(path), "kind": told.kind, "queues": queues, "jobs_max": told.jobs_max}}
    if not output.print_data(value, [path]):
        print(escape(f"wrote {path}: {told.kind} {told.version}, queues {', '.join(_usable(told)) or 'none'}"))
        chosen = name if target is None else str(path)
        guests = ", ".join(_guests(told)) or "none"
        say(
            f"read it, name in its queues those that pilots may use (preemptable: {guests}), "
            f"add what is charged and your account, then set site: {chosen} and pilots: N"
        )


def _usable(told: SiteReport) -> list[str]:
    return [queue.name for queue in told.queues if queue.usable]


def _guests(told: SiteReport) -> list[str]:
    return [queue.name for queue in told.queues if queue.usable and not queue.not_preempted]


def site_text(told: SiteReport) -> str:
    """The text of the site file: site.yaml beside this file, filled in."""
    usable = [queue for queue in told.queues if queue.usable]
    longest, largest = (_most(getattr(queue, limit) for queue in usable) for limit in ("walltime_s", "nodes_max"))
    guests = _guests(told)
    about = [*(f"  {line}" for queue in told.queues for line in _of(queue)), *told.notes]
    why = [f"#   {queue.name}: {queue.not_preempted or 'preemptable'}" for queue in usable]
    return (
        Path(__file__)
        .with_name("site.yaml")
        .read_text(encoding="utf-8")
        .format(
            system=f"{told.kind} {told.version}" + (f" of {told.cluster}" if told.cluster else ""),
            about="".join(f"# {line}\n" for line in about),
            kind=told.kind,
            preemptable="\n".join([*why, f"# For instance: queues: {json.dumps(guests)}" if guests else "# None is."]),
            no_limit="" if told.jobs_max else " The batch system reports no limit.",
            jobs_max=10_000 if told.jobs_max is None else told.jobs_max,
            nodes_max="null" if largest is None else largest,
            shortest="600" if longest is None or longest >= 600 else f"{longest:g}",
            longest="null" if longest is None else f"{longest:g}",
            options=system_named(told.kind).account_options,
        )
    )


def _most(limits: Iterable[float | None]) -> float | None:
    """The largest limit; None where one is unlimited, or there is none."""
    known = list(limits)
    return None if None in known else max((each for each in known if each is not None), default=None)


def _of(queue: SiteQueue) -> Iterator[str]:
    told = [
        "" if queue.usable else "not for your batch jobs",
        "no limit of time" if queue.walltime_s is None else f"at most {seconds_text(queue.walltime_s)}",
        "" if queue.nodes_max is None else f"at most {count(queue.nodes_max, 'node')}",
        *queue.told,
    ]
    yield f"{queue.name}: {', '.join(each for each in told if each)}"
