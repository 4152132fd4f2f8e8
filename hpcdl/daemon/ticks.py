"""Functions that the daemon calls at intervals, by APScheduler: renewals, looks, retention.

A tick runs in a thread of a small pool and may wait for a disk. One that fails is an event that users see, and comes
again; it never ends the daemon.
"""

import logging
from collections.abc import Callable

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobExecutionEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from hpcdl.daemon.memory import end_without_memory

log = logging.getLogger("hpcdl.daemon")


class Ticks:
    """Named ticks at intervals. A late one runs once when it can; after an error the next still comes."""

    def __init__(self, on_trouble: Callable[[str, str], None]) -> None:
        """`on_trouble(where, detail)`: called from the scheduler's threads."""
        self._on_trouble = on_trouble
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(2)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone="UTC",
        )
        self._scheduler.add_listener(self._tell, EVENT_JOB_ERROR | EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES)

    def every(self, seconds: float, name: str, function: Callable[[], object]) -> None:
        """Calls `function` each `seconds`."""
        self._scheduler.add_job(function, "interval", seconds=seconds, id=name, name=name)

    def start(self) -> None:
        """Begins."""
        self._scheduler.start()

    def stop(self) -> None:
        """Ends; a tick that runs is not waited for."""
        self._scheduler.shutdown(wait=False)

    def _tell(self, event: JobExecutionEvent) -> None:
        if event.code == EVENT_JOB_ERROR:
            end_without_memory(event.exception)
            # A disk that is full, or no descriptor left: where that was met says nothing more.
            traceback = "" if isinstance(event.exception, OSError) else f"\n{event.traceback}"
            log.error("tick %s failed: %s%s", event.job_id, event.exception, traceback)
            self._on_trouble(f"tick {event.job_id}", f"{type(event.exception).__name__}: {event.exception}")
        elif event.code == EVENT_JOB_MISSED:
            self._on_trouble(f"tick {event.job_id}", "was missed")
        else:
            log.info("tick %s still runs; this one is left out", event.job_id)
