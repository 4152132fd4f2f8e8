"""Times as users write them."""

import re
from datetime import datetime, timedelta

from hpcdl.core.units import parse_duration


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
