"""Long calculations side by side, each in a process of its own, as many at once as there are processors.

Neighbours: `sweep`, the studies of `papers` and of `replay`. One that fails costs its own result only.
"""

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

from hpcdl.core.model.units import seconds_text

T = TypeVar("T")
Progress = Callable[[str], None]
"""Is called with a line on what is ready."""


def in_processes(
    calls: Mapping[str, Callable[[], T]], progress: Progress, workers: int | None = None
) -> tuple[dict[str, T], list[str]]:
    """The results of the calls by name, begun in the order of `calls`; and a line for each one that failed.

    The calls and their results are sent between processes: functions of modules, or `functools.partial` of them.
    `workers`: so many at once; None: one for each processor.
    """
    begun = time.monotonic()
    found: dict[str, T] = {}
    problems: list[str] = []
    with ProcessPoolExecutor(min(workers or len(os.sched_getaffinity(0)), len(calls))) as pool:
        running = {pool.submit(call): name for name, call in calls.items()}
        for number, ready in enumerate(as_completed(running), 1):
            name = running[ready]
            try:
                found[name] = ready.result()
            except Exception as error:  # what the others took minutes for is not thrown away
                problems.append(f"{name}: {error}")
            progress(f"{name} is ready after {seconds_text(time.monotonic() - begun)}, {len(calls) - number} to go")
    return found, problems
