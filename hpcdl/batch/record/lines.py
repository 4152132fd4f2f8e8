"""The lines of a record of idle nodes, and its mark of the last poll: JSON objects. Pure.

A segment of a record begins with a start line, which names all idle nodes; a change line names those that joined and
left. A poll that saw the same as the one before has no line. docs/record.md has an example of each.
"""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from hpcdl.core.model.units import expand_nodes, fold_nodes

SCHEMA = 1


class RecordError(ValueError):
    """What is there is no record, or a damaged one; one line that names the file and the next step."""


@dataclass(frozen=True, slots=True)
class PollMark:
    """An answered poll. `at`: seconds since the epoch; `number`: of the polls of this record, from 1 on; `every_s`:
    seconds between two polls.
    """

    at: float
    number: int
    every_s: float


@dataclass(frozen=True, slots=True)
class StartLine:
    """All that idled at a poll. `system`: the batch system's name; `nodes`: how many there are, None if not known.

    `last_at`: when the poll before this one was answered, None at the record's begin. `gap`: nobody looked from then
    until now; without it the change since then is an event at `mark.at`.
    """

    mark: PollMark
    system: str
    nodes: int | None
    idle: frozenset[str]
    last_at: float | None = None
    gap: bool = False


@dataclass(frozen=True, slots=True)
class ChangeLine:
    """What a poll saw change. `every_s` of its mark is that of the start line. `nodes`: where their number changed."""

    at: float
    number: int
    joined: frozenset[str]
    left: frozenset[str]
    nodes: int | None = None


RecordLine = StartLine | ChangeLine


def text_of(line: RecordLine) -> str:
    """The line with its end."""
    if isinstance(line, StartLine):
        mark = line.mark
        values: dict[str, Any] = {"schema": SCHEMA, "at": mark.at, "poll": mark.number, "every_s": mark.every_s}
        values |= {"system": line.system, "nodes": line.nodes, "idle": _folded(line.idle)}
        if line.last_at is not None:
            values |= {"last_at": line.last_at, "gap": line.gap}
    else:
        values = {"at": line.at, "poll": line.number}
        values |= {key: _folded(names) for key, names in (("in", line.joined), ("out", line.left)) if names}
        if line.nodes is not None:
            values["nodes"] = line.nodes
    return json.dumps(values, separators=(",", ":")) + "\n"


def line_of(text: str) -> RecordLine:
    """What `text_of` wrote. Keys that are not known are passed over. Raises RecordError."""
    values = _object(text)
    at, number = _number(values, "at"), _whole(values, "poll", 1)
    if at is None or number is None:
        raise RecordError("a line without at and poll")
    nodes = _whole(values, "nodes", 0)
    if "idle" not in values:
        return ChangeLine(at, number, _names(values, "in"), _names(values, "out"), nodes)
    if values.get("schema") != SCHEMA:
        raise RecordError(f"schema {values.get('schema')!r}: written by another hpcdl, which reads it")
    mark, last_at = PollMark(at, number, _number(values, "every_s") or 0.0), _number(values, "last_at")
    if last_at is not None and last_at > at:
        raise RecordError("last_at is after at")
    system, idle = str(values.get("system", "")), _names(values, "idle")
    return StartLine(mark, system, nodes, idle, last_at, values.get("gap") is True)


def mark_text(mark: PollMark) -> str:
    """The mark as a line."""
    return json.dumps({"at": mark.at, "poll": mark.number, "every_s": mark.every_s}) + "\n"


def mark_of(text: str) -> PollMark:
    """What `mark_text` wrote. Raises RecordError."""
    values = _object(text)
    at, number, every_s = _number(values, "at"), _whole(values, "poll", 1), _number(values, "every_s")
    if at is None or number is None or every_s is None:
        raise RecordError("a mark without at, poll and every_s")
    return PollMark(at, number, every_s)


def _folded(names: Collection[str]) -> str | list[str]:
    """`n[1-4]`; a list of names where that would not be read as these again."""
    text = fold_nodes(names)
    return text if set(expand_nodes(text)) == set(names) else sorted(names)


def _names(values: Mapping[str, Any], key: str) -> frozenset[str]:
    value = values.get(key, "")
    if isinstance(value, str):
        return frozenset(expand_nodes(value))
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return frozenset(value)
    raise RecordError(f"{key} is no list of nodes")


def _object(text: str) -> Mapping[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise RecordError("no JSON") from None
    if not isinstance(values, Mapping):
        raise RecordError("no JSON object")
    return values


def _number(values: Mapping[str, Any], key: str) -> float | None:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        if value is None:
            return None
        raise RecordError(f"{key} is no number from 0 on")
    return float(value)


def _whole(values: Mapping[str, Any], key: str, low: int) -> int | None:
    value = values.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise RecordError(f"{key} is no whole number from {low} on")
    return value
