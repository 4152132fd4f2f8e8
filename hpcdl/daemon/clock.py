"""The daemon's clock: the only place that reads the time of day.

Everything else gets the time as an argument, or measures on a monotonic clock.
"""

import time


class WallClock:
    """Seconds since the epoch that never run backwards, whatever happens to the machine's clock.

    The time of day is read once, at the start; from there on the monotonic clock counts. A time of day that lies
    before what the ledger has seen (the clock was stepped back) continues from the ledger's.
    """

    def __init__(self, not_before: float) -> None:
        """`not_before`: the time of the newest event in the ledger."""
        at = time.time()
        self.set_back = at < not_before
        """Whether the time of day lies before `not_before`: how long ago that was is not known."""
        self._base = max(at, not_before) - time.monotonic()

    def now(self) -> float:
        """Seconds since the epoch, monotonic within and across daemons of one ledger."""
        return self._base + time.monotonic()
