"""The events as lines of JSON, and the jobs as CSV: for other programs, and to keep."""

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

from hpcdl.core.journal import JournalError
from hpcdl.core.notice import redacted
from hpcdl.ledger import schema
from hpcdl.ledger.offline import Reader
from hpcdl.ledger.records import EVENT_SCHEMA, EventRow, dumps

FORMAT = "hpcdl-events"
_MARKS = ('"env"', '"notify"', '"destination')
"""What stands in bodies that may hold secrets."""


def lines(reader: Reader, version: str, *, with_environment: bool) -> Iterator[str]:
    """JSON objects, one a line: the first says what this is, then each event as `GET /v1/events` tells it, and `cause`.

    Without environments, of the jobs' variables only the names, and of destinations of notices nothing secret. Raises
    JournalError.
    """
    head = {"schema": 1, "format": FORMAT, "hpcdl": version, "events": reader.last_seq, "environment": with_environment}
    yield json.dumps(head) + "\n"
    for piece in reader.rows():
        for row in piece:
            yield _line(row, with_environment)


def _line(row: EventRow, with_environment: bool) -> str:
    seq, at, stream, version, kind, written, body, cause = row
    if written > EVENT_SCHEMA:
        raise JournalError(f"event {seq} ({kind}) was written by a newer hpcdl: update hpcdl")
    if not with_environment and any(mark in body for mark in _MARKS):
        body = dumps(_without_values(json.loads(body)))
    head = dumps({"seq": seq, "at": at, "stream": stream, "version": version, "kind": kind})[:-1]
    tail = "" if cause is None else f',"cause":{cause}'
    return f'{head},"body":{body}{tail}}}\n'


def _without_values(body: dict[str, Any]) -> dict[str, Any]:
    spec = body.get("spec")
    if isinstance(spec, dict) and isinstance(spec.get("env"), list):
        spec["env"] = [pair[0] if isinstance(pair, list) and pair else "" for pair in spec["env"]]
    for holder, key in ((spec, "notify"), (body, "destinations")):
        if isinstance(holder, dict) and isinstance(holder.get(key), list):
            holder[key] = [redacted(str(each)) for each in holder[key]]
    if isinstance(body.get("destination"), str):
        body["destination"] = redacted(body["destination"])
    return body


def jobs_csv(reader: Reader) -> Iterator[str]:
    """The table of jobs, with a line of titles. Texts that a spreadsheet would take for a formula begin with '."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow([column.name for column in schema.job.columns])
    with reader.reading() as connection:
        rows = connection.execute(schema.job.select().order_by(schema.job.c.id)).all()
    for row in rows:
        out.writerow([_plain(value) for value in row])
    yield text.getvalue()


def _plain(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
