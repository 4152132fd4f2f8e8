"""Numbers on the command line."""

import math
from typing import Any

import click

from hpcdl.core.units import parse_duration


class Finite(click.FloatRange):
    """A range of numbers that refuses NaN too, which no bound keeps out."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


class Seconds(Finite):
    """So many seconds: `90`, `1.5`, or with units, `90s`, `45min`, `1h30m`."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = -math.inf
        try:
            value = parse_duration(value) if number == -math.inf else number
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a number of seconds, nor a time like 90s, 5m or 1h30m", param, ctx)
        return super().convert(value, param, ctx)
