"""A submit on its way: to the daemon, or into the spool while none runs; and what is said of it."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from hpcdl.cli.output import Output, Row, escape, say
from hpcdl.client import ApiError, Client, ClientError, DaemonAway
from hpcdl.core.units import count
from hpcdl.wire.spool import put

Answer = dict[str, Any]


def send(client: Client, body: dict[str, Any], *, number: int, spool: bool) -> Answer:
    """The daemon's answer; without a daemon `{"jobs": [], "spooled": ...}`, and a line on stderr that says so.

    `body`: of `POST /v1/jobs`, with `number` jobs. Raises ClientError, SpoolError, NotPrivate and OSError.
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
    say(
        f"{why}: {count(number, 'job')} spooled as {path}, which the next daemon of {home} takes in "
        "(hpcdl daemon start)"
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
                if row.get("forecast"):
                    click.echo(f"  {escape(row['forecast']['text'])}")


def warn(rows: Sequence[Row], doubts: Iterable[str]) -> None:
    """Says what may go wrong, each once."""
    for warning in dict.fromkeys((*doubts, *(each for row in rows for each in row.get("warnings", ())))):
        say(warning)


def arrays_of(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """The rows with those of one array together."""
    group: list[Row] = []
    for row in rows:
        array = row.get("array")
        if group and not (array and group[-1].get("array") == array):
            yield group
            group = []
        group.append(row)
    if group:
        yield group
