"""Times of day on pages: `14:02`, with the date where it is another day, and the marks of an axis at round times.

Pure: the callers say what the local time of a moment is, for instance `datetime.fromtimestamp`.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

Local = Callable[[float], datetime]
"""The local time of seconds since the epoch."""

_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


def moment_text(at: float, local: Local) -> str:
    """`2026-11-24 14:02:05`."""
    return f"{local(at):%Y-%m-%d %H:%M:%S}"


def clock_text(at: float, now: float, local: Local, *, seconds: bool = False) -> str:
    """`14:02`; `23 Nov 14:02` for another day than that of `now`, and the whole date for another year."""
    then, today = local(at), local(now)
    time = f"{then:%H:%M:%S}" if seconds else f"{then:%H:%M}"
    if then.date() == today.date():
        return time
    return f"{then.day} {then:%b} {time}" if then.year == today.year else f"{then:%Y-%m-%d} {time}"


def clock_marks(begin: float, length: float, local: Local, most: int = 8) -> list[tuple[float, str]]:
    """Percents of the width and texts at round local times, `most` of them at most; the first of a day has its date
    where the axis goes over several days."""
    if length <= 0:
        return [(0.0, f"{local(begin):%H:%M:%S}")]
    step: float = next((each for each in _STEPS_S if length / each < most), 86400)
    while length / step >= most:
        step *= 2
    start = local(begin)
    midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
    at = begin - (start - midnight) / timedelta(seconds=1)
    at += -(-(begin - at) // step) * step
    several = local(begin + length).date() != start.date()
    marks, day = [], None
    while at <= begin + length:
        then = local(at)
        text = f"{then:%H:%M:%S}" if step < 60 else f"{then:%H:%M}"
        if several and then.date() != day:
            text = f"{then.day} {then:%b}" if step >= 86400 else f"{then.day} {then:%b} {text}"
            day = then.date()
        marks.append((100.0 * (at - begin) / length, text))
        at += step
    return marks
