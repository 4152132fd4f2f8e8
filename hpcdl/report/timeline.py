"""The drawing of one run: GPUs by node down, time across, as inline SVG.

Horizontal places are percentages, so the drawing follows the width of the window while its text keeps its size; each
label lies in an <svg> of its block's size, which cuts it off where it does not fit: it is left out where it hardly can.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from hpcdl.core.model.incarnation import Role
from hpcdl.core.model.units import GpuRef, count, seconds_text
from hpcdl.report.clock import Local, clock_marks, clock_text
from hpcdl.report.history import History, Phase, Piece, Span, WarmStart
from hpcdl.report.html import drawing, legend, note
from hpcdl.report.names import COLOURS, job_colour, short_names

ROW = 26
GAP = 12
AXIS = 24
_USUAL, _LETTER = 1000, 7.5
"""Pixels: of a drawing in a window of the usual width, and of a letter of a name."""
SECONDS_UP_TO = 1500.0
"""Longer times are shown in minutes or hours on the axis."""
_SECONDS = (1, 2, 5, 10, 20, 50, 100, 200)
_LONGER = (300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Scale:
    """Times to places: `length` seconds, as shown, over the whole width; a second of the events counts `factor`.

    `local`: the axis has times of day; else it counts from the begin.
    """

    begin: float
    length: float
    factor: float = 1.0
    local: Local | None = None

    def shown(self, at: float) -> float:
        """Seconds since the begin, as shown."""
        return (at - self.begin) * self.factor

    def place(self, at: float) -> float:
        """The place of a time, in per cent of the width."""
        return 100.0 * self.shown(at) / self.length

    def text(self, at: float) -> str:
        """A time as people read it."""
        if self.local is None:
            return f"{self.shown(at):.1f} s"
        return clock_text(at, self.begin + self.length, self.local, seconds=True)

    def marks(self) -> list[tuple[float, str]]:
        """Percents of the width and texts, from left to right."""
        return axis_marks(self.length) if self.local is None else clock_marks(self.begin, self.length, self.local)


def draw(history: History, scale: Scale) -> str:
    """Labels and plot of one run as an HTML fragment; empty where the history has no GPU."""
    rows = _rows(history)
    if not rows:
        return note("No GPU has joined yet.")
    height = max(y for y in rows.values()) + ROW + 4
    labels = [_node_labels(rows), *(_row_label(row, y) for row, y in rows.items())]
    lanes = [
        f'<rect x="0" y="{y}" width="100%" height="{ROW - 2}" class="lane"/>'
        for row, y in rows.items()
        if isinstance(row, GpuRef)
    ]
    bars = [_block(spans, rows, scale) for spans in _blocks(history.spans)]
    waits = [_wait(wait, rows, scale) for wait in history.warm]
    plot = "".join([_axis(scale, height), *lanes, *bars, *waits])
    return drawing(
        "".join(labels), plot, width=64, height=height + AXIS, title="GPUs by job over time", kind="drawing zoomable"
    )


def _rows(history: History) -> dict[GpuRef | str, int]:
    """The y of every GPU, and of a lane for the gate (under the node's name) on nodes where something waited at one."""
    rows: dict[GpuRef | str, int] = {}
    gates = {wait.node for wait in history.warm}
    y = 18
    nodes = sorted({gpu.node for gpu in history.gpus} | gates)
    for node in nodes:
        for gpu in (gpu for gpu in history.gpus if gpu.node == node):
            rows[gpu] = y
            y += ROW
        if node in gates:
            rows[node] = y
            y += ROW
        y += GAP + 8
    return rows


def _node_labels(rows: dict[GpuRef | str, int]) -> str:
    firsts: dict[str, int] = {}
    for row, y in rows.items():
        firsts.setdefault(row if isinstance(row, str) else row.node, y)
    short = short_names(firsts, 9)
    return "".join(
        f'<text x="0" y="{first - 5}" class="node">{escape(short[node])}<title>{escape(node)}</title></text>'
        for node, first in firsts.items()
    )


def _row_label(row: GpuRef | str, y: int) -> str:
    text = "gate" if isinstance(row, str) else f"GPU {row.number}"
    return f'<text x="58" y="{y + ROW // 2 + 3}" class="row">{text}</text>'


def ticks(length: float, most: int = 8) -> list[float]:
    """Readable times from 0 to `length` seconds, about `most` of them at most."""
    if length < 1:
        return [0.0, length] if length > 0 else [0.0]
    choice = _SECONDS if length <= SECONDS_UP_TO else _LONGER
    step = next((step for step in choice if length / step <= most), choice[-1])
    while length / step > most:
        step *= 2
    return [float(number * step) for number in range(int(length / step) + 1)]


def tick_text(seconds: float, length: float) -> str:
    """A time on an axis that is `length` seconds long, in the unit that suits it."""
    if length <= SECONDS_UP_TO:
        return f"{seconds:.3g} s" if length < 1 else f"{seconds:g} s"
    if length <= 10 * 3600:
        return f"{seconds / 60:g} min"
    if length <= 5 * 86400:
        return f"{seconds / 3600:g} h"
    return f"{seconds / 86400:g} d"


def axis_marks(length: float) -> list[tuple[float, str]]:
    """Percents of the width and texts, from left to right, of an axis that counts from 0."""
    return [(100.0 * at / length if length else 0.0, tick_text(at, length)) for at in ticks(length)]


def anchor_at(x: float) -> str:
    """How a text at so many percent is anchored, so that none of it is outside."""
    return "start" if x < 4 else "end" if x > 96 else "middle"


def _edge(x: float) -> str:
    """The class of a mark that on a telephone has too little room beside it to stand in the middle of its line."""
    return " first" if x < 10 else " last" if x > 90 else ""


def _axis(scale: Scale, height: int) -> str:
    marks = scale.marks()
    # Even an SVG narrow enough for a telephone has room for every second label.
    parts = []
    for number, (x, text) in enumerate(marks):
        odd = ' class="odd"' if number % 2 else ""
        parts.append(
            f'<line x1="{x:.3f}%" x2="{x:.3f}%" y1="14" y2="{height + 2}" class="grid"/>'
            f'<g{odd}><text x="{x:.3f}%" y="{height + 17}" text-anchor="{anchor_at(x)}" class="tick{_edge(x)}">'
            f"{text}</text></g>"
        )
    return "".join(parts)


def _blocks(spans: Sequence[Span]) -> list[list[Span]]:
    """Spans of one attempt on neighbouring GPUs of a node, to be drawn as one bar."""
    blocks: list[list[Span]] = []

    def key(span: Span) -> tuple[int, int, str, float, int]:
        return span.job, span.incarnation, span.node, span.start_at, span.gpu

    for span in sorted(spans, key=key):
        alone = _is_behind(span)  # half of a row: the other half is the foreground's
        if blocks and not alone and key(blocks[-1][-1]) == (*key(span)[:-1], span.gpu - 1):
            blocks[-1].append(span)
        else:
            blocks.append([span])
    return sorted(blocks, key=lambda block: _is_behind(block[0]))


def _is_behind(span: Span) -> bool:
    """Whether it began as the background of another job."""
    return span.pieces[0].role is Role.BACKGROUND


def _block(spans: list[Span], rows: dict[GpuRef | str, int], scale: Scale) -> str:
    first = spans[0]
    y = rows[GpuRef(first.node, first.gpu)]
    height = ROW * len(spans) - 2
    if _is_behind(first):
        y, height = y + height // 2, height - height // 2
    x, width = scale.place(first.start_at), scale.place(first.end_at) - scale.place(first.start_at)
    whole = max(width, 0.05)
    inner = "".join(_piece(piece, first, whole, scale) for piece in first.pieces)
    lines = "".join(
        f'<line x1="0" x2="100%" y1="{number * ROW - 1}" y2="{number * ROW - 1}" class="between"/>'
        for number in range(1, len(spans))
    )
    middle = (len(spans) - 1) // 2 * ROW + (ROW - 2) / 2  # of a row, so that no line runs through the name
    label = "" if _is_behind(first) else _label(first, whole, middle + 4)
    return (
        f'<svg x="{x:.3f}%" y="{y}" width="{whole:.3f}%" height="{height}" '
        f'class="bar {job_colour(first.job)}" data-job="{first.job}">'
        f"<title>{escape(_tooltip(first, scale))}</title>{inner}{lines}"
        f'<rect width="100%" height="100%" class="frame"/>{label}</svg>'
    )


def _label(span: Span, width: float, y: float) -> str:
    """Name and GPUs, as much of it as has room whole in so many percent of a drawing of the usual width."""
    room = width / 100 * _USUAL - 12
    name, more = span.name, f" · {count(span.gpus, 'GPU')}"
    if len(name) * _LETTER > room:
        return ""
    told = f'<tspan class="count">{more}</tspan>' if len(name + more) * _LETTER <= room else ""
    return f'<text x="6" y="{y:g}" class="name">{escape(name)}{told}</text>'


_HATCHES = {Phase.STARTING: "starting", Phase.RESCALING: "rescaling", Phase.SAVING: "saving", Phase.ENDING: "saving"}
"""The pattern in page.html that is drawn over a bar in a phase."""


def _piece(piece: Piece, span: Span, width: float, scale: Scale) -> str:
    x = 100.0 * (scale.place(piece.begin) - scale.place(span.start_at)) / width
    wide = 100.0 * (scale.place(piece.end) - scale.place(piece.begin)) / width
    where = f'x="{x:.3f}%" width="{max(wide, 0.01):.3f}%" height="100%"'
    return _filled(where, piece.role.value, _HATCHES.get(piece.phase))


def _filled(where: str, role: str = "", hatch: str | None = None) -> str:
    """A rectangle in its job's colour, paler by role, with the pattern of its phase over it."""
    fill = f'<rect {where} class="{f"fill {role}".rstrip()}"/>'
    return fill if hatch is None else f'{fill}<rect {where} fill="url(#{hatch})"/>'


def _tooltip(span: Span, scale: Scale) -> str:
    lines = [
        f"{span.name}: job {span.job}, attempt {span.incarnation}, {count(span.gpus, 'GPU')}",
        f"{scale.text(span.start_at)} to {scale.text(span.end_at)}",
    ]
    for piece in span.pieces:
        lasted = (piece.end - piece.begin) * scale.factor
        sized = f" on {count(piece.gpus, 'GPU')}" if len({each.gpus for each in span.pieces}) > 1 else ""
        lines.append(f"{piece.phase.value}{piece.role.told}{sized}: {seconds_text(lasted)}")
    if span.cause is not None:
        lines.append(f"ended: {span.cause.value}")
    return "\n".join(lines)


def _wait(wait: WarmStart, rows: dict[GpuRef | str, int], scale: Scale) -> str:
    x, width = scale.place(wait.start_at), scale.place(wait.end_at) - scale.place(wait.start_at)
    end = "opened" if wait.opened else "not used"
    title = f"{wait.name}: job {wait.job}, attempt {wait.incarnation}, at the gate, {end}"
    return (
        f'<svg x="{x:.3f}%" y="{rows[wait.node] + 5}" width="{max(width, 0.05):.3f}%" height="{ROW - 12}" '
        f'class="bar {job_colour(wait.job)}" data-job="{wait.job}"><title>{escape(title)}</title>'
        f'<rect width="100%" height="100%" class="gate"/><text x="6" y="11" class="name small">{escape(wait.name)}'
        "</text></svg>"
    )


def timeline_legend(history: History) -> str:
    """The legend of a timeline; roles and the gate only where they occur."""
    drawn = {span.job for span in history.spans} | {wait.job for wait in history.warm}
    roles = {piece.role for span in history.spans for piece in span.pieces}
    items = [
        (f"bar {job_colour(job.id)}", _filled(_WHOLE), f"{job.id} {job.name}")
        for job in history.jobs
        if job.id in drawn
    ]
    if len(items) > COLOURS:
        text = f"{count(len(drawn), 'job')} in {COLOURS} colours: each bar names its job where the mouse rests"
        items = [("", "", text)]
    grey = [
        (_filled(_WHOLE, role.value), text)
        for role, text in ((Role.SECONDARY, "secondary: paler"), (Role.BACKGROUND, "background: palest"))
        if role in roles
    ]
    grey += [(_filled(_WHOLE, "", "starting"), "starting"), (_filled(_WHOLE, "", "saving"), "saving, ending")]
    if any(piece.phase is Phase.RESCALING for span in history.spans for piece in span.pieces):
        grey.append((_filled(_WHOLE, "", "rescaling"), "rescaling in place"))
    if history.warm:
        grey.append((f'<rect {_WHOLE} class="gate"/>', "at the gate, no GPU held"))
    return legend([*items, *(("bar grey", inside, text) for inside, text in grey)])


_WHOLE = 'width="100%" height="100%"'
