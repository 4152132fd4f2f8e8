"""The papers' tables as an HTML page: our figures beside the printed ones.

Figures are formatted by their keys: `_s` is seconds, the names in `_SHARES` are shares, `_ci95` is half an interval.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, TypeGuard

from hpcdl.report.html import HtmlTable, document, note, table_html
from hpcdl.report.printed import Cell, Pair, bars, bars_legend, beside_table
from hpcdl.sim.papers.printed import TITLE as TITLE_PRINTED
from hpcdl.sim.papers.printed import summary, verdict
from hpcdl.sim.papers.table import PaperRow, PaperTable

TITLE = "The papers' tables, simulated"
_INTERVAL = "_ci95"
_SHARES = ("share", "vs_", "reduction", "gain", "overhead", "over_", "qos", "utilisation", "error", "held")
_WORDS = {"jct": "JCT", "qos": "QoS", "gpus": "GPUs", "gpu": "GPU", "p95": "95th percentile", "job1": "job 1"}
_WORDS |= {"job2": "job 2", "vs": "against", "s": "", "ect": "ECT"}
_SAID = (
    '<p class="simulated"><b>Everything of ours on this page is simulated</b>, on the papers\' workloads as far as '
    "they print them. Figures marked “paper” are printed there, with our difference to them. ± is half of a 95 % "
    "confidence interval.</p>"
)


def papers_page(tables: Sequence[PaperTable], printed: Sequence[Mapping[str, Any]] = ()) -> str:
    """One page for all tables, before them the rows of `printed_rows`. The same tables, the same page."""
    links = f'<li><a href="#printed">{escape(TITLE_PRINTED)}</a></li>' if printed else ""
    links += "".join(f'<li><a href="#t{place}">{escape(table.name)}</a></li>' for place, table in enumerate(tables, 1))
    parts = [
        f"<h1>{escape(TITLE)}</h1>",
        _SAID,
        f'<ul class="notes">{links}</ul>' if tables else note("There is no table."),
    ]
    if printed:
        parts += ['<section id="printed">', table_html(_printed(printed)), note(summary(printed)), "</section>"]
    for place, table in enumerate(tables, 1):
        parts += [f'<section id="t{place}">', f"<h2>{escape(table.name)}</h2>"]
        if table.notes:
            parts.append(f'<ul class="notes">{"".join(f"<li>{escape(text)}</li>" for text in table.notes)}</ul>')
        drawn = [bars(_title(key), pairs) for key, pairs in _pairs(table)]
        if drawn:
            parts += [bars_legend(), f'<div class="bars">{"".join(drawn)}</div>']
        parts += [_table(table), "</section>"]
    return document(TITLE, parts)


def _printed(rows: Sequence[Mapping[str, Any]]) -> HtmlTable:
    header = ("Paper", "Figure", "What", "Printed in the paper", "Here", "Met, missed", "Fitted")
    texts = []
    for row in rows:
        value = row["printed"]
        value_text = " to ".join(f"{each:g}" for each in value) if isinstance(value, list) else f"{value:g}"
        here = "–" if row["here"] is None else f"{row['here']:.4g}"
        texts.append((row["paper"], row["figure"], row["what"], value_text, here, verdict(row), row["fitted"] or ""))
    return HtmlTable(TITLE_PRINTED, header, tuple(texts), frozenset({3, 4}))


def _figures(row: PaperRow) -> dict[str, Any]:
    return {"makespan_s": row.makespan_s, "mean_jct_s": row.mean_jct_s, **row.more}


def _keys(table: PaperTable) -> list[str]:
    """Columns in the order in which they come; what only the paper prints at the end."""
    own = [key for row in table.rows for key in _figures(row)]
    theirs = [key for row in table.rows for key in row.paper]
    return [key for key in dict.fromkeys(own + theirs) if not key.endswith(_INTERVAL)]


def _table(table: PaperTable) -> str:
    keys = _keys(table)
    rows = [((row.workload, row.policy), [_cell(key, row) for key in keys]) for row in table.rows]
    return beside_table(("Workload", "Policy", *(_title(key) for key in keys)), rows)


def _cell(key: str, row: PaperRow) -> Cell:
    figures = _figures(row)
    ours, printed, half = figures.get(key), row.paper.get(key), figures.get(key + _INTERVAL)
    text = _text(key, ours)
    if _is_number(half) and half:
        text += f" ± {_text(key, half)}"
    return Cell(text, "" if printed is None else _text(key, printed), _difference(key, ours, printed))


def _pairs(table: PaperTable) -> list[tuple[str, list[Pair]]]:
    """For each figure that both have in some rows, those rows."""
    found = []
    for key in _keys(table):
        pairs = []
        for row in table.rows:
            ours, printed = _figures(row).get(key), row.paper.get(key)
            if _is_number(ours) and _is_number(printed):
                label = f"{row.workload} · {row.policy}"
                pairs.append(Pair(label, ours, _text(key, ours), printed, _text(key, printed)))
        if pairs:
            found.append((key, pairs))
    return found


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_share(key: str) -> bool:
    return not key.endswith("_s") and any(part in key for part in _SHARES)


def _title(key: str) -> str:
    """`jct_vs_default` -> `JCT against default`; `makespan_s` -> `Makespan, s`."""
    words = [_WORDS.get(word, word) for word in key.split("_")]
    text = " ".join(word for word in words if word)
    return text[:1].upper() + text[1:] + (", s" if key.endswith("_s") else "")


def _text(key: str, value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if not _is_number(value):
        return str(value)
    if key.endswith("_s"):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}"
    if _is_share(key):
        return f"{100 * value:.1f} %"
    return f"{value:g}" if isinstance(value, int) else f"{value:.4g}"


def _difference(key: str, ours: Any, printed: Any) -> str:
    """Of shares in percentage points, of everything else in per cent of what is printed."""
    if not (_is_number(ours) and _is_number(printed)):
        return ""
    if _is_share(key):
        text = f"{100 * (ours - printed):+.1f}"
        return "the same" if float(text) == 0 else f"{text} points"
    if not printed:
        return ""
    text = f"{100 * (ours / printed - 1):+.1f}"
    return "the same" if float(text) == 0 else f"{text} %"
