"""Checks of `hpcdl doctor` that concern the batch system, the settings and the site's file.

They ask the batch system a handful of questions, and submit nothing.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hpcdl.allocation.detect import find_system
from hpcdl.batch.adapter import AdapterSettings, Allocation, BatchAdapter, Capabilities
from hpcdl.batch.command import run
from hpcdl.batch.site import SiteError, SiteFile, load_site
from hpcdl.batch.system import BatchError, HalfAnAllocation, systems
from hpcdl.batch.without_agent import nodes_without_agent
from hpcdl.cli.doctor.machine import Check, CheckState, fail, ok, warn
from hpcdl.cli.job_row import moment_text
from hpcdl.config.layers import ConfigError
from hpcdl.config.settings import Config, load_config
from hpcdl.core.model.units import count, fold_nodes, seconds_text
from hpcdl.daemon.clock import WallClock

SITE = "hpcdl doctor --site writes a file with this site's limits for pilots"
_WHERE = "on a node of the cluster, where its commands work; or set batch: none"


@contextmanager
def asked_from_here(kind: str) -> Iterator[None]:
    """Where the batch system does not answer in here, one line says the next step (ClickException)."""
    try:
        yield
    except BatchError as error:
        step = f": run this {_WHERE}" if error.away else ": hpcdl doctor says what it can do here"
        raise click.ClickException(f"{kind} does not answer ({error}){step}") from None


def read_settings(home: Path) -> tuple[Config, SiteFile, list[Check]]:
    """The settings and the site file, at their defaults where they are wrong, and the checks of them."""
    try:
        config = load_config(home)
    except (ConfigError, OSError) as error:
        return Config(), SiteFile(), [fail("settings", str(error), "correct that line")]
    changed = {name: value for name, value in config.values().items() if config.origin(name) != "default"}
    told = ", ".join(f"{name}={value} ({config.origin(name)})" for name, value in changed.items())
    checks = [ok("settings", told or "all at their defaults")]
    site = SiteFile()
    try:
        site = load_site(config.site, config.pilots, home)
    except (SiteError, OSError) as error:
        checks.append(fail("site", str(error), SITE))
    else:
        if config.site is not None:
            checks.append(ok("site", f"{config.site}: {_site_text(site)}"))
    return config, site, checks


def _site_text(site: SiteFile) -> str:
    limits = site.site
    parts = [site.kind, f"pilots in {', '.join(limits.queues) or 'no queue'}"]
    if limits.pilots_without_preemption:
        parts.append("in queues that are not preemptable, too")
    if limits.walltime_max_s is not None:
        parts.append(f"{seconds_text(limits.walltime_min_s)} to {seconds_text(limits.walltime_max_s)}")
    if site.charge:
        parts.append(f"charged: {site.charge}")
    return ", ".join(part for part in parts if part)


def batch_checks(
    config: Config, site: SiteFile, environ: Mapping[str, str] = os.environ
) -> tuple[list[Check], dict[str, Any] | None]:
    """The checks of the batch system, and what was found as JSON (None: there is none)."""
    found = find_system(config.batch, environ)
    if found is None:
        looked = "; ".join(f"{each.name}: {' '.join(each.commands)}" for each in systems())
        why = "the setting batch is none" if config.batch == "none" else f"not on PATH ({looked})"
        step = "" if config.batch == "none" else "on a cluster: load its module, or set batch"
        return [ok("batch system", f"none: {why}; hpcdl works without one, on this machine", step)], None
    system = found.adapter(AdapterSettings(run, WallClock(0.0).now, site.site, site.keys, environ))
    checks, about = _capabilities(system, needed=found.inside(environ) or config.batch != "auto" or config.pilots > 0)
    allocation, check = _allocation(system, environ)
    checks += [check, _pilots(config, site, found.name, about["not_preempted"])]
    row = {} if allocation is None else asdict(allocation)
    about["allocation"] = {key: value for key, value in row.items() if key != "kind"} or None
    return checks, about


def _capabilities(system: BatchAdapter, *, needed: bool) -> tuple[list[Check], dict[str, Any]]:
    about: dict[str, Any] = {"kind": system.kind, "answers": True}
    try:
        found = system.capabilities()
    except BatchError as error:
        found = Capabilities(system.kind, "", False)
        about |= {**asdict(found), "answers": False}
        state = CheckState.FAIL if needed else CheckState.WARN
        return [Check("batch system", state, f"{system.kind}: {error}", f"run hpcdl {_WHERE}")], about
    return list(_told(found)), about | asdict(found)


def agents_missing(home: Path) -> list[Check]:
    """The nodes of the last allocation on which no agent could be started, a warning each."""
    step = "hpcdl agent --node NAME there says more; where nothing starts it, launcher in the site's file (docs/lsf.md)"
    return [
        warn("agents", f"none could be started on {each.name} of batch job {each.allocation}: {each.reason}", step)
        for each in nodes_without_agent(home)
    ]


def _told(found: Capabilities) -> Iterator[Check]:
    form = "JSON" if found.json else "text (no JSON)"
    yield ok("batch system", f"{found.kind} {found.version or 'of unknown version'}, read as {form}")
    there = [name for name, here in found.commands.items() if here]
    absent = [name for name, here in found.commands.items() if not here]
    lacks = f"; not there: {', '.join(absent)}" if absent else ""
    yield ok("batch commands", f"{', '.join(there) or 'none'}{lacks}")
    for line in found.missing:
        nothing = "hpcdl does without it, at that cost"
        step = f"set that, or nothing: {nothing}" if "site's file" in line else f"nothing to do: {nothing}"
        yield warn("batch lacks", line, step)
    yield ok("preemption", found.preemption or "none: what runs is not taken off its nodes")
    if found.queues:
        limits = {name: [f"{key} {value}".strip() for key, value in _of_queue(found, name)] for name in found.queues}
        texts = [f"{name} ({', '.join(told)})" if told else name for name, told in limits.items()]
        yield ok("queues", "; ".join(texts))
    else:
        yield warn("queues", "none that you may use", "ask the admins which queue is yours")


def _of_queue(found: Capabilities, queue: str) -> Iterator[tuple[str, str]]:
    """A queue's limits: those that are called `QUEUE LIMIT` or `queue QUEUE`."""
    for name, value in found.limits.items():
        if name == f"queue {queue}":
            yield "", value
        elif name.startswith(f"{queue} "):
            yield name.removeprefix(f"{queue} "), value


def _allocation(system: BatchAdapter, environ: Mapping[str, str]) -> tuple[Allocation | None, Check]:
    try:
        found = system.allocation(environ)
    except HalfAnAllocation as error:
        return None, fail("allocation", str(error), "start hpcdl by the batch script itself, with all of its variables")
    except BatchError as error:
        return None, warn("allocation", str(error), "ask again in a while")
    if found is None:
        return None, ok("allocation", "this process is in none")
    gpus = "GPUs not reported" if found.gpus is None else f"{count(found.gpus, 'GPU')} each"
    until = "no end is known" if found.until is None else f"until {moment_text(found.until)}"
    detail = f"batch job {found.id}: {fold_nodes(found.nodes)}, {gpus}, {until}"
    if found.gpus == 0:
        return found, warn("allocation", detail, "ask for GPUs: without any no job can start here")
    if found.until is None:
        return found, warn("allocation", detail, "ask for a walltime: without its end nothing is saved ahead of it")
    return found, ok("allocation", detail)


def _pilots(config: Config, site: SiteFile, kind: str, not_preempted: Mapping[str, str]) -> Check:
    """The check of pilots. `not_preempted`: see `Capabilities`; {} where the batch system does not answer."""
    if config.pilots == 0:
        return ok("pilots", "none is submitted: the setting pilots is 0", "set pilots: N to use backfill holes")
    try:
        most = site.on(kind).pilots_max
    except SiteError as error:
        return fail("pilots", str(error), SITE)
    limits = site.site
    if config.site is None:
        return warn("pilots", "none is submitted: no site file names queues for them", SITE)
    if not limits.queues:
        guests = [queue for queue, why in not_preempted.items() if not why]
        step = f"name some under queues in its file; preemptable: {', '.join(guests) or 'none that you may use'}"
        return warn("pilots", f"none is submitted: the site {config.site} names no queues for them", step)
    wrong = [
        f"queue {queue} is not preemptable ({not_preempted[queue]})"
        if queue in not_preempted
        else f"there is no queue {queue} here"
        for queue in limits.queues
        if not_preempted and not_preempted.get(queue, "there is none")
    ]
    if wrong and not limits.pilots_without_preemption:
        none = len(wrong) == len(limits.queues)
        detail = f"{'none is submitted' if none else 'none in some queues'}: {'; '.join(wrong)}"
        step = "name preemptable queues in the site's file, or set pilots_without_preemption: true there"
        return warn("pilots", detail, step)
    return ok("pilots", f"{count(most, 'pilot')} at once, at most")
