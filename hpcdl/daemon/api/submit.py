"""The body of a submit, checked: the same for one that comes over the API and for one that was spooled."""

import os
from collections.abc import Mapping
from typing import Any

from hpcdl.core import commands as cmd
from hpcdl.core.arrays import Array, indices_from, indices_of
from hpcdl.core.codec import CodecError, from_json
from hpcdl.core.commands import Entry
from hpcdl.core.model import JobSpec
from hpcdl.daemon.answering import Problem

MEMBERS = ("array_index", "array_most", "sweep")
"""Fields of a spec that only members of arrays have: nobody submits them."""

_OF_ARRAY = ("indices", "sweep", "max_parallel")


class BadSubmit(Problem, ValueError):
    """The body is not one of a submit; the message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(400, message)


def submit_of(body: Mapping[str, Any]) -> cmd.Submit:
    """The command for `{"request_id": str, "jobs": [entry, ...]}` (docs/api.md). Raises BadSubmit."""
    request_id, jobs, strict = body.get("request_id"), body.get("jobs"), body.get("strict", False)
    if not isinstance(request_id, str) or not 1 <= len(request_id) <= 100 or not request_id.isprintable():
        raise BadSubmit("request_id must be a string of 1 to 100 printable characters")
    if not isinstance(jobs, list):
        raise BadSubmit("jobs must be a list of specs")
    if not isinstance(strict, bool):
        raise BadSubmit("strict must be true or false")
    try:
        entries = tuple(_entry(each) for each in jobs)
    except (CodecError, ValueError) as error:
        raise BadSubmit(str(error)[:500]) from error
    return cmd.Submit(entries, request_id, strict, nonce=os.urandom(16).hex())


def _entry(given: Any) -> JobSpec | Entry:
    if not isinstance(given, dict):
        return from_json(JobSpec, given)
    plain = dict(given)
    array, held, after = plain.pop("array", None), plain.pop("held", False), plain.pop("after_entries", [])
    for name in MEMBERS:
        plain.pop(name, None)
    spec = from_json(JobSpec, plain)
    if not isinstance(held, bool):
        raise BadSubmit("held must be true or false")
    if not isinstance(after, list) or not all(type(each) is int for each in after):
        raise BadSubmit("after_entries must be a list of places of earlier jobs in the list")
    if array in (None, 0) and not held and not after:
        return spec
    return Entry(spec, None if array in (None, 0) else array_of(array), held, tuple(after))


def array_of(given: Any) -> Array:
    """`{"indices": [1, 2] | "1-100", "sweep": {"lr": ["0.1"]}, "max_parallel": 4}`. Raises ValueError."""
    if not isinstance(given, dict):
        raise BadSubmit("array must be an object with indices, sweep or both")
    unknown = next((key for key in given if key not in _OF_ARRAY), None)
    if unknown is not None:
        raise BadSubmit(f"array has no {unknown!r}: it takes {', '.join(_OF_ARRAY)}")
    indices, sweep, most = given.get("indices"), given.get("sweep") or {}, given.get("max_parallel") or 0
    if not isinstance(sweep, dict) or type(most) is not int:
        raise BadSubmit("sweep must be an object of lists of strings, and max_parallel a whole number")
    for name, values in sweep.items():
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise BadSubmit(f"the values of the sweep {name!r} must be a list of strings")
    if isinstance(indices, str):
        chosen = indices_from(indices)
    elif isinstance(indices, list) and all(type(index) is int for index in indices):
        chosen = indices_of(indices)
    elif indices is None:
        chosen = ()
    else:
        raise BadSubmit("indices must be a list of whole numbers, or text like 1-100")
    return Array(chosen, tuple((name, tuple(values)) for name, values in sweep.items()), most)
