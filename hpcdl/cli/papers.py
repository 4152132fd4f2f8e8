"""`hpcdl simulate papers`: every table of the papers, simulated, beside what the papers print.

What is simulated is in hpcdl/sim/papers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdl.cli.output import Column, Output, escape, outputs_as, print_table, say, value_column
from hpcdl.cli.params import REPORT, InputFile, names_in, replace_file

_INTERVAL = "_ci95"

if TYPE_CHECKING:
    from hpcdl.sim.papers.table import PaperRow, PaperTable


@click.command(short_help="Reproduce the papers' tables.")
@click.option(
    "--only",
    metavar="NAME,..",
    help="Of marble, sidecar, genie, deeppool, unknown, malletrain and bftrainer.  [default: all]",
)
@click.option("--seeds", type=click.IntRange(min=1), metavar="N", help="No more seeds than these, for a quick look.")
@click.option("--trace", type=InputFile(folders=True), metavar="FILE|DIR",
              help="BFTrainer's own trace of idle nodes: its numbers are compared.  [default: ours]")  # fmt: skip
@click.option("--full", is_flag=True, help="BFTrainer's 1,000 trainers and the whole trace; not 100 and 60 h.")
@REPORT
@outputs_as("Names only, one a line.")
def papers(
    ctx: click.Context,
    output: Output,
    only: str | None,
    seeds: int | None,
    trace: Path | None,
    full: bool,
    report: Path | None,
) -> None:
    """Reproduce the papers' tables in the simulator: ours beside what they print.

    Takes up to an hour, and says on stderr what is ready. Every figure is simulated, with means and 95 % intervals over
    seeds. The last table has each number that the papers print and hpcdl claims: met, missed or not run, and what was
    fitted to it. BFTrainer's are of its trace, which hpcdl does not have: give it with --trace, else they are not
    compared.
    """
    from hpcdl.sim.papers.all import PAPERS, all_tables
    from hpcdl.sim.papers.printed import printed_rows

    names = list(PAPERS) if only is None else names_in(only, list(PAPERS), "--only")
    if (trace is not None or full) and "bftrainer" not in names:
        raise click.UsageError(f"{'--full' if trace is None else '--trace'} is for bftrainer: name it in --only", ctx)
    tables, problems = all_tables(names, seeds, say, trace, full)
    printed = printed_rows(tables, None if only is None else names, trace is not None)
    if report is not None:
        from hpcdl.sim.papers.page import papers_page

        replace_file(report, papers_page(tables, printed))
    value = {"simulated": True, "printed": printed, "tables": [table.to_json() for table in tables]}
    if not output.print_data(value, [table.name for table in tables]):
        for table in tables:
            _print(table)
        _print_printed(printed)
        if report is not None:
            print(f"wrote {escape(str(report))}")
    for problem in problems:
        say(problem)
    if problems:
        ctx.exit(1)


def _print(table: "PaperTable") -> None:
    print(f"{escape(table.name)}\n")
    keys = [key for key in dict.fromkeys(key for row in table.rows for key in row.more) if not key.endswith(_INTERVAL)]
    printed = list(dict.fromkeys(key for row in table.rows for key in row.paper))
    timed = any(row.makespan_s == row.makespan_s for row in table.rows)
    columns = [
        Column("WORKLOAD", lambda row: row["workload"]),
        Column("POLICY", lambda row: row["policy"]),
        *(_figure(key, key.upper()) for key in (("makespan_s", "mean_jct_s") if timed else ())),
        *(_figure(key, key.upper()) for key in keys),
        *(_figure(f"paper {key}", f"PAPER {key.upper()}") for key in printed),
    ]
    print_table(columns, _rows(table.rows))
    for note in table.notes:
        print(f"  {escape(note)}")
    print()


def _print_printed(printed: Sequence[Mapping[str, Any]]) -> None:
    from hpcdl.sim.papers.printed import TITLE, summary, verdict

    if not printed:
        return
    print(f"{TITLE}\n")
    columns = [
        value_column("PAPER", "paper"),
        value_column("FIGURE", "figure"),
        value_column("WHAT", "what", shrinks=True),
        value_column("PRINTED", "printed", _text, right=True),
        value_column("HERE", "here", _text, right=True),
        Column("MET", verdict),
        value_column("FITTED", "fitted", shrinks=True),
    ]
    print_table(columns, printed)
    print(f"  {summary(printed)}\n")


def _rows(rows: "Sequence[PaperRow]") -> list[dict[str, Any]]:
    return [row.to_json() | {f"paper {key}": value for key, value in row.paper.items()} for row in rows]


def _figure(key: str, title: str) -> Column:
    """A column of a figure, with half its 95 % interval where there is one."""

    def cell(row: Any) -> str:
        interval = row.get(key + _INTERVAL)
        return _text(row.get(key)) + (f" ±{_text(interval)}" if interval is not None else "")

    return Column(title.replace("_", " "), cell, right=True)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    if isinstance(value, list | tuple):
        return " to ".join(_text(each) for each in value)
    return str(value)
