"""Columns that `hpcdl ls` and `top` can show of jobs, by name: their cells, the keys that they need, and their order.

Nodes and GPUs have theirs in tables.py. Members of one array that are in the same state are folded into one row.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from hpcdl.cli.job_row import (
    annotations_text,
    asked_text,
    links_text,
    moment_text,
    nodes_text,
    placement_text,
    short_eta_text,
    step_text,
    submitted_name,
    tags_text,
)
from hpcdl.cli.output import AS_OF, Column, Row, value_column
from hpcdl.core.model.units import count, meant, ranges, seconds_text, short_seconds_text
from hpcdl.daemon.clock import WallClock


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A column with a name: the `keys` of a row that it needs, and the `order` of rows by it (None is last)."""

    column: Column
    keys: tuple[str, ...]
    order: Callable[[Row], Any]
    text: Callable[[Any], str] | None = None  # of its one value, where no cell is the same as another and none is empty

    def texts(self, values: Mapping[str, Sequence[Any]], number: int) -> list[str]:
        """The cells of `number` rows that come by column: a list of `values` for each key that any row has."""
        cell, keys = self.column.cell, [key for key in self.keys if key in values]
        if not keys:
            return [cell({})] * number
        first = {key: values[key][0] for key in keys} if number else {}
        if number and all(values[key].count(value) == number for key, value in first.items()):
            return [cell({key: value for key, value in first.items() if value is not None})] * number
        if len(keys) == 1:
            (key,) = keys
            if self.text is not None:
                return list(map(self.text, values[key]))
            try:
                known = {value: cell({} if value is None else {key: value}) for value in set(values[key])}
            except TypeError:  # they have no hash
                return [cell({} if value is None else {key: value}) for value in values[key]]
            return [known[value] for value in values[key]]
        rows = list(zip(*(values[key] for key in keys), strict=True))
        told = {
            row: cell({key: value for key, value in zip(keys, row, strict=True) if value is not None})
            for row in set(rows)
        }
        return [told[row] for row in rows]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of row (job, node, GPU): its columns by name, and named formats, of which `default` is one."""

    what: str
    columns: Mapping[str, ColumnSpec]
    formats: Mapping[str, tuple[str, ...]]

    def chosen(self, columns: str | None, form: str) -> list[ColumnSpec]:
        """The columns that `--columns` names, else those of a format. Raises UsageError, which lists what there is."""
        if columns is None:
            return [self.columns[name] for name in self.formats[one_of(form, self.formats, "format", self.what)]]
        names = [name.strip().lower() for name in columns.split(",") if name.strip()]
        if not names:
            raise click.UsageError(f"--columns names none: {', '.join(self.columns)}", click.get_current_context())
        return [self.columns[one_of(name, self.columns, "column", self.what)] for name in names]

    def sort(self, rows: Iterable[Row], key: str | None) -> list[Row]:
        """The rows in the order of a column, reversed by `-` before its name; rows without a value come last."""
        listed = list(rows)
        if key is None:
            return listed
        name = one_of(key.removeprefix("-").lower(), self.columns, "column to sort by", self.what)
        order = self.columns[name].order
        known = [row for row in listed if order(row) is not None]
        known.sort(key=order, reverse=key.startswith("-"))
        return known + [row for row in listed if order(row) is None]

    def needs(self, shown: Iterable[ColumnSpec], key: str | None, more: Iterable[str] = ()) -> str:
        """The keys of rows that these columns, and a sort by `key`, need: the parameter `fields` of the API."""
        name = (key or "").removeprefix("-").lower()
        by = [self.columns[name]] if name in self.columns else []
        return ",".join(dict.fromkeys([*more, *(key for each in (*shown, *by) for key in each.keys)]))


def one_of(name: str, known: Mapping[str, Any], kind: str, what: str) -> str:
    """The name, if it is known. Raises UsageError, with the nearest ones, else with all that there are."""
    if name not in known:
        hint = meant(name, known, ", ".join(known), most=3, cutoff=0.7)
        raise click.UsageError(f"{what} have no {kind} {name!r}: {hint}", click.get_current_context())
    return name


def spec(
    title: str, cell: Callable[[Row], str], *keys: str, order: Callable[[Row], Any] | None = None, **more: Any
) -> ColumnSpec:
    """A column whose cell is computed from these keys; rows are sorted by `order`, else by the first key."""
    return ColumnSpec(Column(title, cell, **more), keys, order or (lambda row: row.get(keys[0])))


def plain(title: str, key: str, text: Callable[[Any], str] | None = None, **more: bool) -> ColumnSpec:
    """A column with the text of one value, `-` where there is none."""
    return ColumnSpec(value_column(title, key, text or text_of, **more), (key,), lambda row: row.get(key))


def number(title: str, key: str, text: Callable[[Any], str] | None = None) -> ColumnSpec:
    """The same, aligned to the right."""
    return plain(title, key, text, right=True)


def text_of(value: Any) -> str:
    """A value's text: `-` for nothing, `yes` and `no`, numbers in short."""
    if value is None or value == "":
        return "-"
    if value is True or value is False:
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _size(row: Row) -> tuple[int, int]:
    return int(row.get("gpus") or 0), int(row.get("gpus_min") or 0) * int(row.get("nodes") or 1)


def _done(row: Row) -> float | None:
    step, total = row.get("step"), row.get("total")
    return None if step is None or not total else step / total


def _done_text(row: Row) -> str:
    return "-" if (part := _done(row)) is None else f"{100 * part:.0f} %"


def _progress_text(row: Row) -> str:
    """Steps done of all; where that is long, in percent."""
    text = step_text(row)
    return text if len(text) <= _LONGEST_PROGRESS or not row.get("total") else _done_text(row).replace(" ", "")


def _state_text(row: Row) -> str:
    """Its state; of a folded row `16 QUEUED`."""
    return f"{row['jobs']} {row['state']}" if row.get("jobs") else str(row.get("state", ""))


def now_told() -> float:
    """When what is printed is true, in seconds since the epoch: now, or where no daemon answers, as of the ledger."""
    ctx = click.get_current_context(silent=True)
    return (ctx.meta.get(AS_OF) if ctx is not None else None) or WallClock(0.0).now()


def _elapsed_s(row: Row) -> float | None:
    """The seconds since its first start, up to its end, or to when the answer is true."""
    start = row.get("started_at")
    end = row.get("finished_at")
    return None if start is None else max(0.0, (now_told() if end is None else end) - start)


def _elapsed_text(row: Row) -> str:
    return "-" if (seconds := _elapsed_s(row)) is None else short_seconds_text(seconds)


def metric_text(row: Row) -> str:
    """Its metric; `nan` where that, or its loss, is not finite any more."""
    if row.get("metric") is None:
        return "-" if row.get("not_finite_since") is None else "nan"
    return f"{row['metric']:.4g}"


def sweep_text(row: Row) -> str:
    """The values of a member of a sweep: `lr=0.1 wd=0`."""
    return " ".join(f"{key}={value}" for key, value in (row.get("sweep") or {}).items())


_LONGEST_PROGRESS = 11


def _nodes(row: Row) -> list[str] | None:
    return sorted(row.get("placement") or ()) or None


def _gpus_text(row: Row) -> str:
    low = row.get("gpus_min", 1)
    if low == row.get("gpus_max") and row.get("nodes", 1) == 1 and row.get("nodes_max", 1) == 1:  # nearly all
        return f"{row.get('gpus') or 0}/{low}"
    return f"{row.get('gpus') or 0}/{asked_text(row)}"


_ASKED = ("gpus", "gpus_min", "gpus_max", "nodes", "nodes_max")

_JOBS: dict[str, ColumnSpec] = {
    "id": ColumnSpec(
        Column("ID", lambda row: str(row["id"]), right=True, ids=True), ("id",), lambda row: row["id"], str
    ),
    "name": ColumnSpec(
        Column("NAME", lambda row: row.get("name", ""), shrinks=True), ("name",), lambda row: row.get("name"), str
    ),
    "user": plain("USER", "user"),
    "state": spec("STATE", _state_text, "state", coloured=True),
    "gpus": spec("GPUS", _gpus_text, *_ASKED, order=_size, right=True),
    "nodes": spec("NODES", nodes_text, "placement", order=_nodes, shrinks=True),
    "placement": spec(
        "PLACEMENT", lambda row: placement_text(row.get("placement")) or "-", "placement", order=_nodes, shrinks=True
    ),
    "role": plain("ROLE", "role"),
    "profile": plain("PROFILE", "profile", shrinks=True),
    "step": spec("STEP", step_text, "step", "total", order=_done, right=True),
    "total": number("TOTAL", "total"),
    "done": spec("DONE", _done_text, "step", "total", order=_done, right=True),
    "elapsed": ColumnSpec(Column("ELAPSED", _elapsed_text, right=True), ("started_at", "finished_at"), _elapsed_s),
    "progress": spec("PROGRESS", _progress_text, "step", "total", order=_done, right=True),
    "metric": spec(
        "METRIC", metric_text, "metric", "not_finite_since", order=lambda row: row.get("metric"), right=True
    ),
    "eta": spec("ETA", lambda row: short_eta_text(row) or "-", "eta_s", "eta_low_s", "eta_high_s", right=True),
    "note": spec("NOTE", lambda row: row.get("note") or "", "note"),
    "reason": spec("REASON", lambda row: row.get("reason") or "", "reason", shrinks=True),
    "submitted": plain("SUBMITTED", "submitted_at", moment_text),
    "started": plain("STARTED", "started_at", moment_text),
    "finished": plain("FINISHED", "finished_at", moment_text),
    "wait": number("WAITED", "wait_s", seconds_text),
    "jct": number("JCT", "jct_s", seconds_text),
    "attempt": number("ATTEMPT", "incarnation"),
    "incarnation": number("ATTEMPT", "incarnation"),
    "saved": number("SAVED", "saved_step"),
    "suspends": number("SUSPENDS", "suspends"),
    "failures": number("FAILURES", "failures"),
    "retries": number("RETRIES", "retries_used"),
    "held": plain("HELD", "held"),
    "cause": plain("CAUSE", "cause"),
    "exit": number("EXIT", "exit_code"),
    "detail": plain("DETAIL", "detail", shrinks=True),
    "rescale": plain("RESCALE", "rescale"),
    "weight": number("WEIGHT", "weight"),
    "priority": number("PRIORITY", "priority"),
    "queue": number("QUEUE", "queue_position"),
    "annotations": ColumnSpec(
        Column("ANNOTATIONS", lambda row: annotations_text(row) or "-", shrinks=True),
        ("annotations",),
        annotations_text,
    ),
    "tags": ColumnSpec(Column("TAGS", lambda row: tags_text(row) or "-", shrinks=True), ("tags",), tags_text),
    "links": ColumnSpec(Column("LINKS", lambda row: links_text(row) or "-", shrinks=True), ("links",), links_text),
    "sweep": ColumnSpec(
        Column("SWEEP", lambda row: sweep_text(row) or "-", shrinks=True),
        ("sweep",),
        lambda row: sweep_text(row) or None,
    ),
    "array": number("ARRAY", "array"),
    "index": number("INDEX", "array_index"),
}

JOBS = Kind(
    "jobs",
    _JOBS,
    {
        "default": ("id", "name", "state", "gpus", "elapsed", "progress", "metric", "eta", "note"),
        "long": (
            *("id", "name", "user", "state", "priority", "gpus", "placement", "role", "step", "saved", "eta"),
            *("submitted", "started", "finished", "wait", "suspends", "failures", "reason"),
        ),
        "times": ("id", "name", "state", "submitted", "started", "finished", "wait", "jct", "eta"),
        "gpus": ("id", "name", "state", "gpus", "role", "placement", "profile", "done", "eta"),
        "ends": ("id", "name", "state", "exit", "cause", "failures", "retries", "suspends", "saved", "detail"),
    },
)
"""What `hpcdl ls` shows of jobs."""

_APART = ("RUNNING", "STARTING", "RESCALING", "SUSPENDING")
"""Whoever holds GPUs has a line of its own."""

_PLACE = re.compile(r"(?:^|; )((\d+)[a-z]{2} in (?:the )?queue[^;]*|more than \d+ jobs are before it)$")
"""The place in the queue at the end of a reason: each member has its own."""

_ALIKE = ("state", "gpus_min", "gpus_max", "nodes", "nodes_max", "user")


def folded(rows: Iterable[Row]) -> list[Row]:
    """The rows with one for all members of an array that are in the same state and hold no GPUs, where the first stood.

    In the place of its id are theirs, `14-111`, as every command takes them; `jobs` is how many they are. The name says
    what differs: `sweep[1-5,lr=0.1..0.001]`.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row.get("array") and row.get("array_index") is not None and row.get("state") not in _APART:
            diverged = row.get("not_finite_since") is not None
            key: tuple[Any, ...] = (row["array"], diverged, *(row.get(each) for each in _ALIKE))
        else:
            key = ("job", row["id"])
        groups.setdefault(key, []).append(row)
    return [rows[0] if len(rows) == 1 else _one(rows) for rows in groups.values()]


def _reason(row: Row, key: str) -> str:
    """The reason as it holds for the whole array: a hint that ends in the member's own id names the array instead."""
    reason, own = str(row.get(key) or ""), f" {row['id']}"
    if "hpcdl " in reason and reason.endswith(own):
        return f"{reason.removesuffix(own)} --array {row['array']}"
    return _PLACE.sub("", reason)


def _one(rows: Sequence[Row]) -> Row:
    return {
        **rows[0],
        "id": ranges(row["id"] for row in rows),
        "name": array_name(rows),
        "jobs": len(rows),
        "reason": _reasons(rows, "reason"),
        "note": _reasons(rows, "note"),
        **dict.fromkeys(("step", "metric", "eta_s", "started_at")),
    }


def array_name(rows: Sequence[Row]) -> str:
    """What members of one array are called together: `sweep[1-5,lr=0.1..0.001]`."""
    return f"{_stem(rows)}[{','.join(_differences(rows))}]"


def _reasons(rows: Sequence[Row], key: str) -> str:
    """What holds for all of them, with the place in the queue of the first."""
    places = [
        (int(found[2]), found[1]) for row in rows if (found := _PLACE.search(str(row.get(key) or ""))) and found[2]
    ]
    reasons = [_reason(row, key) for row in rows]
    said = list(dict.fromkeys(each for each in reasons if each)) or [""]
    text = said[0] if len(said) == 1 else f"{said[0]} (and {count(len(said) - 1, 'other reason')}: --no-fold)"
    if text and len(said) == 1 and "" in reasons:
        text = f"{len(rows) - reasons.count('')} of {len(rows)} {text}"
    first = f"{'the first is ' if key == 'reason' else ''}{min(places)[1]}" if places else ""
    return f"{text}{'; ' if text and first else ''}{first}"


def _differences(rows: Sequence[Row]) -> list[str]:
    """In what the members of an array differ: their indices, and their values by sweep."""
    sweeps: dict[str, dict[str, None]] = {}
    for row in rows:
        for name, value in (row.get("sweep") or {}).items():
            sweeps.setdefault(name, {})[value] = None
    indices = {int(row["array_index"]) for row in rows}
    found = [] if sweeps and len(indices) == len(rows) else [ranges(indices)]
    for name, values in sweeps.items():
        listed = list(values)
        found.append(f"{name}={','.join(listed) if len(listed) <= _LISTED else '..'.join(_ends(listed))}")
    return found


_LISTED = 2
"""So many values of a sweep are named; of more, the first and the last."""


def _ends(values: Sequence[str]) -> tuple[str, str]:
    """The first and the last value; of numbers that neither rise nor fall, for a sweep began anew among these members,
    the smallest and the largest."""
    try:
        numbers = [float(each) for each in values]
    except ValueError:
        return values[0], values[-1]
    if numbers in (rising := sorted(numbers), rising[::-1]):
        return values[0], values[-1]
    return values[numbers.index(rising[0])], values[numbers.index(rising[-1])]


def _stem(rows: Sequence[Row]) -> str:
    """What the names of members have in common, without the index that follows."""
    names = [str(row.get("name", "")) for row in rows]
    if rows[0].get("sweep") and (base := submitted_name(rows[0])) != names[0]:
        return base
    first, last = min(names), max(names)
    length = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(map(len, names)))
    alike = first[:length].rstrip("0123456789")
    opened = max(alike.rfind(mark) for mark in "[{(")
    if opened > max(alike.rfind(mark) for mark in "]})"):
        alike = alike[:opened]  # `train[lr=0.1]`, `train[lr=0.2]`: what is in the brackets is not alike
    return alike or "member"
