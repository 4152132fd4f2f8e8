"""`hpcdl metrics`: numbers for an administrator's monitoring, in the text format of Prometheus.

The daemon writes them (daemon/api/metrics.py); here labels are added, and the file is replaced again and again. A file
whose daemon does not answer says so, and nothing else.
"""

import re
import sys
from contextlib import suppress
from pathlib import Path

import click

from hpcdl.cli.job_row import connect
from hpcdl.cli.output import Output, escape, outputs_as
from hpcdl.cli.params import READERS, OneOf, OutputFile, Seconds, replace_file
from hpcdl.client import Client, ClientError, DaemonAway

_UP = {"name": "hpcdl_up", "kind": "gauge", "help": "Whether a daemon answered."}
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*=")
_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{?)", re.MULTILINE)
"""The beginning of a line that is no comment: the metric's name, and what begins its labels."""


def _labels(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The names and values of `NAME=VALUE`. Raises BadParameter for a name that no label can have."""
    for value in values:
        if not _LABEL.match(value):
            what = f"{value!r} is not NAME=VALUE with a name of letters, digits and _"
            raise click.BadParameter(what, ctx, param)
    return tuple((name, text) for name, _, text in (value.partition("=") for value in values))


@click.command()
@click.option(
    "-o", "--output", "target", type=OutputFile(plain=True), metavar="FILE.prom",
    help="Write this file, whole or not at all.  [default: print]",
)  # fmt: skip
@click.option(
    "--every", type=Seconds(1, 3600), metavar="SECONDS", help="Write FILE.prom again so often, until Ctrl-C or SIGTERM."
)
@click.option(
    "--readers", type=OneOf(list(READERS)), default="owner", show_default=True, help="Who may read FILE.prom."
)
@click.option(
    "--label", "labels", multiple=True, callback=_labels, metavar="NAME=VALUE",
    help="Put this label on every line; may be repeated.",
)  # fmt: skip
@outputs_as("The names of the metrics only.")
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
        _show(connect(ctx), labels, output)
        return
    client, mode = connect(ctx, 0.0), READERS[readers]
    if every is None:
        _write(client, target, labels, mode)
        print(f"wrote {escape(str(target))}")
        return
    from hpcdl.cli.interrupt import repeat

    def write() -> None:
        with suppress(DaemonAway):  # the file says so
            _write(client, target, labels, mode)

    repeat(every, write)


def _show(client: Client, labels: tuple[tuple[str, str], ...], output: Output) -> None:
    if output is Output.TABLE:
        sys.stdout.write(_text(client, labels))
        return
    families = client.get("/v1/metrics?form=json").get("metrics")
    try:
        rows = [{**_UP, "samples": [{"value": 1}]}, *families]  # type: ignore[misc]  # caught
        names = [row["name"] for row in rows]
    except (KeyError, TypeError):
        raise ClientError(_OTHER_FORM) from None
    output.print_data({"labels": dict(labels), "metrics": rows}, names)


_OTHER_FORM = "the daemon's metrics are not of this form: use the daemon's hpcdl"


def _text(client: Client, labels: tuple[tuple[str, str], ...]) -> str:
    """All lines of the metrics, as the daemon wrote them. Raises ClientError."""
    told = client.get_text("/v1/metrics")
    if not told.startswith("# HELP "):
        raise ClientError(_OTHER_FORM)
    return _labelled(_up(1) + told, labels)


def _up(value: int) -> str:
    return "# HELP {name} {help}\n# TYPE {name} {kind}\n".format(**_UP) + f"{_UP['name']} {value}\n"


def _labelled(text: str, labels: tuple[tuple[str, str], ...]) -> str:
    """The lines with these labels before their own. Values are escaped."""
    if not labels:
        return text
    escapes = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
    clean = [(name, value.encode("utf-8", "replace").decode().translate(escapes)) for name, value in labels]
    own = ",".join(f'{name}="{value}"' for name, value in clean)
    return _SAMPLE.sub(lambda found: f"{found[1]}{{{own}{',' if found[2] else '}'}", text)


def _write(client: Client, target: Path, labels: tuple[tuple[str, str], ...], mode: int) -> None:
    """Write the file; hpcdl_up 0 in it, and DaemonAway, where the daemon does not answer."""
    try:
        text = _text(client, labels)
    except DaemonAway:
        replace_file(target, _labelled(_up(0), labels), mode)
        raise
    replace_file(target, text, mode)
