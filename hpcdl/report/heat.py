"""The drawing of a run that is too large for a bar per job: the share of each node's GPUs that is held, over time.

`timeline` draws the small ones.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape

from hpcdl.core.model.units import count, fold_nodes, natural
from hpcdl.report.clock import Local
from hpcdl.report.curves import Window, spread
from hpcdl.report.history import History
from hpcdl.report.html import drawing, legend, note
from hpcdl.report.names import short_names
from hpcdl.report.timeline import Scale, anchor_at

MOST_ROWS = 64
COLUMNS = 180
LEVELS = 5
LABELS = 76
_AXIS = 24
_ABSENT = -1


def heat(
    history: History,
    length: float,
    there: Mapping[str, Sequence[Window]] | None = None,
    *,
    local: Local | None = None,
) -> str:
    """The strips of one run as a fragment; `length` seconds over the whole width. Nodes beyond MOST_ROWS share rows.

    `local`: see `Scale`. `there`: when which node is there, on the history's clock; those that are not named are there
    all the time.
    """
    rows = node_rows({gpu.node for gpu in history.gpus})
    if not rows:
        return note("No GPU has joined yet.")
    levels = shares_of(history, rows, length, there or {})
    high = 18 if len(rows) <= 16 else 12 if len(rows) <= 32 else 9
    gap = 2 if high > 9 else 1
    height = high * len(rows)
    every = math.ceil(13 / high)
    texts = [_row_name(names) for names in rows]
    short = short_names(texts, 10)
    labels = [
        f'<text x="{LABELS - 6}" y="{high * row + high / 2 + 4:g}" class="row">{escape(short[texts[row]])}'
        f"<title>{escape(fold_nodes(names))}</title></text>"
        for row, names in enumerate(rows)
        if row % every == 0
    ]
    # A run of columns is a line as thick as its row without the gap.
    paths = [
        f'<path class="h{level}" stroke-width="{high - gap}" d="{_path(levels, level, high)}"/>'
        for level in range(LEVELS + 1)
    ]
    marks = "".join(
        f'<text x="{x:.2f}%" y="{height + 16}" text-anchor="{anchor_at(x)}" class="tick{_odd(number)}">{text}</text>'
        for number, (x, text) in enumerate(Scale(history.begin, length, local=local).marks())
    )
    plot = (
        f'<svg width="100%" height="{height}" viewBox="0 0 {COLUMNS} {height}" preserveAspectRatio="none" class="heat">'
        f"{''.join(paths)}</svg>{marks}"
    )
    title = "Share of GPUs held by node over time"
    return drawing("".join(labels), plot, width=LABELS, height=height + _AXIS, title=title)


def _odd(number: int) -> str:
    return " odd" if number % 2 else ""


def heat_legend() -> str:
    """The legend of the strips: what the shades mean."""
    per = 100 // LEVELS
    texts = ["idle", f"held: up to {per} %", *(f"up to {per * level} %" for level in range(2, LEVELS)), "more"]
    return legend(
        ("heat", f'<path class="h{level}" stroke-width="14" d="M0 7h26"/>', text) for level, text in enumerate(texts)
    )


def node_rows(nodes: set[str]) -> list[list[str]]:
    """Nodes in the order of their names and numbers, at most MOST_ROWS rows of neighbours."""
    ordered = sorted(nodes, key=natural)
    per = math.ceil(len(ordered) / MOST_ROWS)
    return [ordered[first : first + per] for first in range(0, len(ordered), per or 1)]


def _row_name(names: Sequence[str]) -> str:
    text = names[0] if len(names) == 1 else fold_nodes(names)
    return text if len(names) == 1 or len(text) <= 10 else count(len(names), "node")


def shares_of(
    history: History, rows: Sequence[Sequence[str]], length: float, there: Mapping[str, Sequence[Window]]
) -> list[list[int]]:
    """By row and column: 0 for idle, 1 to LEVELS for the share of GPUs held, -1 where no node of the row is there."""
    row_of = {name: row for row, names in enumerate(rows) for name in names}
    gpus: dict[str, int] = {}
    for gpu in history.gpus:
        gpus[gpu.node] = gpus.get(gpu.node, 0) + 1
    held = [[0.0] * COLUMNS for _ in rows]
    possible = [[0.0] * COLUMNS for _ in rows]
    scale = COLUMNS / length if length > 0 else 0.0

    def add(to: list[list[float]], windows: Mapping[tuple[int, Window], int]) -> None:
        for (row, window), number in windows.items():
            begin, end = (scale * (min(at, history.end) - history.begin) for at in window)
            spread(begin, end, number, to[row])

    # What begins and ends together in a row is spread at once: the GPUs of a job on a node, for one.
    whole: Counter[tuple[int, Window]] = Counter()
    for node, number in gpus.items():
        for window in there.get(node, ((history.begin, history.end),)):
            whole[row_of[node], window] += number
    add(possible, whole)
    add(held, Counter((row_of[span.node], (span.start_at, span.end_at)) for span in history.spans))
    return [
        [_level(part, whole) for part, whole in zip(parts, wholes, strict=True)]
        for parts, wholes in zip(held, possible, strict=True)
    ]


def _level(part: float, whole: float) -> int:
    if whole <= 1e-9:
        return _ABSENT
    share = min(1.0, part / whole)
    return 0 if share < 1e-3 else max(1, math.ceil(share * LEVELS - 1e-6))


def _path(levels: Sequence[Sequence[int]], level: int, high: int) -> str:
    parts = []
    for row, columns in enumerate(levels):
        y = f"{high * row + high / 2:g}"
        begin = None
        for column, here in enumerate([*columns, None]):
            if here == level and begin is None:
                begin = column
            elif here != level and begin is not None:
                parts.append(f"M{begin} {y}h{column - begin}")
                begin = None
    return "".join(parts)
