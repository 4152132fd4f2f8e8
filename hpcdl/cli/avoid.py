"""`hpcdl avoid`: GPUs and nodes that are granted to nobody for a while."""

from datetime import datetime
from urllib.parse import quote

import click

from hpcdl.cli.numbers import Seconds
from hpcdl.cli.output import Column, Output, Row, escape, outputs_as, print_table, say
from hpcdl.cli.rows import connect
from hpcdl.core.units import seconds_text


def _name(row: Row) -> str:
    return str(row["node"]) if row["gpu"] is None else f"{row['node']}:{row['gpu']}"


_COLUMNS = (
    Column("WHAT", _name),
    Column("UNTIL", lambda row: f"{datetime.fromtimestamp(row['until']).astimezone():%m-%d %H:%M}"),
    Column("LEFT", lambda row: seconds_text(row["left_s"]), right=True),
    Column("TIMES", lambda row: str(row["times"]), right=True),
    Column("REASON", lambda row: str(row["reason"]), shrinks=True),
)


def _what(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, int | None] | None:
    """`n1:0` or `n1`; a colon may stand in a node's name, too."""
    if value is None:
        return None
    node, colon, index = value.rpartition(":")
    if colon and index.isascii() and index.isdigit():
        return node, int(index)
    return value, None


@click.command()
@click.argument("what", required=False, callback=_what, metavar="[NODE[:GPU]]")
@click.option(
    "--for", "for_s", type=Seconds(min=0), metavar="SECONDS", help="For so long: 600, 90s, 2h.  [default: 1h]"
)
@click.option("--reason", default="", metavar="TEXT", help="What users read.")
@click.option("--move", is_flag=True, help="Jobs that run there and can be suspended leave it.")
@click.option("--lift", is_flag=True, help="It may be granted again, from now on.")
@outputs_as("GPUs and nodes only, one a line.")
@click.pass_context
def avoid(
    ctx: click.Context,
    what: tuple[str, int | None] | None,
    for_s: float | None,
    reason: str,
    move: bool,
    lift: bool,
    output: Output,
) -> None:
    """List the GPUs and nodes that are excluded, and until when; exclude one, or lift that.

    GPUs with faults are excluded by themselves, for the time that the setting avoid_s says.
    """
    if what is None and (for_s is not None or reason or move or lift):
        raise click.UsageError("name a node, n1, or a GPU, n1:0", ctx)
    if lift and (for_s is not None or reason or move):
        raise click.UsageError("--lift takes no other option", ctx)
    client = connect(ctx)
    if what is None:
        rows: list[Row] = client.request("GET", "/v1/avoided")["avoided"]
    else:
        node, gpu = what
        path = f"/v1/nodes/{quote(node, safe='')}"
        if lift:
            rows = client.request("POST", f"{path}/lift", {"gpu": gpu})["avoided"]
        else:
            body = {"gpu": gpu, "for_s": 3600.0 if for_s is None else for_s, "reason": reason, "moves": move}
            rows = client.request("POST", f"{path}/avoid", body)["avoided"]
    if output.print_data({"avoided": rows}, [_name(row) for row in rows]):
        return
    if what is not None and lift:
        print(escape(f"{what[0] if what[1] is None else f'{what[0]}:{what[1]}'} may be granted again"))
    elif rows:
        print_table(_COLUMNS, rows)
    else:
        say("nothing is excluded")
