"""`hpcdl simulate backfill`: a trace of idle nodes of our own making, from a simulated batch system."""

import gzip
from pathlib import Path

import click

from hpcdl.cli.output import Output, escape, outputs_as
from hpcdl.cli.params import Finite, OutputFile, replacing
from hpcdl.core.model.units import count


@click.command()
@click.option(
    "-o", "--output", "target", required=True, type=OutputFile(plain=True), metavar="FILE",
    help="The trace to write, CSV of node,idle_from_s,idle_until_s; packed if it ends in .gz.",
)  # fmt: skip
@click.option("-N", "--nodes", type=click.IntRange(1, 100_000), default=1024, show_default=True, metavar="N",
              help="Nodes of the machine.")  # fmt: skip
@click.option("--hours", type=Finite(min=1, max=8_784), default=168, show_default=True, metavar="H",
              help="Length of the trace.")  # fmt: skip
@click.option("--load", type=Finite(min=0.01, max=2), default=0.92, show_default=True, metavar="SHARE",
              help="Node-hours that jobs ask for, of those that there are.")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, metavar="N", help="Same seed, same trace.")
@outputs_as("The name of the file only.")
def backfill(
    ctx: click.Context, target: Path, nodes: int, hours: float, load: float, seed: int, output: Output
) -> None:
    """Simulate a batch system with EASY backfill, and write which of its nodes idle.

    hpcdl simulate backfill -o idle.csv.gz --nodes 256 --hours 48
    """
    from hpcdl.sim.idle.easy import BatchLoad, backfilled

    spells = backfilled(BatchLoad(load), nodes, hours, seed)
    if not spells:
        raise click.ClickException("no node idled at any time: give less --load")
    rows = (f"{spell.name},{spell.from_s:.0f},{spell.until_s:.0f}" for spell in spells)
    content = "\n".join(["node,idle_from_s,idle_until_s", *rows, ""]).encode()
    with replacing(target, 0o644) as file:
        file.write(gzip.compress(content, 9, mtime=0) if target.suffix == ".gz" else content)
    idle_h = sum(spell.until_s - spell.from_s for spell in spells) / 3600
    value = {"file": str(target.absolute()), "pieces": len(spells), "idle_node_hours": idle_h}
    value |= {"nodes": nodes, "hours": hours, "load": load, "seed": seed, "simulated": True}
    if not output.print_data(value, [target]):
        print(escape(f"Simulated: {count(nodes, 'node')}, {hours:g} h, seed {seed}; {idle_h / nodes / hours:.1%} idle"))
        print(escape(f"wrote {target}, {count(len(spells), 'row')}"))
