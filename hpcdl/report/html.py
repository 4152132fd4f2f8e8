"""What every page is made of: the document round it, and tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from hpcdl.report.timeline import DEFS

# The look of the pages, in light and dark.

CSS = """
:root{--page:#fff;--ink:#1b1f24;--soft:#5b6470;--line:#d9dee4;--lane:#f3f5f7;--stripe:rgba(255,255,255,.55);
--dark-stripe:rgba(0,0,0,.42);--grey:#b4bcc6;--c0:#8ec1f0;--c1:#f6bd7a;--c2:#96d6a4;--c3:#e9a3c6;--c4:#c7b2ee;--c5:#f2d769;
--c6:#8fd8d6;--c7:#f0a69a;--c8:#c5d67c;--c9:#b9c3d8;
--p0:#0072b2;--p1:#d55e00;--p2:#008f68;--p3:#b4548c;--p4:#c48a00;--p5:#3c93c9;--p6:#6a3d9a;--p7:#5a5a5a;
--heat:#0b5f96;--bad:#b3261e;--bad-soft:#fdecea}
@media (prefers-color-scheme:dark){:root{--page:#14171b;--ink:#eceff3;--soft:#a2acb8;--line:#343b44;--lane:#1d2228;
--stripe:rgba(20,23,27,.45);--dark-stripe:rgba(255,255,255,.5);--grey:#5a636e;--c0:#2866a3;--c1:#99601a;--c2:#2c7a40;
--c3:#94426d;--c4:#6749a6;--c5:#7d6810;--c6:#1c7775;--c7:#9a4435;--c8:#5f7018;--c9:#4f5d7a;
--p0:#4ea3e0;--p1:#ff8b45;--p2:#2cc797;--p3:#ec9aca;--p4:#f0c24b;--p5:#9bd8ff;--p6:#b79cf0;--p7:#c4c8ce;
--heat:#63b3ec;--bad:#ff8a80;--bad-soft:#3a1d1c}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.45 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1400px;margin:0 auto;padding:20px clamp(12px,3vw,32px) 40px}
h1{font-size:22px;line-height:1.25;margin:4px 0 10px}
h2{font-size:18px;margin:34px 0 2px}
.note,.figures{color:var(--soft);max-width:110ch;margin:4px 0 10px}
.figures{color:var(--ink)}
.defs{position:absolute}
.drawing{display:flex;margin:10px 0 2px}
.labels{flex:none}
.plot{flex:1;min-width:0}
.plot svg{display:block}
.plot svg svg{overflow:hidden}
.plot svg.open{overflow:visible}
.node{font-size:11px;font-weight:600;fill:var(--ink)}
.row{font-size:11px;fill:var(--soft);text-anchor:end}
.tick{font-size:11px;fill:var(--soft)}
.lane{fill:var(--lane)}
.grid{stroke:var(--line)}
.between{stroke:var(--page);stroke-opacity:.5}
.stripe{fill:var(--stripe)}
.dark-stripe{fill:var(--dark-stripe)}
.bar{color:var(--grey)}
.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}
.c5{color:var(--c5)}.c6{color:var(--c6)}.c7{color:var(--c7)}.c8{color:var(--c8)}.c9{color:var(--c9)}
.fill{fill:currentColor}
.secondary{fill-opacity:.5}
.background{fill-opacity:.25}
.frame{fill:none;stroke:currentColor;stroke-width:2}
.gate{fill:currentColor;fill-opacity:.2;stroke:currentColor;stroke-width:2;stroke-dasharray:4 3}
.name{font-size:13px;font-weight:600;fill:var(--ink);stroke:var(--page);stroke-width:2.5px;stroke-opacity:.45;paint-order:stroke}
.count{font-weight:400}
.small{font-size:10px}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;padding:0;margin:6px 0 12px;
font-size:13px;color:var(--soft)}
.legend li{display:flex;align-items:center;gap:7px}
.table{overflow-x:auto;margin:8px 0 14px}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
caption{text-align:left;font-weight:600;padding:4px 0}
th,td{padding:4px 12px 4px 0;text-align:left;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:500}
.right{text-align:right}
h3{font-size:15px;margin:18px 0 4px}
.simulated{border-left:4px solid var(--p0);background:var(--lane);padding:8px 14px;margin:10px 0;max-width:110ch}
.problems{border-left:4px solid var(--bad);background:var(--bad-soft);padding:8px 14px;margin:10px 0}
.problems b{color:var(--bad)}
.problems ul,.notes{margin:4px 0 6px;padding-left:20px;overflow-wrap:anywhere}
.notes{color:var(--soft);max-width:110ch;font-size:14px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:10px 28px}
.chart{margin:6px 0;min-width:0}
figcaption{font-size:14px}
figcaption span,.soft{color:var(--soft)}
.soft{font-size:12px}
.p0{color:var(--p0)}.p1{color:var(--p1)}.p2{color:var(--p2)}.p3{color:var(--p3)}
.p4{color:var(--p4)}.p5{color:var(--p5)}.p6{color:var(--p6)}.p7{color:var(--p7)}
.curve,.reference{fill:none;stroke:currentColor;stroke-width:1.8;vector-effect:non-scaling-stroke}
.d1{stroke-dasharray:8 3}.d2{stroke-dasharray:3 2}.d3{stroke-dasharray:9 3 2 3}
.reference{color:var(--grey);stroke-width:1.5}
.direct{font-size:12px;font-weight:600;fill:var(--ink);stroke:var(--page);stroke-width:3px;paint-order:stroke}
.direct tspan{fill:currentColor}
.heat path{stroke:var(--heat);fill:none;shape-rendering:crispEdges}
.heat .h0{stroke:var(--lane)}
.h1{stroke-opacity:.2}.h2{stroke-opacity:.38}.h3{stroke-opacity:.57}.h4{stroke-opacity:.78}
.compare td,.compare th{padding-right:16px}
.compare tbody th{color:var(--ink);font-weight:400;position:sticky;left:0;background:var(--page)}
.compare thead th{color:var(--ink);font-weight:600}
.star{color:var(--p1)}
details{margin:6px 0 14px}
details td,details th{padding-right:20px}
summary{cursor:pointer;color:var(--soft)}
.value{font-size:11px;fill:var(--ink)}
.beside td{vertical-align:top}
a{color:var(--p0)}
.bars{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,360px),1fr));gap:10px 28px}
.ours{fill:var(--p0)}.theirs{fill:none;stroke:var(--p1);stroke-width:1.6}
@media (max-width:700px){.direct{display:none}.odd{display:none}h1{font-size:19px}.name{font-size:11.5px}}
""".strip()


@dataclass(frozen=True, slots=True)
class HtmlTable:
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


def table_html(table: HtmlTable) -> str:
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


# Text of strangers in a page: names of jobs and nodes, reasons.


def visible(text: object, most: int) -> str:
    """At most `most` letters, of which every one is seen: what is not printable, marks that turn the direction of
    writing among it, is written as an escape like `\\x1b`.
    """
    plain = str(text)
    shown = plain[:most]
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown)
    return shown + "…" if len(plain) > most else shown


def html(text: object, most: int = 200) -> str:
    """As a fragment of HTML, also inside an attribute."""
    return escape(visible(text, most))
