"""Jobs and incarnations as flat records: every value is a field of its own, under the name that it was first stored by.

The rows of retired jobs are such, jobs in snapshots of format 9, and incarnations too in those of format 8. A row is
compared with what the events say, byte by byte: a name or its place below never changes. `snapshots` and `records` call
this; nothing else knows the old names.
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

_OF_JOBS: dict[str, dict[str, str]] = {
    "end": {"state": "outcome", "at": "finished_at"},
    "verdict": {"state": "final", "detail": "final_detail"},
    "drill": {"result": "drill", "at": "drilled_at"},
}
"""The same of jobs."""

_ALWAYS: dict[str, dict[str, str]] = {
    "progress": {"step": "step", "total": "total", "saved_step": "saved_step", "accuracy": "accuracy"},
    "failures": {
        "total": "failures", "retries_used": "retries_used", "repeats": "repeats", "signature": "last_failure",
        "retry_at": "retry_at",
    },
    "last": {"cause": "last_cause", "detail": "last_detail", "exit_code": "exit_code", "placement": "last"},
    "costs": {"start_s": "startup_s", "save_s": "last_save_s"},
}  # fmt: skip
"""The same of values that every job has."""

_ROW = (
    "id", "spec", "submitted_at", "outcome", "live", "last_incarnation", "held", "cancelling", "step", "total",
    "saved_step", "first_start_at", "finished_at", "suspended", "can_suspend", "suspends", "failures", "retries_used",
    "repeats", "last_failure", "retry_at", "last_cause", "last_detail", "last_save_s", "exit_code", "warm_failed",
    "final", "final_detail", "held_gpu_s", "accuracy", "last", "drill", "drilled_at", "expectation", "beginning",
    "startup_s", "nonce", "annotations",
)  # fmt: skip
"""The fields of a retired job's row, in their order. One that a job gets later follows them, as it is."""


_WITHOUT = {"final_detail": ""}
"""What a field is where its value is None, if it is not None."""


def nested_incarnation(flat: Stored) -> Stored:
    """An incarnation as it is stored now, from the flat one."""
    return flat | _values(flat, _OF_INCARNATIONS)


def nested_job(flat: Stored) -> Stored:
    """A job as it is stored now, from one that is flat; its incarnations are left as they are."""
    always = {field: _present(flat, names) for field, names in _ALWAYS.items()}
    return flat | _values(flat, _OF_JOBS) | always


def flat_job(job: Stored) -> Stored:
    """The fields of a row, in order, from a job as `to_json` has it."""
    flat = dict(job)
    for field, names in (_OF_JOBS | _ALWAYS).items():
        value = flat.pop(field)
        flat |= {name: _WITHOUT.get(name) if value is None else value[part] for part, name in names.items()}
    return {name: flat.pop(name) for name in _ROW} | flat


def _values(flat: Stored, names: dict[str, dict[str, str]]) -> Stored:
    return {
        field: None if flat.get(next(iter(parts.values()))) is None else _present(flat, parts)
        for field, parts in names.items()
    }


def _present(flat: Stored, parts: dict[str, str]) -> Stored:
    return {part: flat[name] for part, name in parts.items() if name in flat}
