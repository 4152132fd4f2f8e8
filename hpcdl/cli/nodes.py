"""`hpcdl drain`, `undrain` and `avoid`: nodes that jobs are to leave, and GPUs and nodes that are excluded.

Each is one request; what it means for jobs is decided by the daemon.
"""

from datetime import datetime
from urllib.parse import quote

import click

from hpcdl.cli import completion
from hpcdl.cli.job_row import connect, moment_text
from hpcdl.cli.output import Column, Output, Row, escape, outputs_as, print_table, say
from hpcdl.cli.params import Moment, Seconds
from hpcdl.client import ApiError
from hpcdl.core.model.units import expand_nodes, seconds_text


def _named(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """The names of nodes: `n1`, or `n[2-4]` as `hpcdl ls nodes` prints them."""
    if "" in values:
        raise click.BadParameter("'' is not a node's name: hpcdl nodes lists them", ctx, param)
    return tuple(name for value in values for name in expand_nodes(value.strip()))


NODES = click.argument(
    "nodes", nargs=-1, required=True, callback=_named, metavar="NODE...", shell_complete=completion.nodes
)


def _tell(ctx: click.Context, nodes: tuple[str, ...], body: Row, done: str, output: Output) -> None:
    client = connect(ctx)
    rows: list[Row] = []
    errors: list[Row] = []
    for node in dict.fromkeys(nodes):
        try:
            rows += client.request("POST", f"/v1/nodes/{quote(node, safe='')}/drain", body)["nodes"]
        except ApiError as error:
            errors.append({"node": node, "error": str(error), "code": error.code})
            say(str(error))
    if not output.print_data({"nodes": rows, "errors": errors}, [row["name"] for row in rows]):
        for row in rows:
            print(escape(f"node {row['name']} {done}"))
    if errors:
        ctx.exit(1)


@click.command()
@NODES
@click.option(
    "--at", type=Moment(if_past="without --at they are left now"), metavar="TIME",
    help="Not now: they go at this time (+2h, 18:30, a date).",
)  # fmt: skip
@click.option("--reason", default="", metavar="TEXT", help="What users read.")
@outputs_as("Names only, one a line.")
def drain(ctx: click.Context, nodes: tuple[str, ...], at: float | None, reason: str, output: Output) -> None:
    """Have jobs leave nodes, and start nothing there: elastic ones go on without them, others are suspended.

    With --at, policies only know that the nodes go then.
    """
    body: Row = {"now": at is None, "until": at, "reason": reason}
    goes = "is being left" if at is None else f"goes at {moment_text(at)}: jobs are planned for that"
    _tell(ctx, nodes, body, goes, output)


@click.command()
@NODES
@outputs_as("Names only, one a line.")
def undrain(ctx: click.Context, nodes: tuple[str, ...], output: Output) -> None:
    """Give drained nodes to jobs again."""
    _tell(ctx, nodes, {"now": False, "until": None, "reason": ""}, "may have jobs again", output)


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
    """A GPU, `n1:0`, or a node, `n1`; a name may hold a colon, too."""
    if value is None:
        return None
    node, colon, index = value.rpartition(":")
    of_gpu = colon and index.isascii() and index.isdigit()
    if not (node if of_gpu else value):
        raise click.BadParameter(f"{value!r} names no node: hpcdl nodes lists them", ctx, param)
    return (node, int(index)) if of_gpu else (value, None)


@click.command()
@click.argument("what", required=False, callback=_what, metavar="[NODE[:GPU]]")
@click.option(
    "--for", "for_s", type=Seconds(min=0), metavar="SECONDS", help="For so long: 600, 90s, 2h.  [default: 1h]"
)
@click.option("--reason", default="", metavar="TEXT", help="What users read.")
@click.option("--move", is_flag=True, help="Jobs that run there and can be suspended leave it.")
@click.option("--lift", is_flag=True, help="It may be granted again, from now on.")
@outputs_as("GPUs and nodes only, one a line.")
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
    client = connect(ctx, reading=True)
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
