"""A curve in one line of a terminal, and its numbers in words, from a series as the API answers it.

For `hpcdl show`; pages draw the same series in `report/series`.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

_BARS = "▁▂▃▄▅▆▇█"
_MISSING = "×"
WIDTH = 32


def sparkline(
    values: Sequence[float | None], width: int = WIDTH, *, low: float | None = None, high: float | None = None
) -> str:
    """A bar for each of at most `width` values, of more the means of equal parts; `×` where there is none (NaN).

    `low`, `high`: what the lowest and the highest bar stand for; None: the least and the largest value. "" of no
    values, and where stdout's encoding has no such letters.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        (_BARS + _MISSING).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ""
    shown = _means(values, width)
    finite = [each for each in shown if each is not None]
    least = min(finite, default=0.0) if low is None else low
    most = max(finite, default=0.0) if high is None else high
    return "".join(_MISSING if each is None else _bar(each, least, most) for each in shown)


def _bar(value: float, least: float, most: float) -> str:
    if most <= least:
        return _BARS[0 if value <= 0 else len(_BARS) // 2 - 1]
    part = (value - least) / (most - least)
    return _BARS[max(0, min(len(_BARS) - 1, int(part * len(_BARS))))]


def _means(values: Sequence[float | None], width: int) -> Sequence[float | None]:
    """At most `width` of them, each the mean of what is there of its part."""
    if len(values) <= width:
        return values
    found: list[float | None] = []
    for place in range(width):
        part = values[place * len(values) // width : (place + 1) * len(values) // width]
        known = [each for each in part if each is not None]
        found.append(sum(known) / len(known) if known else None)
    return found


def curve_line(series: Mapping[str, Any], width: int = WIDTH) -> str:
    """The sparkline of a series of the API; of what a job uses from 0 on, of utilisation up to 100 %."""
    used = series["kind"] == "use"
    whole = 100.0 if series["name"] == "gpu_util" else None
    return sparkline(series["points"]["mean"], width, low=0.0 if used else None, high=whole)


def numbers_text(series: Mapping[str, Any]) -> str:
    """`0.31 (0.29 to 2.35)`: the last value, and how low and how high it went; what a job uses by mean and peak."""
    unit = f" {series['unit']}" if series["unit"] else ""
    if series["kind"] == "use":
        if series["mean"] is None:
            return "-"
        return f"{_short(series['last'])}{unit} (mean {_short(series['mean'])}, peak {_short(series['high'])})"
    text = "not finite" if series["last"] is None else f"{series['last']:.4g}"
    if series["not_finite_since"] is not None:
        text += f" since about step {series['not_finite_since']}"
    if series["low"] is None:
        return text
    return f"{text} ({series['low']:.4g} to {series['high']:.4g})"


def _short(number: float | None) -> str:
    if number is None:
        return "?"
    return f"{number:.0f}" if abs(number) >= 10 or number == int(number) else f"{number:.1f}"
