"""Step curves of several runs in one drawing: inline SVG that follows the width of its place; text keeps its size.

Curves differ in colour and dashes, and have their name beside them where there is room for it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from hpcdl.report.curves import StepFunction
from hpcdl.report.html import drawing, figure, legend
from hpcdl.report.timeline import tick_text, ticks

COLOURS = 8
HEIGHT = 200
TOP = 8
AXIS = 24
LABELS = 46
ACROSS = 2000
"""Units across a drawing, which are stretched over its width."""
_NOMINAL = 560.0
"""Width in pixels for which names are placed beside curves."""
_COLUMNS = 56
_LETTER = 7.0
_LOG_S = (0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10800, 36000, 86400, 259200, 864000, 2592000, 8640000)


@dataclass(frozen=True, slots=True)
class StepCurve:
    """A run's steps. `name`: written beside it, "" for none. `place`: of the run among all, which says its colour."""

    name: str
    steps: StepFunction
    place: int


@dataclass(frozen=True, slots=True)
class Axis:
    """Seconds across: from `begin` to `end`, by their logarithm where `log`."""

    begin: float
    end: float
    log: bool = False

    def place(self, seconds: float) -> float:
        """The place of a time on the axis, from 0 to 1."""
        if self.end <= self.begin:
            return 0.0
        if self.log:
            least = max(self.begin, min(seconds, self.end))
            return math.log(least / self.begin) / math.log(self.end / self.begin)
        return max(0.0, min(1.0, (seconds - self.begin) / (self.end - self.begin)))

    def ticks(self) -> list[tuple[float, str]]:
        """The places of the marks on the axis, from 0 to 1, and their texts."""
        if not self.log:
            return [(self.place(at), tick_text(at, self.end)) for at in ticks(self.end, 6)]
        inside = [at for at in _LOG_S if self.begin <= at <= self.end]
        inside = inside[:: max(1, math.ceil(len(inside) / 7))]
        return [(self.place(at), _short(at)) for at in inside]


def axis_for(numbers: Sequence[float]) -> Axis:
    """From 0 to the largest; by logarithm where half of the numbers would share a tenth of the width."""
    ordered = sorted(number for number in numbers if number > 0)
    if not ordered:
        return Axis(0.0, 1.0)
    largest, middle = ordered[-1], ordered[len(ordered) // 2]
    if largest <= 10 * middle:
        return Axis(0.0, largest)
    return Axis(max(ordered[0] * 0.9, largest / 1e5), largest, log=True)


def _short(seconds: float) -> str:
    for unit, text in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= unit:
            return f"{seconds / unit:g} {text}"
    return f"{seconds:g} s"


def chart(
    title: str,
    under: str,
    curves: Sequence[StepCurve],
    axis: Axis,
    reference: StepFunction | None = None,
    shares: bool = False,
) -> str:
    """The drawing of all curves as a fragment. `under`: what is drawn, in words. `reference`: a grey curve behind.

    `shares`: the values are from 0 to 1, shown in per cent.
    """
    drawn = [curve for curve in curves if curve.steps.times]
    most = max([curve.steps.most for curve in drawn] + ([reference.most] if reference else []), default=0.0)
    rungs = [0.0, 0.25, 0.5, 0.75, 1.0] if shares else rungs_up_to(most)
    top = max(rungs[-1], most) or 1.0

    def high(value: float) -> float:
        return TOP + HEIGHT * (1 - value / top)

    lines = [f'<path d="{_path(reference, axis, top)}" class="reference"/>'] if reference else []
    lines += [
        f'<path d="{_path(curve.steps, axis, top)}" class="curve {kind(curve.place)}">'
        f"<title>{escape(curve.name)}</title></path>"
        for curve in drawn
    ]
    names = _names(drawn, axis, high)
    svg = f'<svg y="{TOP}" width="100%" height="{HEIGHT}" viewBox="0 0 {ACROSS} {HEIGHT}" preserveAspectRatio="none" '
    svg += f'class="curves">{"".join(lines)}</svg>'
    return framed(
        title, under, [(high(rung), percent_or_number(rung, shares)) for rung in rungs], _ticks(axis) + svg + names
    )


def percent_or_number(value: float, shares: bool) -> str:
    """A value at an axis: `25 %` of a share, else the number."""
    return f"{100 * value:g} %" if shares else f"{value:g}"


def framed(title: str, under: str, rungs: Sequence[tuple[float, str]], plot: str, attributes: str = "") -> str:
    """A chart with its title and its axis of values, `plot` in front of it.

    `rungs`: places (pixels from above) and texts of the lines across. `attributes`: of the SVG that holds the plot.
    """
    labels = "".join(f'<text x="{LABELS - 7}" y="{y + 4:.0f}" class="row">{text}</text>' for y, text in rungs)
    across = "".join(f'<line x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>' for y, _ in rungs)
    height = TOP + HEIGHT + AXIS
    drawn = drawing(labels, across + plot, width=LABELS, height=height, title=title, attributes=attributes)
    return figure(title, under, drawn)


def kind(place: int) -> str:
    """The classes that say a run's colour and dashes."""
    return f"p{place % COLOURS} d{place % COLOURS % 4 if place < COLOURS else (place + 1) % 4}"


def curve_legend(names: Sequence[str], reference: str = "") -> str:
    """Which curve is whose; `reference`: what the grey one is."""
    items = [(f"curve {kind(place)}", name) for place, name in enumerate(names)]
    if reference:
        items.append(("reference", reference))
    return legend((("", f'<path d="M1 6H33" class="{kinds}"/>', text) for kinds, text in items), width=34, height=12)


def rungs_up_to(most: float) -> list[float]:
    """From 0 to `most` or a little more, in three to six readable steps; whole numbers."""
    step = 1.0
    while most / step > 5:
        step = _next(step)
    return [step * number for number in range(max(1, math.ceil(most / step)) + 1)]


def _next(step: float) -> float:
    first = round(step / 10 ** math.floor(math.log10(step)))
    return step * (2.5 if first == 2 else 2)


def _path(steps: StepFunction, axis: Axis, top: float) -> str:
    """Horizontal and vertical moves in units of the drawing."""
    if not steps.times:
        return ""
    places = [round(ACROSS * axis.place(at)) for at in steps.times]
    highs = [round(HEIGHT * (1 - value / top), 1) for value in steps.values]
    parts = [f"M{places[0]} {HEIGHT}"]
    x, y = places[0], float(HEIGHT)
    for place, value in zip(places, highs, strict=True):
        if place != x:
            parts.append(f"H{place}")
            x = place
        if value != y:
            parts.append(f"V{value:g}")
            y = value
    end = round(ACROSS * axis.place(steps.end))
    return "".join(parts) + (f"H{end}" if end != x else "")


def _ticks(axis: Axis) -> str:
    parts = []
    for number, (place, text) in enumerate(axis.ticks()):
        x = 100 * place
        anchor = "start" if x < 3 else "end" if x > 95 else "middle"
        odd = ' class="odd"' if number % 2 else ""
        parts.append(
            f'<line x1="{x:.2f}%" x2="{x:.2f}%" y1="{TOP}" y2="{TOP + HEIGHT + 4}" class="grid"/>'
            f'<g{odd}><text x="{x:.2f}%" y="{TOP + HEIGHT + 18}" text-anchor="{anchor}" class="tick">{text}</text></g>'
        )
    return "".join(parts)


# --- names beside curves ---------------------------------------------------------------------------------------------

_High = Callable[[float], float]
_Box = tuple[float, float, float, float]
_Extent = tuple[float, float] | None
"""From the highest to the lowest place of a curve in a column, in pixels from above; None: it is not there."""


def _names(curves: Sequence[StepCurve], axis: Axis, high: _High) -> str:
    """Each curve's name where it is farthest from all other curves, or nowhere if there is no room for it."""
    extents = [_extents(curve.steps, axis, high) for curve in curves]
    taken: list[_Box] = []
    parts = []
    for number, curve in enumerate(curves):
        found = _spot(curve.name, number, extents, taken) if curve.name else None
        if found is None:
            continue
        x, y, box = found
        taken.append(box)
        parts.append(
            f'<text x="{100 * x / _NOMINAL:.1f}%" y="{y:.0f}" text-anchor="middle" class="direct">'
            f'<tspan class="{kind(curve.place).split()[0]}">●</tspan> {escape(curve.name)}</text>'
        )
    return "".join(parts)


def _extents(steps: StepFunction, axis: Axis, high: _High) -> list[_Extent]:
    columns: list[_Extent] = [None] * _COLUMNS
    ends = (*steps.times[1:], steps.end)
    for at, end, value in zip(steps.times, ends, steps.values, strict=True):
        first, last = (min(_COLUMNS - 1, int(axis.place(each) * _COLUMNS)) for each in (at, end))
        y = high(value)
        for column in range(first, last + 1):
            now = columns[column]
            columns[column] = (y, y) if now is None else (min(now[0], y), max(now[1], y))
    return columns


def _spot(
    name: str, number: int, extents: Sequence[list[_Extent]], taken: Sequence[_Box]
) -> tuple[float, float, _Box] | None:
    own = extents[number]
    width = _LETTER * (len(name) + 3)
    reach = math.ceil(width / 2 / (_NOMINAL / _COLUMNS))
    best: tuple[float, float, float, _Box] | None = None
    for column in range(reach, _COLUMNS - reach):
        here = [extent for extent in own[column - reach : column + reach + 1] if extent is not None]
        if own[column] is None or not here:
            continue
        x = (column + 0.5) * _NOMINAL / _COLUMNS
        for above in (True, False):
            edge = min(extent[0] for extent in here) - 4 if above else max(extent[1] for extent in here) + 16
            box = (x - width / 2, edge - 12, x + width / 2, edge + 3)
            if box[1] < 0 or box[3] > TOP + HEIGHT or any(_meet(box, other) for other in taken):
                continue
            room = _room(box, column, reach, number, extents)
            # Near where the curve is flat: a name far from its own curve reads as another's.
            slack = max(extent[1] for extent in here) - min(extent[0] for extent in here)
            score = min(room, 40.0) - slack / 4
            if room > 8 and slack < 60 and (best is None or score > best[0]):
                best = (score, x, edge, box)
    return None if best is None else best[1:]


def _room(box: _Box, column: int, reach: int, number: int, extents: Sequence[list[_Extent]]) -> float:
    """Pixels between the box and the nearest other curve; 0 or less where one runs through it."""
    room = math.inf
    for other, columns in enumerate(extents):
        if other == number:
            continue
        for extent in columns[column - reach : column + reach + 1]:
            if extent is not None:
                room = min(room, max(box[1] - extent[1], extent[0] - box[3]))
    return room


def _meet(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
