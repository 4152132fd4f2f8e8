"""Numbers on the command line."""

import math
from typing import Any

import click


class Finite(click.FloatRange):
    """A range of numbers that refuses NaN too, which no bound keeps out."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number
