"""`hpcdl profile ls` and `show`: the profiles of the daemon, from files and learnt, and their form as a file.

Only reads.
"""

from typing import Any

import click

from hpcdl.cli import completion
from hpcdl.cli.job_row import connect, duration_text
from hpcdl.cli.output import Column, Output, Row, escape, outputs_as, print_table, say
from hpcdl.client import path_with
from hpcdl.core.model.units import ranges

_SHOWN = 6


@click.command(short_help="List the profiles, given and learnt.")
@outputs_as("Names only, one a line.")
def ls(ctx: click.Context, output: Output) -> None:
    """List the profiles: those of files, and those that were learnt from jobs that named none.

    A learnt one is called after model, batch size (submit --batch) and script; one without the batch size is GENIE's
    model of the type, which serves every batch size, once three were seen on one GPU. STEPS/S are as seen, by GPUs on a
    node (2x4: 4 on each of 2 nodes). SPREAD is how far off the rates may be on GPUs that it was not seen on.
    """
    answer = connect(ctx, reading=True).get("/v1/profiles")
    rows = answer["profiles"]
    if not output.print_data(answer, [row["name"] for row in rows]):
        print_table(COLUMNS, rows)
        if not any(row["learnt"] for row in rows):
            say("none was learnt yet: that takes a job without --profile that reports its steps")


@click.command()
@click.argument("name", shell_complete=completion.profiles)
@outputs_as("Its name only.")
def show(ctx: click.Context, name: str, output: Output) -> None:
    """Print a profile as a file that the daemon reads.

    hpcdl profile show 'resnet50 @ train.py' > ~/.hpcdl/profiles/resnet50.yaml

    The model alone will do as NAME; of several scripts it is then the one that ran last.
    """
    answer = connect(ctx, reading=True).get(path_with("/v1/profiles", name=name))
    (row,) = answer["profiles"]
    if not output.print_data(answer, [row["name"]]):
        print(yaml_text(row["name"], row["profile"]), end="")


def yaml_text(name: str, mapping: dict[str, Any]) -> str:
    """The text of a file with one profile, as `hpcdl.config.profiles.load_profiles` reads it."""
    import yaml

    text: str = yaml.safe_dump({"profiles": {name: _rounded(mapping)}}, sort_keys=False, allow_unicode=True)
    return text


def _rounded(value: Any) -> Any:
    """The value with as many digits as such a measurement can have."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _rates(row: Row) -> str:
    points = row["points"]
    if not points and row.get("batches"):
        return f"of any batch size, by those of {ranges(row['batches'])}"
    kinds = {point["kind"] for point in points}
    parts = []
    for point in points[:_SHOWN]:
        where = f"{point['gpus']}" if point["nodes"] == 1 else f"{point['nodes']}x{point['gpus']}"
        kind = f" {point['kind']}" if len(kinds) > 1 or point["kind"] else ""
        parts.append(f"{where}{kind}: {point['rate']:.3g}")
    return ", ".join(parts) + (f", {len(points) - _SHOWN} more" if len(points) > _SHOWN else "")


def _seen(row: Row) -> str:
    if not row["learnt"] or not row["points"]:
        return "-"
    return duration_text(sum(point["seen_s"] for point in row["points"]))


COLUMNS = (
    Column("NAME", lambda row: escape(row["name"])),
    Column("FROM", lambda row: "learnt" if row["learnt"] else "a file"),
    Column("SEEN FOR", _seen, right=True),
    Column("STEPS/S", _rates, shrinks=True),
    Column("SPREAD", lambda row: f"{100 * row['spread']:.0f} %" if row["spread"] else "-", right=True),
)
