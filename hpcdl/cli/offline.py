"""Verbs that only read, where no daemon answers: from a copy of the ledger, if its last daemon is provably gone.

What is said is "as of" the last event, on stderr, and in JSON under `as_of`. A daemon that starts meanwhile is never
kept waiting. Most calls find a daemon, so what reads the ledger is imported late.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpcdl.cli.output import AS_OF, say
from hpcdl.client import Client, ClientError, CopyWithoutDaemon, DaemonAway
from hpcdl.wire.http_client import HttpResponse

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from hpcdl.daemon.offline import OfflineApi
    from hpcdl.ledger.lease import LeaseHeld
    from hpcdl.ledger.offline import LedgerCopy

T = TypeVar("T")

AGAIN_S = 10.0
"""So long it is not asked again whether the last daemon is gone, which may take the batch system's word."""


class LedgerReader:
    """Answers GETs of the API from a copy of a home's ledger, if its last daemon is provably gone.

    `shared`: for many clients, in any thread, also one with a running event loop. All is done in one thread of its own,
    and the copy is made anew where the ledger is another one since. Else the first copy serves for good.
    """

    def __init__(self, home: Path, *, shared: bool = False) -> None:
        self._home = home
        self._shared = shared
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None  # made by the first question
        self._stack = ExitStack()
        self._api: OfflineApi | None = None
        self._seen: object = None  # the state of the ledger that was copied
        self._refusal: ClientError | None = None  # why it could not be, at `_refused_at`
        self._refused_at = 0.0

    def get(self, path: str, away: ClientError) -> tuple[int, bytes, float]:
        """The status and the content of the answer, and as of when it is, in seconds since the epoch.

        `away`: how the daemon was missed. Raises ClientError: that it does not answer, and the next step.
        """
        if not self._shared:
            return self._get(path, away)
        with self._lock:
            if self._thread is None:
                from concurrent.futures import ThreadPoolExecutor

                self._thread = ThreadPoolExecutor(1, "hpcdl-ledger")
            answer = self._thread.submit(self._get, path, away)
        return answer.result()

    def close(self) -> None:
        """Removes the copy. The next question makes a new one."""
        if not self._shared:
            self._drop()
            return
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.submit(self._drop)
            thread.shutdown()

    def _get(self, path: str, away: ClientError) -> tuple[int, bytes, float]:
        seen = self._state() if self._api is None or self._shared else self._seen
        if self._api is None or seen != self._seen:
            self._drop()
            if self._shared and self._refusal is not None and time.monotonic() - self._refused_at < AGAIN_S:
                raise self._refusal
            try:
                self._api = self._opened(away)
            except ClientError as error:
                self._refusal, self._refused_at = error, time.monotonic()
                raise
            self._refusal, self._seen = None, seen
        status, content = self._api.get(path)
        return status, content, self._api.as_of

    def _state(self) -> object:
        found = []
        for name in ("ledger.sqlite", "ledger.sqlite-wal", "mark.json"):
            with suppress(OSError):
                status = (self._home / name).stat()
                found.append((name, status.st_ino, status.st_size, status.st_mtime_ns))
        return found

    def _opened(self, away: ClientError) -> "OfflineApi":
        with ExitStack() as stack:
            copy = stack.enter_context(ledger_at_rest(self._home, away))
            from hpcdl.daemon.offline import OfflineApi

            found = OfflineApi(self._home, copy)
            stack.callback(found.close)
            self._stack = stack.pop_all()
        return found

    def _drop(self) -> None:
        self._api = None
        self._stack.close()


class LedgerClient(Client):
    """A client that answers GETs from the ledger where no daemon does, and none can be running."""

    def __init__(
        self,
        home: Path,
        *,
        patience_s: float,
        note: Callable[[str], None] = lambda text: None,
        answer_s: float | None = None,
        tell: Callable[[float], None] = lambda at: None,
        reader: LedgerReader | None = None,
    ) -> None:
        """`tell`: called once, with the time as of which answers are. `reader`: one that is shared, left open."""
        super().__init__(home, patience_s=patience_s, note=note, answer_s=answer_s)
        self._tell = tell
        self._reader = LedgerReader(home) if reader is None else reader
        self._owns_reader = reader is None
        self._away: ClientError | None = None

    def close(self) -> None:
        """As the client's; removes the copy of the ledger, too."""
        if self._owns_reader:
            self._reader.close()
        super().close()

    def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None, wait_s: float) -> HttpResponse:
        if self._away is None or method != "GET":
            try:
                return super()._exchange(method, path, body, wait_s)
            except (DaemonAway, CopyWithoutDaemon) as error:
                if method != "GET":
                    raise
                self._away = error
        try:
            status, content, at = self._reader.get(path, self._away)
        except ClientError:
            self._away = None
            raise
        if status < 400 and self.as_of is None:
            self.as_of = at
            self._tell(at)
        return HttpResponse(status, content, closes=False)


def tell_as_of(ctx: click.Context, at: float) -> None:
    """Says that the answer is as of then (seconds since the epoch): on stderr, and in JSON, which follows."""
    if AS_OF in ctx.meta:
        return
    ctx.meta[AS_OF] = at
    if at:  # something was recorded
        say(as_of_text(ctx.find_root().obj, at))


def as_of_text(home: Path, at: float) -> str:
    """That answers are as of then, and what a daemon would take in."""
    from hpcdl.cli.job_row import moment_text
    from hpcdl.core.model.units import count
    from hpcdl.wire.last_start import start_step
    from hpcdl.wire.spool import FOLDER, waiting

    number = waiting(home)
    spooled = f"; it takes in {count(number, 'submit')} spooled in {home / FOLDER}" if number else ""
    return f"as of {moment_text(at)}, no daemon: {start_step(home)}{spooled}"


@contextmanager
def ledger_at_rest(home: Path, away: ClientError) -> "Iterator[LedgerCopy]":
    """A copy of the ledger of a daemon that is provably gone; `away`: how the daemon was missed.

    Raises ClientError: that it does not answer, and the next step.
    """
    if not (home / "ledger.sqlite").exists() and not (home / "mark.json").exists():
        raise type(away)(f"there is no ledger in {home}, and {away}")
    from hpcdl.core.controller.journal import JournalError
    from hpcdl.ledger.lease import LeaseError, LeaseHeld
    from hpcdl.ledger.offline import copy_at_rest
    from hpcdl.wire.private_files import NotPrivate

    with ExitStack() as stack:
        try:
            copy = proven(home, lambda how: stack.enter_context(copy_at_rest(home, batch_ended=how.get("batch_ended"))))
        except LeaseHeld as error:
            raise _unproven(home, away, error) from None
        except (JournalError, LeaseError, NotPrivate) as error:
            raise type(away)(f"{away}; {error}") from None
        try:
            yield copy
        except JournalError as error:
            what = str(error)
            if "disk is full" not in what:  # in the words of the file that it is a copy of
                what = what.replace(str(copy.path.parent), str(home))
            raise type(away)(f"{away}; {what}") from None


def proven(home: Path, attempt: Callable[[Mapping[str, Any]], T]) -> T:
    """What the attempt returns, which is given arguments of `Lease.acquire`: the batch system is asked only where
    nothing else can tell whether the holder of the lease is gone. Raises LeaseHeld.
    """
    from hpcdl.ledger.lease import LeaseHeld

    try:
        return attempt({})
    except LeaseHeld as error:
        if error.here or error.holder is None or error.holder.batch_job is None:
            raise
    from hpcdl.allocation.detect import look_around
    from hpcdl.config.settings import load_config
    from hpcdl.daemon.clock import WallClock

    here = look_around(load_config(home).batch, now=WallClock(0.0).now)
    return attempt({"batch_job": here.batch_job, "batch_ended": here.batch_ended})


def _unproven(home: Path, away: ClientError, held: "LeaseHeld") -> ClientError:
    """Where a daemon may run, and does not answer."""
    if isinstance(away, CopyWithoutDaemon):
        return away
    if held.holder is None:
        return DaemonAway(f"the daemon of {home} does not answer; {held}")
    if held.here:
        step = f"if it is just starting or stopping, try again in a moment; else see {home}/daemon.log"
    else:
        step = f"it cannot be seen from here whether it is gone: look there with hpcdl daemon status, or {held.step}"
    return DaemonAway(f"the daemon of {home}, {held.holder}, does not answer: {step}")
