"""Moments and lengths of time as LSF prints them: local time, mostly without a year, with marks behind."""

import calendar
import re
import time

_MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1
    )
}
_MOMENT = re.compile(
    r"(?:[A-Z][a-z]{2} +)?([A-Z][a-z]{2}) +(\d{1,2}) (\d{1,2}):(\d\d)(?::(\d\d))?(?: (\d{4}))?(?: ?[LEX])?"
)
_YEARS_TRIED = (-4, -3, -2, -1, 0, 1, 2, 3, 4)  # 29 February is found again in one of them


def moment(text: str, now: float) -> float | None:
    """Seconds since the epoch of `Feb  2 00:46 L` and its kin, None where `text` is no moment.

    Where the year is not told it is the one nearest to `now`, so that December seen in January is last year's.
    The marks L, E and X of a finish time (by the run limit, by an estimate, exceeded) are dropped.
    """
    found = _MOMENT.fullmatch(text.strip())
    if found is None or found[1] not in _MONTHS:
        return None
    month, day = _MONTHS[found[1]], int(found[2])
    clock = (int(found[3]), int(found[4]), int(found[5] or 0))
    if found[6]:
        return _local(int(found[6]), month, day, clock)
    this_year = time.localtime(now).tm_year
    tried = (_local(this_year + off, month, day, clock) for off in _YEARS_TRIED)
    return min((at for at in tried if at is not None), key=lambda at: abs(at - now), default=None)


def _local(year: int, month: int, day: int, clock: tuple[int, int, int]) -> float | None:
    if not 1 <= day <= calendar.monthrange(year, month)[1] or clock[0] > 23 or clock[1] > 59 or clock[2] > 60:
        return None
    return time.mktime((year, month, day, *clock, 0, 0, -1))


def window_length(text: str) -> float | None:
    """Seconds of bslots' `1 hours 11 minutes 50 seconds`; None for UNLIMITED. Raises ValueError."""
    if text.strip().upper() == "UNLIMITED":
        return None
    found = re.fullmatch(r"(?:(\d+) hours? *)?(?:(\d+) minutes? *)?(?:(\d+) seconds?)?", text.strip())
    if found is None or not any(found.groups()):
        raise ValueError(f"no length of a backfill window: {text.strip()!r}")
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return 3600 * hours + 60 * minutes + seconds


def time_left(text: str) -> float | None:
    """Seconds of the field time_left, `0:1 L` in hours and minutes or `hh:mm:ss`; None where it tells nothing."""
    found = re.fullmatch(r"(\d+):(\d{1,2})(?::(\d{1,2}))?(?: ?[LEX])?", text.strip())
    if found is None:
        return None
    return 3600.0 * int(found[1]) + 60 * int(found[2]) + int(found[3] or 0)


def run_time(text: str) -> float | None:
    """Seconds of the field run_time, `79 second(s)` or `hh:mm:ss`."""
    if found := re.fullmatch(r"(\d+) second\(?s?\)?", text.strip()):
        return float(found[1])
    return time_left(text) if text.count(":") == 2 else None


def run_limit(text: str) -> float | None:
    """Seconds of the field runtimelimit: `1440.0` in minutes, perhaps `/host` behind, or `hh:mm:ss`."""
    first = text.strip().partition("/")[0]
    if re.fullmatch(r"\d+:\d\d:\d\d", first):
        return time_left(first)
    found = re.match(r"\d+(?:\.\d+)?", first)
    return 60 * float(found[0]) if found else None


def clock_length(text: str) -> float | None:
    """Seconds of jobstat's `57:06` (minutes, seconds) and `2:00:00`."""
    parts = text.split(":")
    if not 2 <= len(parts) <= 3 or not all(part.isdecimal() for part in parts):
        return None
    seconds = 0
    for part in parts:
        seconds = 60 * seconds + int(part)
    return float(seconds)


def limit_of(text: str) -> float | None:
    """Seconds of the RUNLIMIT in a block of bjobs -l or bqueues -l: names on a line, `480.0 min of host` below.

    CPULIMIT may stand before it in the same two lines. None where the block tells no run limit.
    """
    found = re.search(r"^ *((?:[A-Z]+LIMIT +)*RUNLIMIT[A-Z ]*)\n([^\n]*)$", text, re.MULTILINE)
    if found is None:
        return None
    timed = [name for name in found[1].split() if name in ("CPULIMIT", "RUNLIMIT")]
    values = re.findall(r"(\d+(?:\.\d+)?) min", found[2])
    at = timed.index("RUNLIMIT")
    return 60 * float(values[at]) if at < len(values) else None
