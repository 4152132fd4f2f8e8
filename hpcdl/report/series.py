"""A series of a job as inline SVG: its mean as a line, in front of the band from its lowest to its highest values.

It follows the width of its place, and says in words what it shows, for who cannot see it. Pages choose its place.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hpcdl.core.model.units import seconds_text
from hpcdl.report.html import html, note, visible

ACROSS = 1000
"""Units across a drawing, which are stretched over its width."""
HEIGHT = 72
_EDGE = 2
"""Pixels above and below the curve, for the width of its line."""

Series = Mapping[str, Any]
"""As `GET /v1/jobs/ID/series` answers it."""


def number_text(number: float | None, unit: str = "") -> str:
    """A number for people, `0.3125`, `1.2e-05 W`; "not finite" of None."""
    return "not finite" if number is None else f"{number:.4g}{' ' if unit else ''}{unit}"


def series_text(series: Series) -> str:
    """What the curve shows, in a sentence for a screen reader."""
    unit, whole = series["unit"], f"{series['samples']} samples"
    if series["mean"] is None:
        return f"{series['label']}: {whole}, none of them a finite number"
    parts = [
        f"from {number_text(series['first'], unit)} to {number_text(series['last'], unit)}",
        f"lowest {number_text(series['low'], unit)}",
        f"highest {number_text(series['high'], unit)}",
        f"mean {number_text(series['mean'], unit)}",
        whole,
    ]
    if series["not_finite"]:
        parts.append(f"{series['not_finite']} of them not finite")
    return f"{series['label']}: {', '.join(parts)}"


def places_of(series: Series) -> Sequence[float]:
    """Where its points are across: their steps, or seconds since the first."""
    points = series["points"]
    if points["step"] and None not in points["step"]:
        return [float(step) for step in points["step"]]
    return [at - points["at"][0] for at in points["at"]]


def span_text(series: Series) -> str:
    """What is across: `step 1 to 900`, `over 3 min 20 s`."""
    points = series["points"]
    if points["step"] and None not in points["step"]:
        return f"step {points['step'][0]} to {points['step'][-1]}"
    return f"over {seconds_text(points['at'][-1] - points['at'][0])}"


def series_svg(series: Series, colour: str = "p0", height: int = HEIGHT) -> str:
    """The drawing alone, as wide as its place. `colour`: a class of page.css that sets it (p0 to p7, c0 to c9).

    What a job uses is drawn from 0 on; other numbers from the lowest to the highest.
    """
    places, points = places_of(series), series["points"]
    low = 0.0 if series["kind"] == "use" else series["low"]
    high = 100.0 if series["name"] == "gpu_util" else series["high"]
    low, high = (0.0 if low is None else low), (1.0 if high is None else high)
    span, length = (high - low) or 1.0, (places[-1] - places[0]) or 1.0

    def at(place: float, value: float) -> str:
        x = ACROSS * (place - places[0]) / length
        y = _EDGE + (height - 2 * _EDGE) * (1 - max(0.0, min(1.0, (value - low) / span)))
        return f"{x:.0f} {y:.1f}"

    known = [place for place, mean in enumerate(points["mean"]) if mean is not None]
    line, band = [], []
    for run in _runs(known):
        line.append("M" + "L".join(at(places[each], points["mean"][each]) for each in run))
        if len(run) == 1:
            line.append(f"L{at(places[run[0]], points['mean'][run[0]])}")
        above = [at(places[each], points["high"][each]) for each in run]
        below = [at(places[each], points["low"][each]) for each in reversed(run)]
        band.append(f"M{'L'.join([*above, *below])}Z")
    told = html(series_text(series), 400)
    return (
        f'<svg class="series {colour}" width="100%" height="{height}" viewBox="0 0 {ACROSS} {height}" '
        f'preserveAspectRatio="none" role="img" aria-label="{told}"><title>{told}</title>'
        f'<path d="{"".join(band)}" class="fill" fill-opacity=".22"/>'
        f'<path d="{"".join(line)}" class="curve" stroke-linecap="round"/></svg>'
    )


def series_figure(series: Series, colour: str = "p0") -> str:
    """The drawing with its name above it, and its numbers below."""
    unit = series["unit"]
    numbers = f"last {number_text(series['last'], unit)}"
    if series["mean"] is not None:
        numbers += f", {number_text(series['low'], unit)} to {number_text(series['high'], unit)}"
        numbers += f", mean {number_text(series['mean'], unit)}" if series["kind"] == "use" else ""
    if series["not_finite_since"] is not None:
        numbers += f'; <b class="alarm">not finite since about step {series["not_finite_since"]}</b>'
    return (
        f'<figure class="chart"><figcaption><b>{html(series["label"], 63)}</b> <span>{span_text(series)}</span>'
        f'</figcaption>{series_svg(series, colour)}<small class="soft">{numbers}</small></figure>'
    )


def curves_html(series: Sequence[Series]) -> str:
    """The curves of a job side by side: what it reports in one colour, what it uses in another. Metrics that stay the
    same, a learning rate say, are a line of text.
    """
    level = [each for each in series if _is_level(each)]
    drawn = [each for each in series if not _is_level(each)]
    figures = "".join(series_figure(each, "p0" if each["kind"] == "metric" else "p2") for each in drawn)
    charts = f'<div class="charts curves-of-job">{figures}</div>' if drawn else ""
    told = ", ".join(f"{visible(each['label'], 63)} {number_text(each['last'], each['unit'])}" for each in level)
    return charts + (note(f"Constant: {told}") if told else "")


def _is_level(series: Series) -> bool:
    """Whether it is a metric of which every sample is the same number."""
    same = series["low"] is not None and series["low"] == series["high"]
    return series["kind"] == "metric" and same and series["samples"] > 1 and not series["not_finite"]


def _runs(places: Sequence[int]) -> list[list[int]]:
    """Places that follow each other, together."""
    found: list[list[int]] = []
    for place in places:
        if found and found[-1][-1] == place - 1:
            found[-1].append(place)
        else:
            found.append([place])
    return found
