"""Whether the script of this process has come to its end: its main thread returned from it, or from sys.exit(0).

What is left then is teardown: threads that are waited for, exit handlers, the interpreter's own. A script that an
exception, or another exit code, has ended did not come to its end.
"""

from __future__ import annotations

import atexit
import functools
import opcode
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any

_left_by_exit = False  # the main thread's last sys.exit() was one with 0
_exit = sys.exit


class ScriptEnd:
    """Watches the main thread. Where the script was left by `raise SystemExit`, whose code nobody sees, nothing is
    said."""

    def __init__(self, on_end: Callable[[], object]) -> None:
        """`on_end`: called once, when the script has come to its end."""
        self._on_end = on_end
        self._said = False
        self._script = _outermost_frame()
        # As the main thread ends, before the others are waited for: not in Python 3.8, nor once that has begun.
        with suppress(AttributeError, RuntimeError):
            threading._register_atexit(self._look)  # type: ignore[attr-defined]
        atexit.register(self._look)

    def _look(self) -> None:
        if not self._said and (_has_returned(self._script) or (_left_by_exit and not _has_failed())):
            self._said = True
            self._on_end()


def _remember(status: Any = None, /) -> Any:
    """In the place of sys.exit."""
    global _left_by_exit
    if threading.current_thread() is threading.main_thread():
        _left_by_exit = (status is None or (isinstance(status, int) and status == 0)) and not _in_a_handler()
    return _exit(status)


def _in_a_handler() -> bool:
    """Whether a signal's handler is under way in this thread: what it exits with says nothing of the script."""
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    codes = [code for each in handlers if (code := _code_of(each))]
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None


def _code_of(handler: Any) -> CodeType | None:
    """What a call of it runs; None of what is not written in Python, or is no handler."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if callable(handler) and not hasattr(handler, "__code__"):
        handler = type(handler).__call__
    return getattr(handler, "__code__", None)


if os.environ.get("HPCDL_SOCKET"):
    sys.exit = _remember  # before the script's last statement, `sys.exit(main())` say, has looked it up


def _outermost_frame() -> FrameType | None:
    """The main thread's: the script's module, or what runs it."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _has_returned(frame: FrameType | None) -> bool:
    """Whether the last instruction of a frame that runs no more is a return, and not one that raised."""
    return frame is not None and opcode.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN_")


def _has_failed() -> bool:
    """An exception that nobody caught has been shown."""
    return getattr(sys, "last_value", None) is not None
