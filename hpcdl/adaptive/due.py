"""Deadlines in words."""

from datetime import UTC, datetime
from functools import lru_cache

from hpcdl.adaptive.options import Candidate, Floats
from hpcdl.core.units import count, seconds_text


class Clock:
    """Times of day for people, as seen from `now`."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._day = _local(now).date().toordinal()

    def text(self, at: float) -> str:
        """`14:20`; with its day, `21 Nov 14:20`, where that is not today."""
        return _text(int(at // 60), self._day)


def _local(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC).astimezone()


@lru_cache(maxsize=4096)
def _text(minute: int, day: int) -> str:
    there = _local(60.0 * minute)
    return there.strftime("%H:%M" if there.date().toordinal() == day else "%d %b %H:%M")


def late_words(candidate: Candidate, due: float, seconds: Floats, clock: Clock) -> str:
    """Why a job will not be on time. `seconds`: to its end, on each of its options."""
    at = clock.text(due)
    if not candidate.options:
        return f"due at {at}"
    if candidate.left_s is None:
        return f"due at {at}: how long it takes is not known, so its deadline cannot be planned for"
    best = int(seconds.argmin())
    takes_s = float(seconds[best])
    key = (due, candidate.options[best], takes_s, clock.now + takes_s > due)
    known = candidate.job.memo.get("late")
    if known is None or known[0] != key:
        needs = f"needs {seconds_text(takes_s)} on {count(candidate.options[best].units, 'GPU')}"
        beside = "" if clock.now + takes_s > due else " beside those that need less GPU time"
        known = candidate.job.memo["late"] = (key, f"cannot meet its deadline at {at}{beside}: {needs}")
    text: str = known[1]
    return text
