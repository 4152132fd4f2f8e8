"""Scaling curves of profiles: rate and efficiency by number of GPUs, what was measured, and how sure the rest is.

Drawn by `hpcdl profile plot`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape

from hpcdl.core.model.profile import Profile
from hpcdl.report.charts import ACROSS, HEIGHT, TOP, curve_legend, framed, kind, percent_or_number, rungs_up_to
from hpcdl.report.html import HtmlTable, document, note, table_html


@dataclass(frozen=True, slots=True)
class At:
    """The rate (steps/s) on `gpus` GPUs on each of `nodes` nodes; `low` to `high`: one standard error each way.

    `efficiency`: speed-up per GPU, 1.0 is linear. `measured`: seen or given, not taken from its neighbours.
    """

    nodes: int
    gpus: int
    rate: float
    low: float
    high: float
    efficiency: float
    measured: bool

    @property
    def total(self) -> int:
        """GPUs in all."""
        return self.nodes * self.gpus


@dataclass(frozen=True, slots=True)
class Scaling:
    """A profile's curve, by nodes and then GPUs. `learnt`: its points were measured, not given."""

    name: str
    source: str
    points: tuple[At, ...]
    learnt: bool = False


def scaling_of(profile: Profile, seen: Collection[tuple[int, int]] | None = None) -> list[Scaling]:
    """The curves of a profile: one, or one for each type of GPU.

    `seen`: (nodes, GPUs) that it was learnt from; None: its points are what was given.
    """
    curves = [(profile.name, profile)]
    curves += [(f"{profile.name} on {each}", profile.on(each)) for each, _ in profile.kinds]
    return [Scaling(name, one.source, _points(one, seen), seen is not None) for name, one in curves]


def _points(profile: Profile, seen: Collection[tuple[int, int]] | None) -> tuple[At, ...]:
    given = {(nodes, gpus) for nodes, gpus, _ in profile.points}
    measured = given if seen is None else set(seen)
    found = []
    for nodes in sorted({nodes for nodes, _ in given | measured}):
        most = max(gpus for where, gpus in given | measured if where == nodes)
        for gpus in range(1, most + 1) if nodes == 1 else sorted(gpus for at, gpus in given | measured if at == nodes):
            rate, sure = profile.rate(gpus, nodes), (nodes, gpus) in measured
            off = 0.0 if sure and seen is None else profile.spread * (0.0 if sure else 1.0)
            low, high = rate * max(0.0, 1 - off), rate * (1 + off)
            found.append(At(nodes, gpus, rate, low, high, profile.efficiency(gpus, nodes), sure))
    return tuple(found)


def scaling_page(title: str, scalings: Sequence[Scaling]) -> str:
    """One self-contained HTML file: both drawings, and the numbers."""
    parts = [f"<h1>{escape(title)}</h1>"]
    parts.append(note("Full points were measured or given; bands are one standard error where a curve was learnt."))
    parts.append('<div class="charts">')
    parts.append(_chart("Rate", "steps/s by GPUs", scalings, efficiency=False))
    parts.append(_chart("Efficiency", "speed-up per GPU", scalings, efficiency=True))
    parts.append("</div>")
    parts.append(curve_legend([each.name for each in scalings]))
    parts += [_table(each) for each in scalings]
    return document(title, parts)


def _table(scaling: Scaling) -> str:
    header = ("nodes", "GPUs each", "steps/s", "±", "efficiency", "")
    rows = tuple(
        (
            str(at.nodes),
            str(at.gpus),
            f"{at.rate:.4g}",
            f"{at.high - at.rate:.2g}" if at.high > at.rate else "",
            f"{100 * at.efficiency:.0f} %",
            ("measured" if scaling.learnt else "given") if at.measured else "",
        )
        for at in scaling.points
    )
    source = note(scaling.source) if scaling.source else ""
    return table_html(HtmlTable(scaling.name, header, rows, frozenset(range(5)))) + source


def _chart(title: str, under: str, scalings: Sequence[Scaling], *, efficiency: bool) -> str:
    points = [at for each in scalings for at in each.points]
    most = max((at.total for at in points), default=1)
    top = max([_value(at, at.high, efficiency) for at in points] + [1.0 if efficiency else 0.0])
    rungs = [0.0, 0.25, 0.5, 0.75, 1.0] if efficiency else _rungs(top)
    top = max(top, rungs[-1]) or 1.0

    def high(value: float) -> float:
        return TOP + HEIGHT * (1 - value / top)

    ticks = "".join(
        f'<text x="{100 * gpus / most:.2f}%" y="{TOP + HEIGHT + 18}" class="tick" '
        f'text-anchor="{"end" if gpus == most else "middle"}">{gpus}</text>'
        for gpus in _ticks(most)
    )
    drawn = [_curve(each, place, most, top, efficiency) for place, each in enumerate(scalings)]
    marks = "".join(
        f'<circle cx="{100 * at.total / most:.2f}%" cy="{high(_value(at, at.rate, efficiency)):.1f}" r="3.5" '
        f'class="fill {kind(place).split()[0]}">'
        f"<title>{escape(f'{each.name}: {at.nodes}x{at.gpus}, {at.rate:.4g} steps/s')}</title></circle>"
        for place, each in enumerate(scalings)
        for at in each.points
        if at.measured
    )
    curves = (
        f'<svg y="{TOP}" width="100%" height="{HEIGHT}" viewBox="0 0 {ACROSS} {HEIGHT}" preserveAspectRatio="none">'
        f"{''.join(drawn)}</svg>"
    )
    texts = [(high(rung), percent_or_number(rung, efficiency)) for rung in rungs]
    return framed(title, under, texts, ticks + curves + marks, ' class="open"')


def _curve(scaling: Scaling, place: int, most: int, top: float, efficiency: bool) -> str:
    """A line for each number of nodes, and its band."""
    parts = []
    for nodes in sorted({at.nodes for at in scaling.points}):
        points = [at for at in scaling.points if at.nodes == nodes]
        middle, low, high = (
            [_spot(at, _value(at, value, efficiency), most, top) for at, value in values]
            for values in (
                [(at, at.rate) for at in points],
                [(at, at.low) for at in points],
                [(at, at.high) for at in points],
            )
        )
        if low != high:
            parts.append(
                f'<polygon points="{" ".join([*high, *reversed(low)])}" '
                f'class="fill background {kind(place).split()[0]}"/>'
            )
        parts.append(f'<polyline points="{" ".join(middle)}" class="curve {kind(place)}"/>')
    return "".join(parts)


def _value(at: At, rate: float, efficiency: bool) -> float:
    return at.efficiency * rate / at.rate if efficiency else rate


def _spot(at: At, value: float, most: int, top: float) -> str:
    return f"{ACROSS * at.total / most:.1f},{HEIGHT * (1 - value / top):.1f}"


def _rungs(top: float) -> list[float]:
    """Readable rates from 0 on; also below 1."""
    scale = 1.0
    while top * scale < 3:
        scale *= 10
        if scale > 1e12:
            return [0.0, top or 1.0]
    return [each / scale for each in rungs_up_to(top * scale)]


def _ticks(most: int) -> list[int]:
    step = 1
    while most / step > 8:
        step *= 2
    return list(range(step, most + 1, step))
