"""A submit on its way: to the daemon, or into the spool while none runs; and what is printed of it.

A repeated submit carries the same request id, so it is never a second job.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from hpcdl.cli.job_row import forecast_lines, placement_text
from hpcdl.cli.output import Output, Row, escape, print_json, say
from hpcdl.client import ApiError, Client, ClientError, DaemonAway
from hpcdl.core.model.units import count, seconds_text
from hpcdl.wire.last_start import start_command
from hpcdl.wire.spool import put

Answer = dict[str, Any]


def send(
    client: Client, body: dict[str, Any], *, number: int, spool: bool, note: Callable[[str], None] = say
) -> Answer:
    """The daemon's answer; without a daemon `{"jobs": [], "spooled": ...}`, and a line of `note` that says so.

    `body`: of `POST /v1/jobs`, with `number` jobs. `spool`: where no daemon answers, keep it for the next one. Raises
    ClientError, SpoolError, NotPrivate and OSError.
    """
    try:
        return client.request("POST", "/v1/jobs", body)
    except ClientError as error:
        stops = isinstance(error, ApiError) and error.code == "stopping"  # at the end of its allocation, say
        if not spool or not (stops or isinstance(error, DaemonAway)):
            raise
        why = str(error).partition(": ")[0]
    home: Path = client.home
    request_id: str = body["request_id"]
    path = put(home, request_id, body["jobs"], strict=bool(body.get("strict")))
    note(
        f"{why}: {count(number, 'job')} spooled as {path}, which the next daemon of {home} takes in "
        f"({start_command(home)})"
    )
    return {"jobs": [], "spooled": {"request_id": request_id, "path": str(path), "jobs": number}}


def show(answer: Answer, output: Output, doubts: Iterable[str] = ()) -> None:
    """Prints what became of a submit: a line for each job, and one for an array. `doubts`: of what was seen here."""
    rows: Sequence[Row] = answer["jobs"]
    warn(rows, doubts)
    if not output.print_data(answer, [row["id"] for row in rows]):
        for group in arrays_of(rows):
            first, last = group[0], group[-1]
            state = f"{first['state'].lower()}{' (held)' if first.get('held') else ''}"
            if len(group) == 1:
                click.echo(escape(f"job {first['id']} {state}: {first['name']}"))
            else:
                most = f", at most {first['max_parallel']} at a time" if first.get("max_parallel") else ""
                click.echo(
                    escape(
                        f"jobs {first['id']}-{last['id']} {state}: array {first['id']} of {count(len(group), 'job')}"
                        f"{most}: {first['name']} to {last['name']}"
                    )
                )
            for row in group:
                for line in forecast_lines(row):
                    click.echo(f"  {escape(line)}")


def warn(rows: Sequence[Row], doubts: Iterable[str]) -> None:
    """Print what may go wrong, each once."""
    for warning in dict.fromkeys((*doubts, *(each for row in rows for each in row.get("warnings", ())))):
        say(warning)


def arrays_of(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Groups of rows: the members of one array together."""
    group: list[Row] = []
    for row in rows:
        array = row.get("array")
        if group and not (array and group[-1].get("array") == array):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


_EACH = 3
"""Members of an array of which each has a line; the others are counted."""


def tell(answer: Answer, output: Output, doubts: Iterable[str]) -> None:
    """Print a dry run: for each job where it could start now or why it would wait, and when it would start."""
    rows: list[Row] = answer["jobs"]
    warn(rows, doubts)
    if output is Output.JSON:
        print_json(answer)
        return
    if output is Output.QUIET:
        return  # nobody has an id
    starts = sum(bool(row["would_start"]) for row in rows)
    for group in arrays_of(rows):
        for row in group[:_EACH]:
            print(escape(f"{row['name']}: {_where(row)}{_when(row)}"))
            for line in forecast_lines(row):
                print(f"  {escape(line)}")
        if len(group) > _EACH:
            rest = group[_EACH:]
            begin = sum(bool(row["would_start"]) for row in rest)
            print(f"and {len(rest)} more of that array: {begin} would start now, {len(rest) - begin} would wait")
    print(f"nothing was submitted: {starts} of {count(len(rows), 'job')} would start now")


def _where(row: Row) -> str:
    where = placement_text(row.get("placement"))
    return f"would start now on {where}: {row['reason']}" if where else f"would wait: {row['reason']}"


def _when(row: Row) -> str:
    now = row["submitted_at"]
    told = []
    if not row["would_start"] and row.get("starts_at") is not None:
        told.append(f"starts in about {seconds_text(max(0.0, row['starts_at'] - now))}")
    if row.get("ends_at") is not None:
        low, high = (row.get(key) for key in ("ends_low_at", "ends_high_at"))
        band = "" if low is None else f", perhaps {seconds_text(max(0.0, low - now))} to {seconds_text(high - now)}"
        told.append(f"ends in about {seconds_text(max(0.0, row['ends_at'] - now))}{band}")
    return f" ({'; '.join(told)})" if told else ""
