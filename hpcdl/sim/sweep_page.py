"""The HTML page of a sweep: a table of means with their intervals, and every run of it."""

from collections.abc import Callable, Sequence
from html import escape

from hpcdl.core.model.units import count
from hpcdl.report.comparison import decimals, number
from hpcdl.report.html import HtmlTable, document, note, table_html
from hpcdl.report.page import long_text, percent
from hpcdl.sim.sweep import SweepRow, SweepRun

TITLE = "A sweep, simulated"
MOST_RUNS = 2_000
"""More runs than these are not listed one by one."""

_FIGURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("JCT, mean", "mean_jct_s", long_text),
    ("Against the first", "jct_vs_first", percent),
    ("JCT: bound", "bound_mean_jct_s", long_text),
    ("JCT, median", "median_jct_s", long_text),
    ("JCT, 95th percentile", "p95_jct_s", long_text),
    ("Makespan", "makespan_s", long_text),
    ("GPU utilisation", "utilisation", percent),
    ("Lost to rescaling", "lost_share", percent),
    ("Suspends", "suspends", number),
    ("Deadlines met", "deadlines_met", percent),
    ("Fairness, mean", "mean_fairness", decimals),
    ("Fairness, worst", "worst_fairness", decimals),
)


def sweep_page(rows: Sequence[SweepRow], runs: Sequence[SweepRun], first: str) -> str:
    """The page. The same runs, the same page."""
    said = (
        f"<b>Everything on this page is simulated</b>: {count(len(runs), 'run')}. Each figure is a mean over draws, "
        "± is half of a 95 % confidence interval (Student's t). Against the first: by how much the mean JCT is above "
        f"that under {escape(first)}, on the same draws."
    )
    parts = [f"<h1>{TITLE}</h1>", f'<p class="simulated">{said}</p>', table_html(_table(rows))]
    if len(runs) <= MOST_RUNS:
        parts += ["<details><summary>Every run</summary>", table_html(_all(runs)), "</details>"]
    else:
        parts.append(note(f"{len(runs)} runs are too many to list: --json has them."))
    return document(TITLE, parts, script=True)


def _names(rows: Sequence[SweepRow] | Sequence[SweepRun]) -> list[str]:
    return [name for name, _ in rows[0].setting] if rows else []


def _table(rows: Sequence[SweepRow]) -> HtmlTable:
    names = _names(rows)
    shown = [figure for figure in _FIGURES if any(figure[1] in row.figures for row in rows)]
    lines = []
    for row in rows:
        cells = [dict(row.setting)[name] for name in names] + [row.policy, str(row.draws)]
        for _, key, text in shown:
            half = row.figures.get(f"{key}_ci95")
            cells.append(text(row.figures[key]) + (f" ± {text(half)}" if half else "") if key in row.figures else "–")
        lines.append((*cells, str(row.unfair)))
    header = (*names, "Policy", "Draws", *(title for title, _, _ in shown), "Jobs above the maximal slowdown")
    return HtmlTable("Policies and settings", header, tuple(lines), frozenset(range(len(names) + 1, len(header))))


def _all(runs: Sequence[SweepRun]) -> HtmlTable:
    names = _names(runs)
    header = (*names, "Workload", "Seed", "Policy", "JCT, mean", "Makespan", "Fairness, worst", "Done")
    lines = []
    for run in runs:
        result = run.results
        texts = [dict(run.setting)[name] for name in names] + [run.draw[0], str(run.draw[1]), result.policy]
        for value, text in (
            (result.mean_jct_s, long_text),
            (result.makespan_s, long_text),
            (result.worst_fairness, decimals),
            (result.finished, number),
        ):
            texts.append("–" if value is None else text(value))
        lines.append(tuple(texts))
    return HtmlTable("Every run", header, tuple(lines), frozenset(range(len(names) + 3, len(header))))
