"""What every page is made of: the document round it, and tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from hpcdl.report.style import CSS
from hpcdl.report.timeline import DEFS


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts; numbers are aligned to the right where `right` names their columns."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()


def document(title: str, parts: Iterable[str], *, root: str = "", head: str = "", css: str = CSS, end: str = "") -> str:
    """The page: `parts` are fragments of HTML, `title` is plain text. Nothing to load, no script.

    `root`: attributes of the whole; `head`: more of the head, right after the encoding; `end`: after all parts.
    """
    return (
        f'<!DOCTYPE html>\n<html lang="en"{root}><head><meta charset="utf-8">{head}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{css}</style></head><body>{DEFS}<main>\n"
        + "\n".join(part for part in parts if part)
        + f"\n</main>{end}</body></html>\n"
    )


def note(text: str, kind: str = "note") -> str:
    """A paragraph of plain text."""
    return f'<p class="{kind}">{escape(text)}</p>'


def table_html(table: Table) -> str:
    """The table as a fragment of HTML; one that is too wide scrolls by itself."""
    caption = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    rows = [list(map(escape, row)) for row in table.rows]
    return table_of_cells(list(map(escape, table.header)), rows, table.right, caption=caption)


def table_of_cells(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: frozenset[int] = frozenset(),
    *,
    kind: str = "table",
    caption: str = "",
) -> str:
    """The same from fragments of HTML."""

    def cells(row: Sequence[str], tag: str) -> str:
        kinds = [' class="right"' if place in right else "" for place in range(len(row))]
        return "".join(f"<{tag}{each}>{cell}</{tag}>" for each, cell in zip(kinds, row, strict=True))

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    head = f"<thead><tr>{cells(header, 'th')}</tr></thead>"
    return f'<div class="{kind}"><table>{caption}{head}<tbody>{body}</tbody></table></div>'
