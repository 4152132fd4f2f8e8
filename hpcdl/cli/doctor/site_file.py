"""`hpcdl doctor --site`: the batch system's limits, written as a site file for its user to complete.

An existing file is never written over. The keys are those of conf/sites/example.yaml.
"""

import json
import os
import re
from collections.abc import Iterator
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
    """The text of the site file."""
    usable = [queue for queue in told.queues if queue.usable]
    walltimes = [queue.walltime_s for queue in usable]
    nodes = [queue.nodes_max for queue in usable]
    longest = None if None in walltimes else max((each for each in walltimes if each is not None), default=None)
    largest = None if None in nodes else max((each for each in nodes if each is not None), default=None)
    lines = [
        f"# {told.kind} {told.version}{f' of {told.cluster}' if told.cluster else ''}, as its commands tell it.",
        "# conf/sites/example.yaml of hpcdl has every key. Queues, with what holds there:",
        *(f"#   {line}" for queue in told.queues for line in _of(queue)),
        *(f"# {note}" for note in told.notes),
        "",
        f"kind: {told.kind}",
        "",
        "# No batch system tells what is charged: ask, and write it here.",
        "charge: not known",
        "",
        "# Those that pilots may use; none until you name them. Pilots are guests: take queues whose batch jobs are",
        "# ended when others want their nodes. Which are preemptable here, and why others are not:",
        *(f"#   {queue.name}: {queue.not_preempted or 'preemptable'}" for queue in usable),
        f"# For instance: queues: {json.dumps(_guests(told))}" if _guests(told) else "# None is.",
        "queues: []",
        "",
        "# true: in queues that are not preemptable, too. Ask your admins first: others have to wait for pilots there.",
        "pilots_without_preemption: false",
        "",
        "# Batch jobs at once." + ("" if told.jobs_max else " The batch system tells no limit."),
        f"pilots_max: {told.jobs_max if told.jobs_max is not None else 10_000}",
        "",
        "# Nodes of one pilot, and of all together; the queues' own limits hold beside these.",
        f"nodes_max: {'null' if largest is None else largest}",
        "nodes_total: null",
        "",
        "# Seconds. Shorter pilots do not pay: most of them would be start-up and the save at the end.",
        "walltime_min_s: 600" if longest is None or longest >= 600 else f"walltime_min_s: {longest:g}",
        f"walltime_max_s: {'null' if longest is None else f'{longest:g}'}",
        "margin_s: 60",
        "patience_s: 120",
        "",
        "# What each submission needs here: " + system_named(told.kind).account_options,
        "options: []",
    ]
    return "\n".join(lines) + "\n"


def _of(queue: SiteQueue) -> Iterator[str]:
    told = [
        "" if queue.usable else "not for your batch jobs",
        "no limit of time" if queue.walltime_s is None else f"at most {seconds_text(queue.walltime_s)}",
        "" if queue.nodes_max is None else f"at most {count(queue.nodes_max, 'node')}",
        *queue.told,
    ]
    yield f"{queue.name}: {', '.join(each for each in told if each)}"
