"""`hpcdl holes` and `hpcdl pilots`: backfill holes of the batch system, and the batch jobs of hpcdl that fill them.

Without a daemon `holes` asks the batch system itself, and `pilots` reads the ledger. Neither submits anything: the
daemon does.
"""

import os
import re
from pathlib import Path
from typing import Any

import click

from hpcdl.cli.job_row import connect, duration_text, moment_text
from hpcdl.cli.output import AS_OF, Column, Output, Row, escape, outputs_as, print_table, say
from hpcdl.client import ApiError, DaemonAway, path_with
from hpcdl.core.model.units import count, fold_nodes


@click.command()
@outputs_as("Nodes only, a line for each backfill hole.")
def holes(ctx: click.Context, output: Output) -> None:
    """List what idles in the batch system, and until when no batch job can use it.

    From the daemon's last look; without a daemon the batch system is asked now.
    """
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
