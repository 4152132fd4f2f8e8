"""A figure over a number that was varied: points joined by lines, as inline SVG that follows the width of its place."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from hpcdl.report.charts import AXIS, HEIGHT, LABELS, TOP, curve_legend, kind, rungs_up_to


@dataclass(frozen=True, slots=True)
class Line:
    """`points`: (x, y), in the order of x."""

    name: str
    points: tuple[tuple[float, float], ...]


def lines(
    title: str, under: str, drawn: Sequence[Line], shares: bool = False, level: tuple[str, float] | None = None
) -> str:
    """The drawing as a fragment. `shares`: values from 0 to 1, told in per cent; `level`: a grey line across, named."""
    values = [y for line in drawn for _, y in line.points] + ([level[1]] if level else [])
    low, rungs = _rungs(values, shares)
    top = rungs[-1]
    places = sorted({x for line in drawn for x, _ in line.points})
    left, width = (places[0], places[-1] - places[0] or 1.0) if places else (0.0, 1.0)

    def high(value: float) -> float:
        return TOP + HEIGHT * (1 - (value - low) / (top - low))

    def across(value: float) -> float:
        return 2 + 96 * (value - left) / width

    labels = [
        f'<text x="{LABELS - 7}" y="{high(rung) + 4:.0f}" class="row">{_short(rung, shares)}</text>' for rung in rungs
    ]
    parts = [f'<line x1="0" x2="100%" y1="{high(rung):.1f}" y2="{high(rung):.1f}" class="grid"/>' for rung in rungs]
    if level is not None:
        parts.append(f'<line x1="0" x2="100%" y1="{high(level[1]):.1f}" y2="{high(level[1]):.1f}" class="reference"/>')
    for x in _ticks(places):
        parts.append(
            f'<text x="{across(x):.2f}%" y="{TOP + HEIGHT + 18}" text-anchor="middle" class="tick">{x:g}</text>'
        )
    for place, line in enumerate(drawn):
        for (x1, y1), (x2, y2) in zip(line.points, line.points[1:], strict=False):
            parts.append(
                f'<line x1="{across(x1):.2f}%" y1="{high(y1):.1f}" x2="{across(x2):.2f}%" y2="{high(y2):.1f}" '
                f'class="curve {kind(place)}"/>'
            )
        colour = kind(place).split()[0]
        for x, y in line.points:
            parts.append(
                f'<circle cx="{across(x):.2f}%" cy="{high(y):.1f}" r="3" fill="currentColor" class="{colour}">'
                f"<title>{escape(line.name)} {x:g}: {_exact(y, shares)}</title></circle>"
            )
    total = TOP + HEIGHT + AXIS
    legend = curve_legend([line.name for line in drawn], "" if level is None else level[0])
    return (
        f'<figure class="chart"><figcaption><b>{escape(title)}</b> <span>{escape(under)}</span></figcaption>{legend}'
        f'<div class="drawing"><svg class="labels" width="{LABELS}" height="{total}" aria-hidden="true">'
        f'{"".join(labels)}</svg><div class="plot"><svg width="100%" height="{total}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg></div></div></figure>'
    )


def _rungs(values: Sequence[float], shares: bool) -> tuple[float, list[float]]:
    """The lowest value of the drawing, and where its horizontal lines are: shares from the ten per cent below."""
    most = max(values, default=1.0)
    if not shares:
        unit = 1.0
        while most / unit < 5 and unit > 1e-6:  # rungs are whole numbers of the unit
            unit /= 10
        return 0.0, [unit * rung for rung in rungs_up_to(most / unit)]
    low = int(10 * max(0.0, min(values, default=0.0))) / 10
    steps = max(1, -int(-10 * (min(1.0, most) - low) // 1))
    return low, [low + place / 10 for place in range(steps + 1)]


def _ticks(places: Sequence[float]) -> list[float]:
    """At most a dozen of them that are not too near."""
    room = (places[-1] - places[0]) / 16 if places else 0.0
    kept: list[float] = []
    for place in places:
        if not kept or place - kept[-1] >= room:
            kept.append(place)
    return kept


def _short(value: float, shares: bool) -> str:
    if shares:
        return f"{100 * value:.0f} %"
    for unit, text in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g} {text}"
    return f"{value:g}"


def _exact(value: float, shares: bool) -> str:
    return f"{100 * value:.2f} %" if shares else f"{value:.5g}"
