"""The table of jobs on a terminal, with notes where there is room, and the best of each sweep.

In a pipe a table is as `output.table_lines` has it: a line for each row, every column at its place. Loaded by tables.py
only where it is needed.
"""

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpcdl.cli.columns import ColumnSpec, metric_text, plain, spec, sweep_text
from hpcdl.cli.job_row import FINISHED, STATES, submitted_name
from hpcdl.cli.output import Column, Row, column_widths, cut, escape, table_lines, use_colour, width_of
from hpcdl.core.model.units import count, ranges

_COLOUR = re.compile(r"\x1b\[\d*m")
_GAP = 2
_NOTE_LINES = 2  # of a note that has no room beside its row
_NOTE_ROOM = 30  # columns: `12th in queue, starts in 1h20m`
_NOTHING = "-"
_ORDER = ("RUNNING", *(state for state in reversed(STATES) if state not in ("RUNNING", *FINISHED)), *FINISHED)


def noted_lines(
    columns: Sequence[Column],
    cells: Sequence[list[str]],
    notes: Sequence[str],
    width: int,
    *,
    below: bool = True,
    colour: bool | None = None,
) -> list[str]:
    """The lines of a table in `width` columns, each note beside its row, from the first cell on after which there is
    nothing but `-`; a note for which that is too little has the lines below or, not `below`, is cut. `colour`: None
    where the output says.
    """
    notes = list(map(escape, notes))
    texts = [[escape(cell) for cell in each] for each in cells]
    starts = []
    for number, note in enumerate(notes):
        start = len(columns)
        while note and start > 1 and texts[start - 1][number] == _NOTHING:
            start -= 1
            texts[start][number] = ""
        starts.append(start)
    whole = width
    if not below:  # long names leave as much of a note as says the most
        widths = column_widths(columns, texts, width)
        for note, start in zip(notes, starts, strict=True):
            after = sum(widths[start:]) + _GAP * (len(columns) - start)
            room = min(width_of(note), _NOTE_ROOM)
            whole = min(whole, width - room + after - _GAP) if note else whole
        whole = max(whole, width // 2)
    widths = column_widths(columns, texts, whole)
    begins = [sum(widths[:at]) + _GAP * at for at in range(len(widths) + 1)]
    title, *rows = table_lines(columns, texts, width=whole, colour=use_colour() if colour is None else colour)
    lines = [f"{title}  NOTE" if any(notes) and begins[-1] + len("NOTE") <= width else title]
    for row, note, start in zip(rows, notes, starts, strict=True):
        begin = begins[start]
        if not note:
            lines.append(row)
        elif width_of(note) <= width - begin or not below:
            lines.append(row + " " * (begin - width_of(_COLOUR.sub("", row))) + cut(note, max(1, width - begin)))
        else:
            wrapped = textwrap.wrap(note, max(20, width - begins[1]))
            if len(wrapped) > _NOTE_LINES:
                wrapped[_NOTE_LINES - 1] = cut(" ".join(wrapped[_NOTE_LINES - 1 :]), max(20, width - begins[1]))
            lines += [row, *(" " * begins[1] + text for text in wrapped[:_NOTE_LINES])]
    return lines


def summary(rows: Iterable[Row]) -> str:
    """`20 jobs: 4 RUNNING, 16 QUEUED; 4 GPUs held`, of rows as they were before they were folded."""
    listed = list(rows)
    held = sum(row.get("gpus") or 0 for row in listed)
    return f"{count(len(listed), 'job')}: {states_text(listed)}" + (f"; {count(held, 'GPU')} held" if held else "")


def states_text(rows: Iterable[Row]) -> str:
    """How many jobs there are in each state: `4 RUNNING, 16 QUEUED`."""
    return counts_text(Counter(str(row.get("state")) for row in rows))


def counts_text(counts: Mapping[str, int]) -> str:
    """The same of numbers by state."""
    states = (*_ORDER, *sorted(counts.keys() - {*_ORDER}))
    return ", ".join(f"{counts[state]} {state}" for state in states if counts.get(state))


# --- sweeps -----------------------------------------------------------------------------------------------------------

SWEEP_COLUMNS: tuple[ColumnSpec, ...] = (
    plain("ID", "ids", right=True, ids=True),
    spec("NAME", lambda row: row["name"], "name", shrinks=True),
    plain("JOBS", "counts"),
    plain("BEST", "best_id", right=True),
    spec("METRIC", metric_text, "metric", right=True),
    plain("VALUES", "values", shrinks=True),
)
"""What `hpcdl ls --group sweep` shows."""


def sweeps_of(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """A row for each array of these rows, in their order of ids; the first member with a metric is its best."""
    arrays: dict[int, list[Row]] = {}
    for row in rows:
        if row.get("array"):
            arrays.setdefault(row["array"], []).append(row)
    found = []
    for array, members in sorted(arrays.items()):
        best = next((row for row in members if row.get("metric") is not None), None)
        found.append(
            {
                "id": array,
                "name": submitted_name(members[0]),
                "jobs": len(members),
                "states": dict(Counter(row["state"] for row in members)),
                "best": best,
                "ids": ranges(row["id"] for row in members),
                "counts": states_text(members),
                "best_id": None if best is None else best["id"],
                "metric": None if best is None else best["metric"],
                "values": None if best is None else sweep_text(best) or f"index {best['array_index']}",
            }
        )
    return found
