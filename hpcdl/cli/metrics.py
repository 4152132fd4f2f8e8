"""`hpcdl metrics`: numbers for an administrator's monitoring, as the text format of Prometheus."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdl.cli.files import READERS, check_regular, replace_private
from hpcdl.cli.numbers import Seconds
from hpcdl.cli.output import Output, escape, outputs_as
from hpcdl.cli.rows import connect
from hpcdl.client import Client, ClientError, DaemonAway

if TYPE_CHECKING:
    from hpcdl.wire.exposition import Family

_UP = "Whether a daemon answered."


class Label(click.ParamType["tuple[str, str]"]):
    """`NAME=VALUE`."""

    name = "label"

    def convert(
        self, value: str | tuple[str, str], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """The two. Fails for a name that no label can have."""
        from hpcdl.wire.exposition import LABEL

        if isinstance(value, tuple):
            return value
        name, equals, text = value.partition("=")
        if not equals or not LABEL.match(name):
            self.fail(f"{value!r} is not NAME=VALUE with a name of letters, digits and _", param, ctx)
        return name, text


@click.command()
@click.option(
    "-o", "--output", "target", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.prom",
    help="Write this file, whole or not at all.  [default: print]",
)  # fmt: skip
@click.option(
    "--every", type=Seconds(1, 3600), metavar="SECONDS", help="Write FILE.prom again so often, until Ctrl-C or SIGTERM."
)
@click.option(
    "--readers", type=click.Choice(list(READERS)), default="owner", show_default=True, help="Who may read FILE.prom."
)
@click.option(
    "--label", "labels", multiple=True, type=Label(), metavar="NAME=VALUE",
    help="Put this label on every line; may be repeated.",
)  # fmt: skip
@outputs_as("The names of the metrics only.")
@click.pass_context
def metrics(
    ctx: click.Context,
    target: Path | None,
    every: float | None,
    readers: str,
    labels: tuple[tuple[str, str], ...],
    output: Output,
) -> None:
    """Print numbers about daemon, jobs and GPUs for Prometheus, or write them for node_exporter's textfile collector.

    With -o, a daemon that does not answer leaves hpcdl_up 0 in the file and nothing else.
    """
    if target is None and (every is not None or readers != "owner"):
        raise click.UsageError("--every and --readers are for a file: name one with -o", ctx)
    if target is not None and output is not Output.TABLE:
        raise click.UsageError("-o writes the text format: leave out --json and --quiet", ctx)
    if len({name for name, _ in labels}) < len(labels):
        raise click.UsageError("--label: each name only once", ctx)
    if target is None:
        _show(ask(connect(ctx)), labels, output)
        return
    check_regular(target)
    client, mode = connect(ctx, 0.0), READERS[readers]
    if every is None:
        _write(client, target, labels, mode)
        print(f"wrote {escape(str(target))}")
        return
    from hpcdl.cli.rounds import Rounds

    with Rounds() as rounds:
        while True:
            try:
                _write(client, target, labels, mode)
            except DaemonAway:
                pass  # the file says so
            rounds.pause(every)


def ask(client: Client) -> "list[Family]":
    """What the daemon says. Raises ClientError."""
    from hpcdl.wire.exposition import from_json, gauge

    answer = client.get("/v1/metrics?form=json")
    try:
        return [gauge("hpcdl_up", _UP, 1), *from_json(answer["metrics"])]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ClientError("the daemon's metrics are not of this form: use the daemon's hpcdl") from None


def _show(families: "list[Family]", labels: tuple[tuple[str, str], ...], output: Output) -> None:
    from hpcdl.wire.exposition import text_of, to_json

    if not output.print_data(
        {"labels": dict(labels), "metrics": to_json(families)}, [family.name for family in families]
    ):
        sys.stdout.write(text_of(families, labels))


def _write(client: Client, target: Path, labels: tuple[tuple[str, str], ...], mode: int) -> None:
    """Raises DaemonAway when the file says so."""
    from hpcdl.wire.exposition import gauge, text_of

    try:
        families = ask(client)
    except DaemonAway:
        replace_private(target, text_of([gauge("hpcdl_up", _UP, 0)], labels), mode)
        raise
    replace_private(target, text_of(families, labels), mode)
