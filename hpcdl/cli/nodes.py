"""`hpcdl drain` and `undrain`: nodes that jobs are to leave."""

from urllib.parse import quote

import click

from hpcdl.cli import completing
from hpcdl.cli.moments import Moment
from hpcdl.cli.output import Output, Row, escape, outputs_as, say
from hpcdl.cli.rows import connect, moment_text
from hpcdl.client import ApiError
from hpcdl.core.units import expand_nodes


def _named(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """`n1`, or `n[2-4]` as `hpcdl ls nodes` has it."""
    if "" in values:
        raise click.BadParameter("'' is not a node's name: hpcdl nodes lists them", ctx, param)
    return tuple(name for value in values for name in expand_nodes(value.strip()))


NODES = click.argument(
    "nodes", nargs=-1, required=True, callback=_named, metavar="NODE...", shell_complete=completing.nodes
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
@click.pass_context
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
@click.pass_context
def undrain(ctx: click.Context, nodes: tuple[str, ...], output: Output) -> None:
    """Give drained nodes to jobs again."""
    _tell(ctx, nodes, {"now": False, "until": None, "reason": ""}, "may have jobs again", output)
