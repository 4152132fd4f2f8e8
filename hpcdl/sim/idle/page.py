"""A machine's idle nodes as one HTML page: BFTrainer's table 1, figures 1 and 6, and what pilots would have got."""

import numpy as np

from hpcdl.batch.record.pieces import IdleRecord
from hpcdl.core.model.units import count
from hpcdl.report.charts import HEIGHT, TOP, Axis, StepCurve, chart, curve_legend, framed, rungs_up_to
from hpcdl.report.curves import BINS, StepFunction
from hpcdl.report.html import HtmlTable, document, html, note, table_html, visible
from hpcdl.sim.idle.table import HOUR_S, WINDOW_H, IdleTable, IdleWindow

_PRINTED = (
    ("Summit, 2 months (paper)", "41.7", "28.6", "11.1 %", "524"),
    ("Theta, 1 year (paper)", "6.3", "6.2", "12.5 %", "547"),
    ("Mira, 1 year (paper)", "2.8", "2.4", "10.3 %", "5071"),
)
"""Table 1 as the paper has it."""
_LONGEST_S = 7200.0
"""Where the axis of figure 1 ends."""
_MOST_LABELS = 15
"""Of more bars the numbers above them would hide each other."""
_LABEL_PX = 16
"""How high they are."""


def idle_page(record: IdleRecord, table: IdleTable, name: str) -> str:
    """One self-contained HTML file. `name`: of the record or the trace. The same values, the same page."""
    title = f"Idle nodes of {name}"
    axis = Axis(0.0, record.spans[-1][1] - record.spans[0][0])
    lengths = ["by count", "by node × time"]
    parts = [
        f"<h1>{html(title)}</h1>",
        note(_summary(table), "figures"),
        table_html(_table(table)),
        note(
            "INC/h, DEC/h: events an hour at which at least one node joined the idle ones, or left them. eq-Nodes: "
            "nodes that would give the same node-hours if they idled all the time. The paper: BFTrainer, arXiv "
            "2106.12091, table 1."
        ),
        curve_legend(lengths) if table.cdf else "",
        '<div class="charts">',
        chart(
            "How long nodes idle (figure 1)",
            "share of the pieces that are not longer",
            [StepCurve(each, _distribution(table, 1 + place), place) for place, each in enumerate(lengths)],
            Axis(0.0, _LONGEST_S),
            shares=True,
        ),
        _bars(table),
        chart("Idle nodes", "means over the time; no line in gaps, where nobody looked", _idle(record), axis),
        "</div>",
        "<h2>What pilots would have got</h2>",
        note("If each idle node trains from so long after it began to idle until it is wanted."),
        table_html(_harvest(table)),
    ]
    return document(visible(title, 200), parts)


def _summary(table: IdleTable) -> str:
    gaps = f" without {count(table.gaps, 'gap')} of {table.gap_hours:.4g} h in all" if table.gaps else ""
    mean = "" if table.equivalent_nodes is None else f", {table.equivalent_nodes:.1f} nodes on average"
    of_all = "" if table.ratio is None else f" ({100 * table.ratio:.1f} % of {table.nodes})"
    return (
        f"{table.hours:.4g} h{gaps}: {table.idle_node_hours:.1f} idle node-hours{mean}{of_all}, in {table.pieces} "
        f"pieces, of which {table.cut} are cut by an end or a gap; {table.events} changes."
    )


def _table(table: IdleTable) -> HtmlTable:
    def number(value: float | None, form: str) -> str:
        return "–" if value is None else form.format(value)

    ratio = None if table.ratio is None else 100 * table.ratio
    ours = (
        f"here, {table.hours:.4g} h",
        number(table.inc_per_hour, "{:.2f}"),
        number(table.dec_per_hour, "{:.2f}"),
        number(ratio, "{:.1f} %"),
        number(table.equivalent_nodes, "{:.1f}"),
    )
    return HtmlTable("Table 1", ("", "INC/h", "DEC/h", "Ratio", "eq-Nodes"), (ours, *_PRINTED), frozenset(range(1, 5)))


def _harvest(table: IdleTable) -> HtmlTable:
    rows = tuple(
        (f"{each.startup_s:g} s", f"{100 * each.share:.1f} %", f"{each.node_hours:.1f}", str(each.pilots))
        for each in table.harvest
    )
    return HtmlTable(
        "", ("After", "Of the idle time", "Node-hours", "Pieces that last so long"), rows, frozenset(range(4))
    )


def _distribution(table: IdleTable, column: int) -> StepFunction:
    rows = [row for row in table.cdf if 60 * row[0] <= _LONGEST_S]
    if rows and rows[0][0] > 0:
        rows.insert(0, (0.0, 0.0, 0.0))
    return StepFunction(tuple(60 * row[0] for row in rows), tuple(row[column] for row in rows), _LONGEST_S)


def _idle(record: IdleRecord) -> list[StepCurve]:
    """The number of idle nodes over the time since the record began, a curve for each span."""
    origin, end = record.spans[0][0], record.spans[-1][1]
    changes: list[list[tuple[float, int]]] = [[(begin, 0)] for begin, _ in record.spans]
    for piece in record.pieces:
        changes[piece.span] += (piece.begin, 1), (piece.end, -1)
    curves = []
    for (begin, until), found in zip(record.spans, changes, strict=True):
        if until > begin:
            times, where = np.unique([at for at, _ in found], return_inverse=True)
            counts = np.cumsum(np.bincount(where, [more for _, more in found], len(times)))[times < until]
            steps = StepFunction(tuple((times[times < until] - begin).tolist()), tuple(counts.tolist()), until - begin)
            steps = steps.thinned(max(1, round(BINS * (until - begin) / (end - origin))))
            moved = tuple(at + (begin - origin) for at in steps.times)
            curves.append(StepCurve("", StepFunction(moved, steps.values, until - origin), 0))
    return curves


def _bars(table: IdleTable) -> str:
    """Figure 6: events in twelve hours each, the share of idle nodes above."""
    windows = table.windows
    most = max(each.events for each in windows)
    labelled = len(windows) <= _MOST_LABELS
    rungs = rungs_up_to(most / (1 - _LABEL_PX / HEIGHT) if labelled else most)
    hours = max(windows[-1].until_h, WINDOW_H)

    def high(value: float) -> float:
        return TOP + HEIGHT * (1 - value / rungs[-1])

    drawn = "".join(_bar(each, high(each.events), hours) for each in windows if each.events)
    for number, each in enumerate(windows if labelled else ()):
        x = 50 * (each.from_h + each.until_h) / hours
        odd = ' class="odd"' if number % 2 else ""  # not drawn where the page is narrow
        drawn += (
            f'<g{odd}><text x="{x:.2f}%" y="{high(each.events) - 4:.1f}" text-anchor="middle" class="tick">'
            f"{_label(each)}</text></g>"
        )
    for place, text in Axis(0.0, hours * HOUR_S).ticks():
        anchor = "end" if place > 0.95 else "start"
        drawn += (
            f'<text x="{100 * place:.2f}%" y="{TOP + HEIGHT + 18}" text-anchor="{anchor}" class="tick">{text}</text>'
        )
    shown = "share" if any(each.share is not None for each in windows) else "mean number"
    under = "changes of the set of idle nodes" + (f"; above, the {shown} of idle nodes" if labelled else "")
    return framed(
        f"Events in {WINDOW_H:g} hours (figure 6)", under, [(high(rung), f"{rung:g}") for rung in rungs], drawn
    )


def _label(window: IdleWindow) -> str:
    if window.share is not None:
        return f"{100 * window.share:.1f} %"
    return "" if window.idle_nodes is None else f"{window.idle_nodes:.0f}"


def _bar(window: IdleWindow, y: float, hours: float) -> str:
    x, wide = 100 * window.from_h / hours, 100 * (window.until_h - window.from_h) / hours
    told = f"{window.from_h:g} to {window.until_h:g} h: {window.events} events, {_label(window) or 'nobody looked'}"
    return (
        f'<g class="c0"><rect x="{x + 0.05 * wide:.3f}%" y="{y:.1f}" width="{0.9 * wide:.3f}%" '
        f'height="{TOP + HEIGHT - y:.1f}" class="fill"><title>{html(told)}</title></rect></g>'
    )
