"""Waiting for something to read, in a process with any number of open files (`select` takes the first 1,024 only)."""

import math
import select
from collections.abc import Sequence


def readable(descriptors: Sequence[int], seconds: float | None) -> list[int]:
    """Those with something to read, or at their end, as soon as there is one; [] after so long (None: never)."""
    poll = select.poll()
    for each in descriptors:
        poll.register(each, select.POLLIN)
    return [each for each, _ in poll.poll(None if seconds is None else max(0, math.ceil(1000 * seconds)))]
