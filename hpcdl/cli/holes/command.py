"""`hpcdl holes`: backfill holes of the batch system, from the daemon or, without one, from the batch system itself.

`record.py` records for weeks what idles, `stats.py` describes a record. Nothing is submitted: the daemon does that.
"""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from hpcdl.cli.job_row import connect, moment_text
from hpcdl.cli.output import Column, Output, Row, outputs_as, print_table, say
from hpcdl.cli.params import SKIP_SINGLE, InputFile, MaybeFile, OutputFile, RecordFolderName, Seconds
from hpcdl.client import DaemonAway
from hpcdl.core.model.units import count, fold_nodes

_EVERY_S = 30.0
_NEEDS = {
    "record": {"every": "SECONDS", "polls": "N", "from_sacct": "[FILE]"},
    "stats": {"nodes": "N", "skip_single": "", "page": "FILE"},
}
"""Options by the one that they need, with what is written behind them."""


@click.command()
@click.option(
    "--record", type=RecordFolderName(), metavar="DIR", help="Record for weeks what idles, into this folder; no daemon."
)
@click.option("--every", type=Seconds(0.1, 86_400), metavar="SECONDS", help="How often to look.  [default: 30]")
@click.option("--polls", type=click.IntRange(1), metavar="N", help="Look so often, not until Ctrl-C or SIGTERM.")
@click.option(
    "--from-sacct", is_flag=False, flag_value="", type=MaybeFile(), metavar="[FILE]",
    help="Make the record of what sacct --parsable2 printed; without FILE sacct is asked for 30 days.",
)  # fmt: skip
@click.option(
    "--stats", type=InputFile(folders=True), metavar="DIR|FILE",
    help="Describe a record, or a CSV trace of idle nodes: BFTrainer's table 1.",
)  # fmt: skip
@click.option("--nodes", type=click.IntRange(1, 10_000_000), metavar="N", help="Nodes in all.  [default: as recorded]")
@SKIP_SINGLE
@click.option("-o", "--output", "page", type=OutputFile(plain=True), metavar="FILE",
              help="Draw it, too: table 1, figures 1 and 6.")  # fmt: skip
@outputs_as("Nodes only, a line for each backfill hole; the mean number of idle nodes with --stats.")
def holes(ctx: click.Context, /, output: Output, **values: Any) -> None:
    """List what idles in the batch system, and until when no batch job can use it.

    From the daemon's last look; without a daemon the batch system is asked now.
    """
    options = SimpleNamespace(**values)
    _check(ctx, options)
    if options.record is not None:
        from hpcdl.cli.holes.record import record, record_past

        if options.from_sacct is not None:
            record_past(options.record, options.from_sacct, options.every or _EVERY_S, output)
            return
        record(ctx.find_root().obj, options.record, options.every or _EVERY_S, options.polls, output)
    elif options.stats is not None:
        from hpcdl.cli.holes.stats import stats

        stats(ctx, options, output)
    else:
        _list(ctx, output)


def _check(ctx: click.Context, options: SimpleNamespace) -> None:
    """Raises UsageError for options that need another one."""
    if options.record is not None and options.stats is not None:
        raise click.UsageError("--record and --stats exclude each other: one writes a record, one describes it", ctx)
    if options.from_sacct is not None and options.polls is not None:
        raise click.UsageError("--from-sacct makes all polls that the accounting has: leave out --polls", ctx)
    for need, names in _NEEDS.items():
        for name, value in names.items():
            if getattr(options, name) not in (None, False) and getattr(options, need) is None:
                option = "--output" if name == "page" else f"--{name.replace('_', '-')}"
                raise click.UsageError(
                    f"{option} is of --{need}: hpcdl holes --{need} DIR {option} {value}".rstrip(), ctx
                )


def _list(ctx: click.Context, output: Output) -> None:
    try:
        answer = connect(ctx).get("/v1/holes", wait_s=30.0)
    except DaemonAway:
        answer = _looked_at(ctx.find_root().obj)
    rows: list[Row] = answer["holes"]
    if not output.print_data(answer, [_nodes_of(row) for row in rows]):
        if rows:
            print_table(_HOLES, rows)
    if output is not Output.JSON:
        troubles = (answer["batch"] or {}).get("troubles", ())
        before = ", this is what was seen before" if rows else ": hpcdl doctor says what it can do here"
        for trouble in troubles:
            say(f"the batch system does not answer as it should ({trouble}){before}")
        if answer["batch"] is None:
            say(str(answer["notes"][0]))
        elif not rows and not troubles:
            say("no backfill holes: no node is idle, or a batch job is about to start on each that is")
        elif rows:
            for note in answer["notes"]:
                say(f"no more pilots: {note}" if answer["at"] is not None and "pilots_max" in answer["batch"] else note)


def _looked_at(home: Path) -> dict[str, Any]:
    """The backfill holes as the API answers them, from the batch system itself. Raises ClickException."""
    from hpcdl.allocation.detect import detect
    from hpcdl.batch.site import load_site
    from hpcdl.cli.doctor.batch_system import asked_from_here
    from hpcdl.config.settings import load_config
    from hpcdl.core.model.frozen import to_json
    from hpcdl.daemon.clock import WallClock

    config = load_config(home)
    clock = WallClock(0.0)
    site = load_site(config.site, config.pilots, home)
    system = detect(config.batch, os.environ, now=clock.now, site=site)
    if system is None:
        note = "no batch system was found here: hpcdl doctor says what it looked for"
        return {"holes": [], "at": None, "notes": [note], "batch": None}
    with asked_from_here(system.kind):
        found = system.holes(clock.now(), ())
    return {
        "holes": to_json(found),
        "at": clock.now(),
        "notes": ["no daemon runs: the batch system was asked from here"],
        "batch": {"kind": system.kind, "troubles": []},
    }


def _nodes_of(row: Row) -> str:
    return fold_nodes(row["nodes"]) if row["nodes"] else count(row["count"], "node")


_HOLES = (
    Column("QUEUE", lambda row: str(row["queue"]) or "-"),
    Column("NODES", _nodes_of, shrinks=True),
    Column("GPUS", lambda row: "-" if row["gpus"] is None else f"{row['gpus']} {row['kind']}".strip()),
    Column("UNTIL", lambda row: moment_text(row["until"]) or "nobody knows"),
    Column("WHY", lambda row: str(row["why"]), shrinks=True),
)
