"""Whether a process is at work: it lives, and uses a CPU or reads and writes."""

from pathlib import Path

Work = tuple[int, ...]


class Activity:
    """Of one process. Times are any monotonic clock's."""

    def __init__(self, pid: int, now: float) -> None:
        self._pid = pid
        self._work: Work = ()
        self._moved_at = now

    def moved(self, now: float) -> None:
        """It said something itself."""
        self._moved_at = now

    def still_s(self, now: float) -> float:
        """Seconds for which nothing of it has moved, as far as looks tell."""
        work = _work(self._pid)
        if work != self._work:
            self._work, self._moved_at = work, now
        return now - self._moved_at


def _work(pid: int) -> Work:
    """CPU ticks, and bytes read and written; () where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        ticks = (int(fields[11]), int(fields[12]))
    except (OSError, IndexError, ValueError):
        return ()
    try:
        lines = Path(f"/proc/{pid}/io").read_text().split()
        return (*ticks, *(int(each) for each in lines if each.isdecimal()))
    except (OSError, ValueError):
        return ticks
