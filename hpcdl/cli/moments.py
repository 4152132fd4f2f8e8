"""Times as users write them."""

import re
from datetime import datetime, timedelta
from typing import Any

import click

from hpcdl.core.units import parse_duration
from hpcdl.daemon.clock import Clock


def moment(text: str, now: float) -> float:
    """`+2h` from now, the next `18:30`, or a date with its time: seconds since the epoch. Raises ValueError."""
    today = datetime.fromtimestamp(now).astimezone()
    if text.startswith("+"):
        return (today + timedelta(seconds=parse_duration(text[1:]))).timestamp()
    if re.fullmatch(r"\d{1,2}:\d{2}", text):
        hour, minute = map(int, text.split(":"))
        then = today.replace(hour=hour, minute=minute, second=0, microsecond=0)
        return (then if then > today else then + timedelta(days=1)).timestamp()
    found = datetime.fromisoformat(text.upper())
    return (found if found.tzinfo is not None else found.astimezone()).timestamp()


def past_moment(text: str, now: float) -> float:
    """`-2h` before now, the last `18:30`, a date, or one with its time: seconds since the epoch. Raises ValueError."""
    today = datetime.fromtimestamp(now).astimezone()
    if text.startswith("-"):
        return (today - timedelta(seconds=parse_duration(text[1:]))).timestamp()
    if re.fullmatch(r"\d{1,2}:\d{2}", text):
        hour, minute = map(int, text.split(":"))
        then = today.replace(hour=hour, minute=minute, second=0, microsecond=0)
        return (then if then <= today else then - timedelta(days=1)).timestamp()
    return moment(text, now)


class Moment(click.ParamType[float]):
    """A time, as seconds since the epoch: one to come (`+2h`, the next `18:30`), or a `past` one (`-2h`).

    `if_past`: what is said of a time to come that is over; "": nothing.
    """

    name = "time"

    def __init__(self, *, past: bool = False, if_past: str = "") -> None:
        self._past = past
        self._if_past = if_past

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The time. Fails with examples."""
        now = Clock(0.0).now()
        try:
            at = past_moment(value.strip(), now) if self._past else moment(value.strip(), now)
        except (ValueError, OverflowError):
            example = "-2h, 18:30, 2026-05-01" if self._past else "+2h, 18:30"
            self.fail(f"{value!r} is no time: give {example} or 2026-05-01T08:00", param, ctx)
        if self._if_past and at < now:
            self.fail(f"{value!r} is past: {self._if_past}", param, ctx)
        return at
