"""Requests and answers of the API: bodies and queries to values within limits, values to JSON, errors.

Whatever a caller sends becomes a value within its limits or an ApiProblem with one line. `app` turns that into an
answer; docs/api.md has the keys.
"""

import json
import sys
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hpcdl.daemon.api.rows import SCHEMA

MAX_BODY = 8 << 20
MAX_WAIT_S = 60.0
MOST = sys.float_info.max


encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode


class ApiProblem(Exception):
    """A request that is not carried out: its HTTP status, one line for the user, a code for machines."""

    def __init__(self, status: int, message: str, code: str = "bad-input") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Encoded(dict[str, Any]):
    """A whole answer that was written already, as JSON where nothing else is said; who looks into it gets it read."""

    def __init__(self, content: bytes, media_type: str = "application/json") -> None:
        super().__init__()
        self.content = content
        self.media_type = media_type

    def __missing__(self, key: str) -> Any:
        self.update(json.loads(self.content))
        return dict(self)[key]

    def __contains__(self, key: object) -> bool:
        if not self:
            self.update(json.loads(self.content))
        return super().__contains__(key)


def encoded(members: str) -> bytes:
    """A whole answer, of members of its object that are JSON already."""
    return f'{{"schema":{SCHEMA},{members}}}'.encode("utf-8", "backslashreplace")


def json_answer(status: int, body: dict[str, Any]) -> Response:
    """One JSON object, with the schema's number."""
    if isinstance(body, Encoded):
        return Response(body.content, status, media_type=body.media_type)
    text = encode({"schema": SCHEMA, **body})
    return Response(text.encode("utf-8", "backslashreplace"), status, media_type="application/json")


def error_answer(status: int, message: str, code: str) -> Response:
    """`error`: one line with the next step; `code`: for machines."""
    return json_answer(status, {"error": message, "code": code})


async def not_found(request: Request, error: Exception) -> Response:
    """For a path or method that there is not."""
    return error_answer(404, f"there is no {request.method} {request.url.path}: see docs/api.md", "unknown-route")


async def body_of(request: Request) -> dict[str, Any]:
    """The request's JSON object, {} where there is no body. Raises ApiProblem."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY:
            raise ApiProblem(413, f"the body is over {MAX_BODY >> 20} MiB", "too-large")
        chunks.append(chunk)
    try:
        data = json.loads(b"".join(chunks) or b"{}")
    except (ValueError, RecursionError) as error:
        raise ApiProblem(400, "the body is not JSON") from error
    if not isinstance(data, dict):
        raise ApiProblem(400, "the body is not a JSON object")
    return data


def flag_in(body: dict[str, Any], name: str, default: bool = False) -> bool:
    """A truth value of a body. Raises ApiProblem."""
    value = body.get(name, default)
    if not isinstance(value, bool):
        raise ApiProblem(400, f"{name} must be true or false")
    return value


def text_in(body: dict[str, Any], name: str, most: int) -> str:
    """A text of a body, "" where it is not there. Raises ApiProblem."""
    value = body.get(name, "")
    if not isinstance(value, str) or len(value) > most:
        raise ApiProblem(400, f"{name} must be a text of {most} characters at most")
    return value


def number_in(
    body: dict[str, Any], name: str, default: float, least: float = -MOST, most: float = MOST, *, what: str = ""
) -> float:
    """A number of a body, from `least` to `most`. `what`: it is, in words; "": its limits. Raises ApiProblem."""
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ApiProblem(400, f"{name} must be {what or f'a number from {least:g} to {most:g}'}")
    return float(value)


def number_of(text: str, name: str) -> int:
    """A whole number from a query. Raises ApiProblem."""
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise ApiProblem(400, f"{name} must be a whole number, got {text[:40]!r}")
    return int(text)


def numbers_of(text: str, most: int) -> list[int]:
    """Whole numbers and ranges, `1,4-7`, with commas between; `most` of them. Raises ApiProblem."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        start, _, end = part.partition("-")
        first = number_of(start, "ids")
        last = number_of(end, "ids") if end else first
        if last - first + len(found) >= most:
            raise ApiProblem(400, f"a request names {most} jobs at most")
        found += range(first, last + 1)
    return found


def seconds_of(request: Request, name: str, default: float) -> float:
    """So long may the answer take, MAX_WAIT_S at most. Raises ApiProblem."""
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError as error:
        raise ApiProblem(400, f"{name} must be a number of seconds, got {text[:40]!r}") from error
    return min(MAX_WAIT_S, max(0.0, value)) if value == value else default
