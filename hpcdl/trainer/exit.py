"""The end of a process that has nothing left to do: without the interpreter's teardown.

With PyTorch that takes seconds. What the script wants done is done: `finally`, `with`, and what it registered with
`atexit` since hpcdl was imported. Then the process is gone at once, and with it what it holds of its GPUs.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
from typing import NoReturn

_code: int | None = None
_EARLIER: int = atexit._ncallbacks() - 1  # logging's own is there, and done below


def leave(code: int) -> NoReturn:
    """Exit with `code`: raises SystemExit, and the process ends where the interpreter's teardown would begin.

    Who catches the SystemExit and goes on still exits with `code` in the end.
    """
    global _code
    _code = code
    raise SystemExit(code)


def nothing_is_lost() -> bool:
    """Whether `leave` does all that was registered: nothing was before hpcdl was imported."""
    return _EARLIER <= 0


def _at_exit() -> None:
    if _code is None:
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or nobody reads it
            stream.flush()
    os._exit(_code)


def _after_fork() -> None:
    global _code
    _code = None


atexit.register(_at_exit)  # the first to be registered is the last to be called
os.register_at_fork(after_in_child=_after_fork)
