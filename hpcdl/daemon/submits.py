"""The body of a submit, checked: the same for one that comes over the API and for one that was spooled."""

from typing import Any

from hpcdl.core import commands as cmd
from hpcdl.core.codec import CodecError, from_json
from hpcdl.core.model import JobSpec


class BadSubmit(ValueError):
    """The body is not one of a submit; the message is one line."""


def submit_of(body: dict[str, Any]) -> cmd.Submit:
    """The command for `{"request_id": str, "jobs": [spec, ...]}`. Raises BadSubmit."""
    request_id, jobs = body.get("request_id"), body.get("jobs")
    if not isinstance(request_id, str) or not 1 <= len(request_id) <= 100 or not request_id.isprintable():
        raise BadSubmit("request_id must be a string of 1 to 100 printable characters")
    if not isinstance(jobs, list):
        raise BadSubmit("jobs must be a list of specs")
    try:
        specs = tuple(from_json(JobSpec, spec) for spec in jobs)
    except CodecError as error:
        raise BadSubmit(str(error)[:500]) from error
    return cmd.Submit(specs, request_id)
