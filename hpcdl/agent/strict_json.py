"""JSON from a file or a socket that may be damaged: whatever is wrong with it is a ValueError.

That includes what Python's reader takes and nothing of ours writes: NaN and infinities, numbers beyond 64 bits,
brackets without end. Standard library only.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

MOST = 1 << 63


def loads(content: str | bytes) -> Any:
    """The value. Raises ValueError, and nothing else."""
    try:
        return json.loads(content, parse_int=_whole, parse_float=_finite, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _whole(text: str) -> int:
    if len(text) > 20 or not -MOST <= (value := int(text)) < MOST:
        raise ValueError(f"the number {text:.20}... is too large")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text:.20} is too large")
    return value


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")
