"""Connections that no fork cuts in half.

A forked process has one thread, and the locks of all. What another thread held just then, in OpenSSL or for an import,
nobody releases there, and whoever asks the daemon there waits for ever. So a fork waits until the other threads have
made their connections. Python warns of every thread that there is at a fork (from 3.12 on), but need not warn of ours.
"""

import os
import re
import sys
import threading
import warnings
from pathlib import Path

from hpcdl.cli.offline import LedgerClient, LedgerReader, as_of_text
from hpcdl.cli.submit_line import submit_line
from hpcdl.client import PATIENCE_S, Client
from hpcdl.wire import last_start
from hpcdl.wire.http_client import HttpConnection

WAIT_S = 5.0
"""A fork waits so long: a daemon that is silent holds nobody up for more."""

THREAD = "hpcdl-jobs"
"""The name of threads that do nothing else that a fork may cut in half."""

_WARNING = ("ignore", re.compile(r"This process .*is multi-threaded, use of fork"), DeprecationWarning, None, 0)
"""As an entry of `warnings.filters`."""

last_start.submit_line = submit_line

_gate = threading.Condition()
_connecting: set[int] = set()
"""Threads."""


class ThreadClient(Client):
    """A client for a process with several threads, which may fork."""

    def _connect(self) -> HttpConnection:
        thread = threading.get_ident()
        with _gate:
            _connecting.add(thread)
        try:
            return super()._connect()
        finally:
            with _gate:
                _connecting.discard(thread)
                _gate.notify_all()


class ReadingClient(ThreadClient, LedgerClient):
    """The same, which answers from the ledger where no daemon runs, and warns then of when that was."""

    def __init__(self, home: Path, patience_s: float = PATIENCE_S) -> None:
        # A reader with a thread of its own: here an event loop may run.
        super().__init__(home, patience_s=patience_s, tell=self._warn, reader=LedgerReader(home, shared=True))
        self._owns_reader = True

    def _warn(self, at: float) -> None:
        if at:
            warn(as_of_text(self.home, at))


def warn(text: str) -> None:
    """A UserWarning of the line that called hpcdl, however deep in it this is."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _OURS.match(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


_OURS = re.compile(r"(hpcdl|contextlib)(\.|$)")


def _before_fork() -> None:
    _gate.acquire()  # and nobody begins until it is over
    _gate.wait_for(lambda: _connecting <= {threading.get_ident()}, WAIT_S)
    _choose_warning()


def _choose_warning() -> None:
    """Python's warning of this fork is to be seen where there are others' threads."""
    try:
        threads = len(os.listdir("/proc/self/task"))  # as Python counts them, with those of libraries
    except OSError:
        threads = threading.active_count()
    ours = sum(each.name == THREAD for each in threading.enumerate())
    filters: list[object] = warnings.filters  # type: ignore[assignment]  # a list, so that it can be changed
    if _WARNING in filters:
        filters.remove(_WARNING)
    if ours and threads == 1 + ours:
        filters.insert(0, _WARNING)


def _after_fork_here() -> None:
    _gate.release()


def _after_fork_there() -> None:
    global _gate
    _gate = threading.Condition()
    _connecting.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_here, after_in_child=_after_fork_there)
