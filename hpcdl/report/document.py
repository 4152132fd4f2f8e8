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


def document(title: str, parts: Iterable[str]) -> str:
    """The page: `parts` are fragments of HTML, `title` is plain text. Nothing to load, no script."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body>{DEFS}<main>\n"
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def note(text: str, kind: str = "note") -> str:
    """A paragraph of plain text."""
    return f'<p class="{kind}">{escape(text)}</p>'


def table_html(table: Table) -> str:
    """The table as a fragment of HTML; one that is too wide scrolls by itself."""

    def cells(row: Sequence[str], tag: str) -> str:
        attributes = [' class="right"' if column in table.right else "" for column in range(len(row))]
        return "".join(
            f"<{tag}{attribute}>{escape(text)}</{tag}>" for attribute, text in zip(attributes, row, strict=True)
        )

    caption = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in table.rows)
    return (
        f'<div class="table"><table>{caption}<thead><tr>{cells(table.header, "th")}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
