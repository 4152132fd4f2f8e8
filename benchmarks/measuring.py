"""What several benchmarks need: the setting that a figure is of, and what a process has used by /proc."""

import os
import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def setting() -> dict[str, Any]:
    """The machine as it is now: cores that this process may use, Python, the load before the run."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }


def cpu_s(pid: int) -> float:
    """Seconds of CPU time, user and system, that a process has used so far, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def wakes(pid: int) -> int:
    """How often threads of the process have gone to sleep so far: each was woken as often."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for line in (thread / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                total += int(line.split()[1])
    return total


def memory_mib(pid: int) -> dict[str, float]:
    """`rss`: what is in memory; `pss`: the same with what several processes share counted once among them."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, *rest = line.split()
        if name in ("Rss:", "Pss:"):
            found[name[:-1].lower()] = round(int(rest[0]) / 1024, 1)
    return found


def parts_of(values: Sequence[float], digits: int = 1) -> dict[str, float]:
    """p50, p90 and how many there are; empty where there are none."""
    ordered = sorted(values)
    if not ordered:
        return {}
    return {
        "p50": round(statistics.median(ordered), digits),
        "p90": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.9))], digits),
        "n": len(ordered),
    }


def say(text: str) -> None:
    """A line of progress, on standard error."""
    sys.stderr.write(f"{text}\n")
