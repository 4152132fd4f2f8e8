"""What every page is made of: the document round it, tables, and the frames of drawings with their legends.

A page is one self-contained file; its skeleton, style and script are files beside this one (page.html, page.css,
page.js). Text of users, jobs and nodes goes into it by `html` or `escape` only.
"""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template


@dataclass(frozen=True, slots=True)
class HtmlTable:
    """A table of texts; numbers are aligned to the right where `right` names their columns."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()


@cache
def asset(name: str) -> str:
    """The text of a style, script or skeleton of this package, read once."""
    return files("hpcdl.report").joinpath(name).read_text(encoding="utf-8").strip()


def document(
    title: str, parts: Iterable[str], *, script: bool = False, served: bool = False, root: str = "", head: str = ""
) -> str:
    """The page in one file: `parts` are fragments of HTML, `title` is plain text. Nothing to load.

    `script`: with the script that sorts, filters, zooms and refreshes. A Content Security Policy names it and the style
    by their hashes, so nothing else in the page can run or be fetched, whatever jobs and nodes are called. `served`: by
    `hpcdl web`, which the script may ask. `root`: attributes of the whole; `head`: more of the head.
    """
    css = asset("page.css")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{security_policy(script=script, served=served)}">'
    return Template(asset("page.html") + "\n").substitute(
        root=root,
        head=policy + head,
        title=escape(title),
        css=css,
        parts="\n".join(filter(None, parts)),
        script=f"<script>{asset('page.js')}</script>" if script else "",
    )


def security_policy(*, script: bool, served: bool) -> str:
    """The Content Security Policy of a page."""
    rules = ["default-src 'none'", f"style-src {_hash(asset('page.css'))}"]
    if script:
        rules.append(f"script-src {_hash(asset('page.js'))}")
    if served:
        rules.append("connect-src 'self'")
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


@cache
def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def drawing(
    labels: str, plot: str, *, width: int, height: float, title: str, attributes: str = "", kind: str = "drawing"
) -> str:
    """An inline SVG in two parts: labels of `width` pixels, and the plot, which takes the rest of the line.

    `title`: what the plot shows, for who cannot see it. `attributes`: more of the plot's. `kind`: classes of
    the whole; the script lets a `zoomable` one be zoomed.
    """
    return (
        f'<div class="{kind}"><svg class="labels" width="{width}" height="{height}" aria-hidden="true">{labels}</svg>'
        f'<div class="plot"><svg width="100%" height="{height}" role="img" aria-label="{escape(title)}"{attributes}>'
        f"{plot}</svg></div></div>"
    )


def figure(title: str, under: str, inside: str) -> str:
    """A drawing below its title and, in softer letters, what it shows."""
    under = f" <span>{escape(under)}</span>" if under else ""
    return f'<figure class="chart"><figcaption><b>{escape(title)}</b>{under}</figcaption>{inside}</figure>'


def legend(items: Iterable[tuple[str, str, str]], width: int = 26, height: int = 14) -> str:
    """A list of samples of a drawing: (classes, SVG of the sample, plain text); without a sample the text alone."""
    entries = ""
    for classes, inside, text in items:
        kind = f' class="{classes}"' if classes else ""
        sample = f'<svg width="{width}" height="{height}"{kind} aria-hidden="true">{inside}</svg>' if inside else ""
        entries += f"<li>{sample}{escape(text)}</li>"
    return f'<ul class="legend">{entries}</ul>'


def note(text: str, kind: str = "note") -> str:
    """A paragraph of plain text."""
    return f'<p class="{kind}">{escape(text)}</p>'


def table_html(table: HtmlTable) -> str:
    """The table as a fragment of HTML; one that is too wide scrolls by itself."""
    rows = [list(map(escape, row)) for row in table.rows]
    return table_of_cells(list(map(escape, table.header)), rows, table.right, caption=escape(table.title))


def table_of_cells(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: frozenset[int] = frozenset(),
    *,
    kind: str = "table",
    caption: str = "",
    hidden: bool = False,
) -> str:
    """A table of fragments of HTML: header and rows of cells. `kind`: classes of what is round the table; on a narrow
    screen each row of a table in `cards` is a list of its cells, which have their titles. `hidden`: the caption is for
    screen readers, since a title above says the same. A cell that is a whole element `<td`, and a row that is one
    string, a whole `<tr`, stay as they are."""

    def cell(place: int, text: str) -> str:
        return text if text.startswith("<td") else table_cell(header[place], text, right=place in right)

    def line(row: Sequence[str]) -> str:
        return row if isinstance(row, str) else f"<tr>{''.join(cell(*each) for each in enumerate(row))}</tr>"

    titles = "".join(
        f'<th scope="col"{_RIGHT if place in right else ""}>{text}</th>' for place, text in enumerate(header)
    )
    told = f"<caption{_HIDDEN if hidden else ''}>{caption}</caption>" if caption else ""
    body = "".join(map(line, rows))
    return f'<div class="{kind}"><table>{told}<thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>'


def table_cell(title: str, inside: str, *, right: bool = False, more: str = "") -> str:
    """A cell that has the title of its column where there is no room for a table. `more`: attributes."""
    classes = " ".join(name for name, fits in (("right", right), ("none", inside == "–")) if fits)
    kind = f' class="{classes}"' if classes else ""
    return f'<td data-label="{title}"{kind}{more}>{inside}</td>'


_RIGHT = ' class="right"'
_HIDDEN = ' class="hidden"'


def visible(text: object, most: int) -> str:
    """At most `most` letters, of which every one is seen: what is not printable, marks that turn the direction of
    writing among it, is written as an escape like `\\x1b`.
    """
    plain = str(text)
    shown = plain[:most]
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown)
    return shown + "…" if len(plain) > most else shown


def links_html(links: Mapping[str, object]) -> str:
    """Links to other sites by their names, each in a window of its own that knows nothing of this page."""
    return " ".join(
        f'<a href="{escape(str(url))}" target="_blank" rel="noopener noreferrer">{html(name, 63)}</a>'
        for name, url in links.items()
        if str(url).startswith(("https://", "http://"))
    )


def html(text: object, most: int = 200) -> str:
    """A text of strangers as a fragment of HTML, also inside an attribute."""
    return escape(visible(text, most))
