"""Commands that go on until a signal ends them: Ctrl-C, SIGTERM and SIGHUP end them cleanly, with 128 + the signal.

`ls --watch`, `page --every` and `metrics --every` are one function that is repeated; `top` waits for keys as well.
Nothing here asks the daemon or prints but for the loss of the daemon. Commands that end by themselves (`wait`,
`logs --follow`) do without.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, NoReturn

import click

from hpcdl.cli.output import say
from hpcdl.client import DaemonAway
from hpcdl.wire.readable import readable

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal has come that ends the command."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class RepeatUntilSignal:
    """`with RepeatUntilSignal() as rounds: while True: ...; rounds.wait((), 10)`.

    Signals end the block by Interrupted, which goes no further than the block and becomes the command's exit code.
    """

    def __init__(self, handlers: Mapping[int, Any] | None = None) -> None:
        """`handlers`: of other signals, meanwhile; they end a wait, too."""
        self._handlers = handlers or {}
        self._ends = False
        self._came: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "RepeatUntilSignal":
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        self._waker = signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        hup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup
        for number in _ENDING:
            if number != signal.SIGHUP or not hup_ignored:
                self._before[number] = signal.signal(number, self._take)
        self._before |= {number: signal.signal(number, handler) for number, handler in self._handlers.items()}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._waker)
        os.close(self._woken)
        os.close(self._wakes)
        if isinstance(error, Interrupted):
            raise click.exceptions.Exit(128 + error.number) from None

    def _take(self, number: int, frame: FrameType | None) -> None:
        if not self._ends:  # a second one changes nothing: the end is a matter of milliseconds
            self._ends, self._came = True, number
            raise Interrupted(number)

    def end(self) -> None:
        """No signal changes anything from here on: the end has begun."""
        self._ends = True

    def wait(self, files: Sequence[int], seconds: float | None) -> list[int]:
        """Waits so long (None: for ever) for something to read, or a signal: those of the files that have something.

        A signal that came just before is in the pipe, so none is missed.
        """
        ready = readable([self._woken, *files], seconds)
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._came is not None:
            raise Interrupted(self._came)
        return ready


def repeat(every_s: float, once: Callable[[], None], last: Callable[[], None] = lambda: None) -> NoReturn:
    """Calls `once` every `every_s` seconds until a signal ends the command, then `last`.

    A daemon that goes away is waited for, and said to be away and back. Raises DaemonAway where the first call does.
    """
    with RepeatUntilSignal() as rounds:
        try:
            began, away = time.monotonic(), False
            once()
            while True:
                rounds.wait((), max(min(every_s, 1.0), began + every_s - time.monotonic()))
                began = time.monotonic()
                try:
                    once()
                except DaemonAway as error:
                    if not away:
                        say(f"{error}; waiting for it")
                    away = True
                else:
                    if away:
                        say("the daemon is back")
                    away = False
        except Interrupted:
            last()
            raise
