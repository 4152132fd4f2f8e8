"""Our figures beside printed ones: a table with both in a cell, and bars where both are there.

Used by the pages of papers and of replays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from hpcdl.report.html import figure, legend

_ROW = 48
_WIDEST = 74.0
"""Per cent of the width for the longest bar: the rest is for its number."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell with both: texts of ours, what is printed, and the difference; empty where there is none."""

    ours: str
    printed: str = ""
    difference: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two numbers that are to be compared, and their texts. A bar for a number below 0 has no length."""

    label: str
    ours: float
    ours_text: str
    printed: float
    printed_text: str


def beside_table(header: Sequence[str], rows: Sequence[tuple[Sequence[str], Sequence[Cell]]]) -> str:
    """Rows of labels and cells; the header names the labels first."""
    labels = len(rows[0][0]) if rows else len(header)
    classes = ["" if place < labels else ' class="right"' for place in range(len(header))]
    heads = "".join(f"<th{each}>{escape(text)}</th>" for each, text in zip(classes, header, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in texts)}{''.join(_cell(cell) for cell in cells)}</tr>"
        for texts, cells in rows
    )
    return f'<div class="table beside"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(cell: Cell) -> str:
    parts = [escape(cell.ours)]
    if cell.printed:
        difference = f", {cell.difference}" if cell.difference else ""
        parts.append(f'<span class="soft">paper {escape(cell.printed + difference)}</span>')
    return f'<td class="right">{"<br>".join(parts)}</td>'


def bars(title: str, pairs: Sequence[Pair]) -> str:
    """Two bars for each pair: ours full, the printed one an outline."""
    largest = max((number for pair in pairs for number in (pair.ours, pair.printed)), default=0.0)
    drawn = []
    for place, pair in enumerate(pairs):
        y = _ROW * place
        drawn.append(f'<text x="0" y="{y + 13}" class="tick">{escape(pair.label)}</text>')
        drawn.append(_bar(y + 18, pair.ours, largest, "ours", pair.ours_text))
        drawn.append(_bar(y + 31, pair.printed, largest, "theirs", f"paper {pair.printed_text}"))
    height = _ROW * len(pairs) + 4
    svg = f'<svg width="100%" height="{height}" role="img" aria-label="{escape(title)}">{"".join(drawn)}</svg>'
    return figure(title, "", svg)


def _bar(y: int, number: float, largest: float, kind: str, text: str) -> str:
    width = _WIDEST * max(0.0, number) / largest if largest > 0 else 0.0
    return (
        f'<rect x="1" y="{y}" width="{max(width, 0.2):.2f}%" height="10" class="{kind}"/>'
        f'<svg x="{width:.2f}%" y="{y}" overflow="visible"><text x="8" y="9" class="value">{escape(text)}</text></svg>'
    )


def bars_legend() -> str:
    """The legend of the bars: ours and the paper's."""
    items = (("ours", "ours, simulated"), ("theirs", "as the paper prints it"))
    rect = '<rect x="1" y="1" width="26" height="10" class="{}"/>'
    return legend((("", rect.format(kind), text) for kind, text in items), width=28, height=12)
