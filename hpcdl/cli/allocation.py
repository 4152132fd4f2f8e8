"""`hpcdl allocation` and `hpcdl pilot`: what batch jobs run.

An allocation is a daemon and an agent on each node of the batch job; a pilot is agents for a daemon elsewhere. Both
end by the batch system's signals; what they do is in hpcdl/allocation.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdl.cli.params import Seconds

if TYPE_CHECKING:  # both commands import what they need only when they run: `hpcdl --help` is to be quick
    from hpcdl.batch.adapter import Allocation, BatchAdapter
    from hpcdl.config.settings import Config


def _tell(text: str) -> None:
    """Print a line to the batch job's output."""
    click.echo(f"hpcdl: {text}")


def _found(home: Path) -> "tuple[Config, BatchAdapter, Allocation, Callable[[], float]]":
    """The settings, the batch system with its site's limits, this batch job's allocation, and the clock.

    Raises CannotRun, ConfigError, SiteError and OSError.
    """
    from hpcdl.allocation.detect import detect
    from hpcdl.allocation.run import find_allocation
    from hpcdl.batch.site import load_site
    from hpcdl.config.settings import load_config
    from hpcdl.daemon.clock import WallClock

    config, now = load_config(home), WallClock(0.0).now
    site = load_site(config.site, config.pilots, home)
    return config, *find_allocation(detect(config.batch, os.environ, now=now, site=site), os.environ), now


def _emulated(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    text = value or ""
    if text not in ("", "auto") and not (text.isascii() and text.isdigit() and int(text) <= 1024):
        raise click.BadParameter(f"{text!r} is neither auto nor a number up to 1024", ctx, param)
    return text


_emulate = click.option(
    "--emulate-gpus",
    envvar="HPCDL_EMULATE_GPUS",
    metavar="N|auto",
    callback=_emulated,
    help="Emulated GPUs on each node; auto: as many as were granted, where there is no GPU driver.",
)
_grace = click.option(
    "--grace",
    type=Seconds(0, 86_400),
    metavar="SECONDS",
    help="From the batch system's first signal to its SIGKILL.  [default: 25]",
)


@click.command(short_help="Run in a batch job: daemon and agents.")
@click.option("--wait", is_flag=True, help="Wait where another daemon of this HPCDL_HOME runs, instead of ending.")
@click.option(
    "--chain", type=click.IntRange(0, 10_000), metavar="N", help="Submit the same batch script up to N times."
)
@click.option(
    "--script", type=click.Path(path_type=Path), metavar="FILE", help='The batch script, for --chain: "$0" in it.'
)
@click.option(
    "--idle-exit", type=Seconds(0, 10_000_000), metavar="SECONDS", help="End when there was no job for so long."
)
@click.option("--moved", is_flag=True, help="HPCDL_HOME was moved from another file system or machine: jobs go on.")
@_emulate
@_grace
@click.pass_context
def allocation(
    ctx: click.Context,
    wait: bool,
    chain: int | None,
    script: Path | None,
    idle_exit: float | None,
    moved: bool,
    emulate_gpus: str,
    grace: float | None,
) -> None:
    """Run a daemon and an agent on each node of this batch job, until its walltime ends.

    A batch script runs it on its first node (jobscripts/hpcdl.slurm, jobscripts/hpcdl.lsf). In time before the end, or
    at a signal, every job is saved; the next allocation with the same HPCDL_HOME goes on with the queue.
    """
    from hpcdl.allocation.run import AllocationOptions, AllocationRun

    home: Path = ctx.find_root().obj
    config, system, found, now = _found(home)
    wishes = AllocationOptions(wait, chain, script, emulate_gpus, idle_exit, grace, moved)
    ctx.exit(AllocationRun(home, config, system, found, wishes, now, _tell).run())


@click.command(hidden=True)
@_emulate
@_grace
@click.pass_context
def pilot(ctx: click.Context, emulate_gpus: str, grace: float | None) -> None:
    """Run an agent on each node of this batch job, for a daemon elsewhere. The daemon submits such batch jobs."""
    from hpcdl.allocation.pilot import GRACE_S, run_pilot

    home: Path = ctx.find_root().obj
    config, system, found, now = _found(home)
    grace_s = GRACE_S if grace is None else grace
    idle_s = config.pilot_idle_s
    ctx.exit(run_pilot(home, system, found, now, _tell, emulate_gpus=emulate_gpus, idle_s=idle_s, grace_s=grace_s))
