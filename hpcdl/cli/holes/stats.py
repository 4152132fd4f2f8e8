"""`hpcdl holes --stats`: a record, or a trace of idle nodes, as in BFTrainer's table 1."""

from types import SimpleNamespace
from typing import TYPE_CHECKING

import click

from hpcdl.cli.output import Column, Output, escape, print_fields, print_table
from hpcdl.cli.params import replace_file
from hpcdl.core.model.units import count

if TYPE_CHECKING:
    from hpcdl.sim.idle import IdleTable

_SHOWN_MIN = (10.0, 30.0, 60.0, 120.0)
"""Lengths of pieces whose shares are printed."""


def stats(ctx: click.Context, options: SimpleNamespace, output: Output) -> None:
    """Prints the table. Raises UsageError, WorkloadError, RecordError."""
    from hpcdl.sim.idle import table_of
    from hpcdl.sim.readers import read_idle_record

    record = read_idle_record(options.stats, options.skip_single)
    seen = len({piece.node for piece in record.pieces})
    if options.nodes is not None and options.nodes < seen:
        what = f"{count(seen, 'node')} idled at some time: give at least as many"
        raise click.BadParameter(what, ctx, param_hint="'--nodes'")
    table = table_of(record, options.nodes)
    if options.page is not None:
        from hpcdl.sim.idle.page import idle_page

        replace_file(options.page, idle_page(record, table, options.stats.resolve().name))
    mean = "" if table.equivalent_nodes is None else f"{table.equivalent_nodes:.1f}"
    if not output.print_data(table.to_json(), [mean]):
        _print(table)
        if options.page is not None:
            print(f"\nwrote {escape(str(options.page))}")


def _print(table: "IdleTable") -> None:
    gaps = f", and {count(table.gaps, 'gap')} of {table.gap_hours:.4g} h in all" if table.gaps else ""
    of_all = "" if table.ratio is None else f", {100 * table.ratio:.1f} % of {table.nodes}"
    cut = f", {table.cut} of them cut by an end or a gap" if table.cut else ""
    print_fields(
        [
            ("observed", f"{table.hours:.4g} h{gaps}"),
            ("INC/h", "-" if table.inc_per_hour is None else f"{table.inc_per_hour:.2f}"),
            ("DEC/h", "-" if table.dec_per_hour is None else f"{table.dec_per_hour:.2f}"),
            ("idle", f"{table.idle_node_hours:.6g} node-hours"),
            ("eq-nodes", "-" if table.equivalent_nodes is None else f"{table.equivalent_nodes:.1f}{of_all}"),
            ("pieces", f"{table.pieces}{cut}"),
        ]
    )
    rows = [(minutes, shares) for minutes in _SHOWN_MIN if (shares := table.shorter_than(minutes)) is not None]
    if rows:
        print()
        print_table(_LENGTHS, [{"minutes": minutes, "count": by, "time": time} for minutes, (by, time) in rows])
    if table.idle_node_hours:
        print("\nWhat pilots would have got, if each node trains from so long after it began to idle:\n")
        print_table(
            _HARVEST,
            [{"startup": each.startup_s, "share": each.share, "hours": each.node_hours} for each in table.harvest],
        )


_LENGTHS = (
    Column("IDLE UP TO", lambda row: f"{row['minutes']:g} min", right=True),
    Column("OF PIECES", lambda row: f"{100 * row['count']:.1f} %", right=True),
    Column("OF NODE X TIME", lambda row: f"{100 * row['time']:.1f} %", right=True),
)
_HARVEST = (
    Column("AFTER", lambda row: f"{row['startup']:g} s", right=True),
    Column("OF IDLE TIME", lambda row: f"{100 * row['share']:.1f} %", right=True),
    Column("NODE-HOURS", lambda row: f"{row['hours']:.1f}", right=True),
)
