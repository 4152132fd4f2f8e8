"""Commands that do the same again and again until somebody ends them: Ctrl-C, SIGTERM and SIGHUP end them cleanly."""

import os
import select
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal has asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class RepeatUntilSignal:
    """`with Rounds() as rounds: while True: …; rounds.pause(10)`. Signals end it by Ended, which goes no further than
    the block and is the command's exit code; inside `rounds.whole()` they wait for the end of that.
    """

    def __init__(self, handlers: Mapping[int, Any] | None = None) -> None:
        """`handlers`: of other signals, meanwhile; they end a wait, too."""
        self._handlers = handlers or {}
        self._whole = False
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
        if self._whole or self._came is not None:
            self._came = number  # the second one changes nothing either: the end is a matter of milliseconds
            return
        self._came = number
        raise Interrupted(number)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """What is begun in here is done, whatever signal comes."""
        self._whole = True
        try:
            yield
        finally:
            self._whole = False
        if self._came is not None:
            raise Interrupted(self._came)

    def end(self) -> None:
        """No signal changes anything from here on: the end has begun."""
        self._whole = True

    def pause(self, seconds: float) -> None:
        """Waits so long."""
        self.wait((), seconds)

    def wait(self, files: Sequence[int], seconds: float | None) -> list[int]:
        """Waits so long (None: for ever) for something to read, or a signal: those of the files that have something.

        A signal that came just before is in the pipe, so none is missed.
        """
        ready, _, _ = select.select([self._woken, *files], [], [], seconds)
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._came is not None:
            raise Interrupted(self._came)
        return ready
