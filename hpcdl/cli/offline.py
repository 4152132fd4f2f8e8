"""Verbs that only read, where no daemon answers: from a copy of the ledger, if its last daemon is provably gone.

What is said is "as of" the last event, on stderr, and in JSON under `as_of`. A daemon that starts meanwhile is never
kept waiting. Most calls find a daemon, so what reads the ledger is imported late.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpcdl.cli.output import AS_OF, say
from hpcdl.client import START, Client, ClientError, CopyWithoutDaemon, DaemonAway
from hpcdl.wire.http_client import HttpResponse

if TYPE_CHECKING:
    from hpcdl.daemon.offline import OfflineApi
    from hpcdl.ledger.lease import LeaseHeld
    from hpcdl.ledger.offline import LedgerCopy

T = TypeVar("T")


class LedgerClient(Client):
    """A client that answers GETs from the ledger where no daemon does, and none can be running."""

    def __init__(self, ctx: click.Context, patience_s: float) -> None:
        super().__init__(ctx.find_root().obj, patience_s=patience_s, note=say)
        self._ctx = ctx
        self._stack = ExitStack()
        self._offline: OfflineApi | None = None

    def close(self) -> None:
        """As the client's; removes the copy of the ledger, too."""
        self._offline = None
        self._stack.close()
        super().close()

    def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None, wait_s: float) -> HttpResponse:
        if self._offline is None:
            try:
                return super()._exchange(method, path, body, wait_s)
            except (DaemonAway, CopyWithoutDaemon) as error:
                if method != "GET":
                    raise
                self._offline = self._opened(error)
        status, content = self._offline.get(path)
        if status < 400 and AS_OF not in self._ctx.meta:
            tell_as_of(self._ctx, self._offline.as_of)
        return HttpResponse(status, content, closes=False)

    def _opened(self, away: ClientError) -> "OfflineApi":
        with ExitStack() as stack:
            copy = stack.enter_context(ledger_at_rest(self.home, away))
            from hpcdl.daemon.offline import OfflineApi

            found = OfflineApi(self.home, copy)
            stack.callback(found.close)
            self._stack = stack.pop_all()
        return found


def tell_as_of(ctx: click.Context, at: float) -> None:
    """Says that the answer is as of then (seconds since the epoch): on stderr, and in JSON, which follows."""
    from hpcdl.cli.job_row import moment_text
    from hpcdl.core.model.units import count
    from hpcdl.wire.spool import FOLDER, waiting

    ctx.meta[AS_OF] = at
    home: Path = ctx.find_root().obj
    number = waiting(home)
    spooled = f"; it takes in {count(number, 'submit')} spooled in {home / FOLDER}" if number else ""
    if at:  # something was recorded
        say(f"as of {moment_text(at)}, no daemon: {START}{spooled}")


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
