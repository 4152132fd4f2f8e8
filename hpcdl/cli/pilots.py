"""`hpcdl pilots`: the batch jobs of hpcdl that fill backfill holes. Without a daemon the ledger is read.

It submits nothing: the daemon does.
"""

import re

import click

from hpcdl.cli.job_row import connect, duration_text
from hpcdl.cli.output import AS_OF, Column, Output, Row, escape, outputs_as, print_table, say
from hpcdl.client import ApiError, path_with
from hpcdl.core.model.units import count, fold_nodes


def _pilot_numbers(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[int, ...]:
    """The numbers of pilots, 3 or p3, each once. Raises BadParameter."""
    for value in values:
        if not re.fullmatch(r"p?\d{1,15}", value, re.ASCII):
            raise click.BadParameter(f"{value[:40]!r} is not a pilot's number: hpcdl pilots lists them", ctx, param)
    return tuple(dict.fromkeys(int(value.removeprefix("p")) for value in values))


@click.command()
@click.option("-a", "--all", "every", is_flag=True, help="Those that are over, too.")
@click.option("--cancel", is_flag=True, help="End the pilots ID...")
@click.argument("numbers", nargs=-1, callback=_pilot_numbers, metavar="[ID]...")
@outputs_as("Pilots only, one a line.")
def pilots(ctx: click.Context, every: bool, cancel: bool, numbers: tuple[int, ...], output: Output) -> None:
    """List the pilots, or those named: batch jobs that hpcdl submitted to hold nodes that idle.

    None is submitted unless the setting `pilots` allows some.
    """
    if cancel and not numbers:
        raise click.UsageError("--cancel needs the pilots' numbers: hpcdl pilots lists them", ctx)
    client = connect(ctx, reading=not cancel)
    errors: list[Row] = []
    for number in numbers if cancel else ():
        try:
            client.request("POST", f"/v1/pilots/{number}/cancel", {})
        except ApiError as error:
            errors.append({"pilot": number, "error": str(error), "code": error.code})
            say(str(error))
        else:
            if output is Output.TABLE:
                print(escape(f"pilot p{number} is being cancelled"))
    answer = client.get(path_with("/v1/pilots", all=1 if every or numbers else None))
    rows: list[Row] = [row for row in answer["pilots"] if not numbers or row["id"] in numbers]
    if AS_OF in ctx.meta:
        answer["notes"] = []  # no daemon looks for more
    known = {row["id"] for row in rows}
    for number in numbers if not cancel else ():
        if number not in known:
            errors.append({"pilot": number, "error": f"there is no pilot p{number}", "code": "unknown-pilot"})
            say(f"there is no pilot p{number}: hpcdl pilots --all lists them")
    if not output.print_data({**answer, "pilots": rows, "errors": errors}, [f"p{row['id']}" for row in rows]):
        if not cancel:
            if rows:
                print_table(_PILOTS, rows)
            for note in () if numbers else answer["notes"]:
                say(f"no more pilots: {note}")
            if not (rows or numbers or answer["notes"]):
                why = "none waited or ran" if AS_OF in ctx.meta else "nothing idles, or nothing waits"
                say(f"no pilots: {why}" + ("" if every else " (hpcdl pilots --all: earlier ones)"))
    if errors:
        ctx.exit(1)


def _asked(row: Row) -> str:
    on = fold_nodes(row["nodes"]) or fold_nodes(row["asked"]["on"])
    return on or count(row["asked"]["nodes"], "node")


def _left(row: Row) -> str:
    if row["how"]:
        return "-"
    if row["left_s"] is not None:
        return duration_text(row["left_s"])
    return f"of {duration_text(row['asked']['walltime_s'])}"


def _detail(row: Row) -> str:
    if row["how"]:
        return str(row["how"])
    told = (f"being cancelled: {row['cancelled']}" if row["cancelled"] else row["why"], row["reason"])
    return "; ".join(str(each) for each in told if each)


_PILOTS = (
    Column("PILOT", lambda row: f"p{row['id']}"),
    Column("BATCH JOB", lambda row: str(row["batch_id"]) or "-", right=True),
    Column("STATE", lambda row: str(row["state"]), coloured=True),
    Column("QUEUE", lambda row: str(row["queue"]) or "-"),
    Column("NODES", _asked, shrinks=True),
    Column("LEFT", _left, right=True),
    Column("WHY", _detail, shrinks=True),
)
