"""`hpcdl agent` and `hpcdl demo`: programs of their own that run long in the foreground.

The agent takes this process's place (exec), so that nothing of the command line stays in memory beside it. What it
does is in hpcdl/agent, the demo in hpcdl/demo.
"""

import os
import sys
from pathlib import Path

import click

from hpcdl.cli.output import say
from hpcdl.core.model.units import seconds_text


@click.command()
@click.option("--home", type=click.Path(path_type=Path), hidden=True)
@click.option("--node", metavar="NAME", help="This node's name.  [default: the host's]")
@click.option("--emulate-gpus", type=click.IntRange(1, 1024), metavar="N", help="Report N emulated GPUs.")
@click.pass_context
def agent(ctx: click.Context, home: Path | None, node: str | None, emulate_gpus: int | None) -> None:
    """Run the agent of this node in the foreground; it dials the daemon that --home or HPCDL_HOME names.

    `hpcdl daemon start` runs one by itself. On other nodes that see the same folder, run this.
    """
    folder: Path = home.absolute() if home else ctx.find_root().obj
    from hpcdl.config.settings import load_config

    name = load_config(folder, {"node_name": node}).node
    # -P: what lies in the folder that this is called in, /tmp maybe, is not to be imported.
    argv = [sys.executable, "-P", "-m", "hpcdl.agent", "--home", str(folder), "--node", name]
    if emulate_gpus is not None:
        argv += ["--emulate-gpus", str(emulate_gpus)]
    trainers = f"trainers outlive it by {seconds_text(load_config(folder).agent_absence_s)}"
    if (folder / "access.json").exists():
        say(f"agent of {name} for the daemon of {folder}: Ctrl-C ends it, {trainers}")
    else:
        say(f"agent of {name} for {folder}, where no daemon was started yet: it waits a moment for one")
    # In this process's place: the agent lives long, and needs nothing of the command line.
    os.execv(sys.executable, argv)


@click.command()
@click.option(
    "--set", "set_number", type=click.IntRange(1, 3), default=3, show_default=True, metavar="N",
    help="Which job set of the paper.",
)  # fmt: skip
@click.option(
    "--scale", type=click.FloatRange(0.1, 1000), metavar="F",
    help="How much faster than the paper's machine.  [default: 20]",
)  # fmt: skip
@click.option(
    "--report", "report_dir", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Where the pages and numbers go.  [default: hpcdl-demo-report]",
)  # fmt: skip
@click.pass_context
def demo(ctx: click.Context, set_number: int, scale: float | None, report_dir: Path | None) -> None:
    """Run MARBLE's job set on emulated GPUs under `marble`, then `fifo-exclusive`, and compare them.

    It starts a daemon of its own, with 6 emulated GPUs and real trainers, shows the progress live, writes a timeline of
    each run, and stops everything that it started. Exit 0 only if every job is DONE and verified.
    """
    from hpcdl.demo.run import main

    ctx.exit(main(set_number, scale, report_dir))
