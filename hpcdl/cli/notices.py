"""`hpcdl notifications` (`notices`): those that are not delivered yet, and the destinations that do not take them.

The daemon sends them; here they are listed, tried again or dropped.
"""

import os
from datetime import datetime
from typing import Any

import click

from hpcdl.cli.job_row import connect
from hpcdl.cli.output import Column, Output, Row, escape, outputs, print_table, say

TEST_S = 60.0
"""So long a delivery may take, which has limits of its own."""


def _destination(row: Row) -> str:
    first, *more = row["destinations"]
    return f"{first['destination']} +{len(more)}" if more else str(first["destination"])


def _state(row: Row) -> str:
    states = {each["state"] for each in row["destinations"]}
    return next(state for state in ("given up", "failing", "waiting") if state in states)


def _why(row: Row) -> str:
    return "; ".join(dict.fromkeys(each["why"] for each in row["destinations"] if each["why"]))


_COLUMNS = (
    Column("ID", lambda row: str(row["id"]), right=True),
    Column("AT", lambda row: f"{datetime.fromtimestamp(row['at']).astimezone():%m-%d %H:%M}"),
    Column("KIND", lambda row: str(row["kind"])),
    Column("STATE", _state),
    Column("DESTINATION", _destination, shrinks=True),
    Column("TRIES", lambda row: str(max(each["attempts"] for each in row["destinations"])), right=True),
    Column("TEXT", lambda row: str(row["text"]), shrinks=True),
    Column("WHY", _why, shrinks=True),
)


@click.command()
@click.option("--retry", is_flag=True, help="Try again now what failed, and what was given up.")
@click.option("--drop", type=int, metavar="ID", help="Do not send this one any more.")
@click.option(
    "--test",
    metavar="DEST",
    help="Deliver a test notification there now, as of a job of this folder, and say what came of it.",
)
@outputs
def notifications(ctx: click.Context, retry: bool, drop: int | None, test: str | None, output: Output) -> None:
    """List the notifications that were not delivered yet, and those that were given up.

    Where they go: hpcdl submit --notify, or the setting notify.
    """
    if retry and drop is not None:
        raise click.UsageError("--retry and --drop exclude each other", ctx)
    if test is not None and (retry or drop is not None):
        raise click.UsageError("--test goes alone", ctx)
    client = connect(ctx, reading=True)
    answer: dict[str, Any]
    if test is not None:
        answer = client.request("POST", "/v1/notices/test", {"destination": test, "folder": os.getcwd()}, wait_s=TEST_S)
        if not output.print_data(answer, []):
            where = f", run in {answer['folder']}" if answer.get("folder") else ""
            if answer["delivered"]:
                print(escape(f"delivered to {answer['destination']}{where}"))
            else:
                say(f"not delivered to {answer['destination']}{where}: {answer['why']}")
        ctx.exit(0 if answer["delivered"] else 1)
    if retry:
        answer = client.request("POST", "/v1/notices/retry", {})
    elif drop is not None:
        answer = client.request("POST", f"/v1/notices/{drop}/drop", {})
    else:
        answer = client.request("GET", "/v1/notices")
    rows: list[Row] = answer["notices"]
    if output.print_data({"notices": rows}, [row["id"] for row in rows]):
        return
    if drop is not None:
        print(f"notification {drop} is dropped")
    elif rows:
        print_table(_COLUMNS, rows)
    else:
        say("no notifications wait: each was delivered or dropped")
