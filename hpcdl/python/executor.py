"""An executor of `concurrent.futures` whose calls are jobs; and the thread that waits for many jobs at once.

It asks the daemon about all jobs in one request, however many are waited for. `handle` is one job.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, Unpack

from hpcdl.cli.job_row import FINISHED
from hpcdl.client import FOLLOW_S, ApiError, Client, path_with
from hpcdl.python.connection import THREAD, ThreadClient, warn
from hpcdl.python.handle import Job
from hpcdl.python.options import Options, check
from hpcdl.python.submission import Case, call_cases, call_now

P = ParamSpec("P")
T = TypeVar("T")

SHORTEST_S, LONGEST_S = 0.1, 1.0
"""Between two looks at the jobs that are waited for: after one that ended, and while none does."""
PIECE = 500
"""Jobs in one question."""


class JobFuture(Future[T]):
    """The future result of a `job`; to cancel it cancels the job, also one that runs."""

    def __init__(self, job: Job[T]) -> None:
        super().__init__()
        self.job = job
        self._cancelling = threading.Lock()

    def cancel(self) -> bool:
        """Cancel the job; False where it is over."""
        with self._cancelling:
            if self.done():
                return self.cancelled()
            try:
                self.job.cancel()
            except ApiError as error:
                if error.code != "finished":
                    raise
                return False
            if not super().cancel():
                return False
            self.set_running_or_notify_cancel()
            return True

    def running(self) -> bool:
        """Whether the job runs now."""
        return not self.done() and self.job.state == "RUNNING"


class Executor(futures.Executor):
    """Calls functions as jobs: `with hpcdl.Executor(gpus=1) as pool: pool.submit(train, 0.1)`.

    The options are those of each job; one that is none, or has a value that is none, raises SubmitError at once. Jobs
    outlive this process: only `cancel` of a future, and `shutdown` with `cancel_futures`, end some.
    """

    def __init__(self, **options: Unpack[Options]) -> None:
        check(options)
        self._options = options
        self._open: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._down = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> JobFuture[T]:
        """Queue a call; all arguments are the function's. Raises as `hpcdl.submit`, RuntimeError after a shutdown."""
        self._check()
        return self._future(call_now(fn, args, kwargs, self._options))

    def map(
        self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[T]:
        """As `Executor.map`, by one submit of an array."""
        self._check()
        end = None if timeout is None else time.monotonic() + timeout
        cases: list[Case] = [(each, {}) for each in zip(*iterables, strict=False)]
        found = [self._future(each) for each in call_cases(fn, cases, {}, self._options, spool=False)] if cases else []
        return (each.result(None if end is None else max(0.0, end - time.monotonic())) for each in found)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; `wait` for those there are, with `cancel_futures` cancel those that never ran."""
        with self._lock:
            self._down = True
            left = list(self._open)
        if cancel_futures:
            for each in left:
                if isinstance(each, JobFuture) and not each.done() and each.job.info["started_at"] is None:
                    each.cancel()
        if wait:
            futures.wait(left)

    def _check(self) -> None:
        if self._down:
            raise RuntimeError("cannot schedule new futures after shutdown")

    def _future(self, job: Job[T]) -> JobFuture[T]:
        found = JobFuture(job)
        with self._lock:
            self._open.add(found)
        found.add_done_callback(self._forget)
        follow(job, found)
        return found

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._open.discard(future)


class _Follower:
    """One thread for the jobs of one daemon, while some are waited for."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._waiting: dict[Job[Any], list[Future[Any]]] = {}
        self._held: set[Job[Any]] = set()  # those of which it was said that they wait for their user
        self._woken = threading.Event()
        self._runs = False

    def add(self, job: Job[T], future: Future[T]) -> None:
        with self._lock:
            self._waiting.setdefault(job, []).append(future)
            begin, self._runs = not self._runs, True
        self._woken.set()
        if begin:
            threading.Thread(target=self._run, name=THREAD, daemon=True).start()

    def _run(self) -> None:
        pause_s = SHORTEST_S
        with ThreadClient(self._home, patience_s=FOLLOW_S) as client:
            while True:
                with self._lock:
                    jobs = list(self._waiting)
                    if not jobs:
                        self._runs = False
                        return
                ended: Iterable[Job[Any]] = ()
                try:
                    ended = self._ended(client, jobs)
                    for job in ended:
                        self._settle(job)
                except Exception as error:
                    for job in jobs:
                        self._settle(job, error)
                pause_s = SHORTEST_S if ended else min(LONGEST_S, 1.5 * pause_s)
                if self._woken.wait(pause_s if len(jobs) > len(list(ended)) else 0.0):
                    pause_s = SHORTEST_S
                self._woken.clear()

    def _ended(self, client: Client, jobs: Sequence[Job[Any]]) -> list[Job[Any]]:
        """Those that are finished, and those that the daemon does not know, of which `result` raises that."""
        left: set[int] = set()
        held: set[int] = set()
        for first in range(0, len(jobs), PIECE):
            some = ",".join(str(each.id) for each in jobs[first : first + PIECE])
            rows = client.get(path_with("/v1/jobs", all=1, ids=some, fields="id,state,held_after"))["jobs"]
            left |= {row["id"] for row in rows if row["state"] not in FINISHED}
            held |= {row["id"] for row in rows if row.get("held_after")} & left
        before, self._held = self._held, {job for job in jobs if job.id in held}
        for job in self._held - before:
            self._tell_held(job)
        return [job for job in jobs if job.id not in left]

    def _tell_held(self, job: Job[Any]) -> None:
        try:
            warn(f"job {job.id} is {job.info['reason']}")
        except UserWarning as error:  # whoever makes errors of warnings gets one of this job
            self._settle(job, error)

    def _settle(self, job: Job[Any], error: Exception | None = None) -> None:
        """Put how the job ended into the futures; `error`: that nobody knows."""
        value = None
        if error is None:
            try:
                value = job.result()
            except Exception as raised:
                error = raised
        with self._lock:
            waiting = self._waiting.pop(job, [])
        for future in waiting:
            with contextlib.suppress(futures.InvalidStateError):  # it was cancelled
                if error is None:
                    future.set_result(value)
                else:
                    future.set_exception(error)


_followers: dict[Path, _Follower] = {}
_followers_lock = threading.Lock()


def _after_fork() -> None:
    """The threads are the parent's, and so may be who holds the lock."""
    global _followers_lock
    _followers_lock = threading.Lock()
    _followers.clear()


os.register_at_fork(after_in_child=_after_fork)


def follow(job: Job[T], future: Future[T]) -> None:
    """Set the job's result, or how it ended, in the future once it is finished."""
    with _followers_lock:
        follower = _followers.setdefault(job.home, _Follower(job.home))
    follower.add(job, future)
