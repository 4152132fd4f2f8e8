"""Signals that a batch system sends to every process of a batch job when it wants nodes back, this one included.

They are the agent's to answer: it asks for a suspend, or has the rank leave. By default they would end a trainer that
is about to be asked to save. What the script handles itself is left alone.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

QUIET = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)


def heed(on_terminate: Callable[[], bool], kept: signal.Signals | None) -> None:
    """In the main thread: only a SIGTERM for which `on_terminate` is true ends this process, the others do nothing.

    `kept`: the signal by which a suspend is asked for; it has a handler already.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    mine = os.getpid()
    for number in QUIET:
        if number is not kept and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _nothing)
    if kept is signal.SIGTERM or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def terminated(number: int, frame: FrameType | None) -> Any:
        # A forked child, a data loader's say, is ended by it as ever.
        if os.getpid() != mine or on_terminate():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, terminated)


def _nothing(number: int, frame: FrameType | None) -> None:
    """To be woken is all; unlike SIG_IGN, a program that this one starts does not inherit it."""
