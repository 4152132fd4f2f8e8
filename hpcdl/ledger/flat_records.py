"""Jobs and incarnations as flat records: every value is a field of its own, under the name that it was first stored by.

Snapshots of format 8 and the rows of retired jobs are such. A row is compared with what the events say, byte by byte:
a name or its place below never changes. `snapshots` and `records` call this; nothing else knows the old names.
"""

from typing import Any

Stored = dict[str, Any]

_OF_INCARNATIONS: dict[str, dict[str, str]] = {
    "training_start": {"at": "begun_at", "took_s": "startup_s"},
    "progress": {
        "at": "progressed_at", "step": "progressed_step", "ready_at": "ready_at", "ready_step": "ready_step",
    },
    "checkpoint": {"step": "saved_step", "final": "saved_final"},
    "stall": {"at": "stalled_at", "what": "stalled_what", "restart": "stalled_restart"},
    "last_rescale": {"at": "reformed_at", "took_s": "reform_s"},
    "stop": {"at": "asked_at", "purpose": "purpose", "cause": "ending", "detail": "ending_detail"},
}  # fmt: skip
"""The flat names of the fields of each value, by the value's field. It is None where the first of these is."""


def nested_incarnation(flat: Stored) -> Stored:
    """An incarnation as it is stored now, from the flat one."""
    return flat | _values(flat, _OF_INCARNATIONS)


def nested_job(flat: Stored) -> Stored:
    """A job as it is stored now, from the flat one."""
    return flat | {"live": [nested_incarnation(each) for each in flat.get("live", ())]}


def _values(flat: Stored, names: dict[str, dict[str, str]]) -> Stored:
    found: Stored = {}
    for field, parts in names.items():
        first = next(iter(parts.values()))
        there = flat.get(first) is not None
        found[field] = {part: flat[name] for part, name in parts.items() if name in flat} if there else None
    return found
