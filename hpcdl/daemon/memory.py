"""A daemon without memory ends at once, and says so in its log: one that goes on would answer some, and others never.

Nothing is lost by that. What was acknowledged is in the ledger, whoever waits for an answer gets none and asks the next
daemon, and agents keep their trainers meanwhile.
"""

import errno
import logging
import mmap
import os
import sys
import threading
import time
from typing import NoReturn

EXIT = 5

ROOM_BYTES = 9 << 20
"""So much must be there to be had: a thread's stack, without which no request is answered any more."""

LOOK_S, LOOKS = 0.5, 4
"""How often it is looked for, and how often in a row it must be missing: a large request gives back what it took."""

_reserve = [bytearray(8 << 20)]
"""What a last line needs; freed for it."""

ENDED = (
    "no memory is left (ulimit -v, or the machine's): the daemon ends, and trainers go on; hpcdl daemon start, where "
    "it may have more, goes on with all that was acknowledged"
)


def end_without_memory(error: BaseException | None) -> None:
    """Ends the process where this error says that no memory is left; else returns."""
    threadless = isinstance(error, RuntimeError) and str(error) == "can't start new thread"  # Python's only word for it
    if threadless or isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        _end()


_LINE = f" CRITICAL hpcdl.daemon: {ENDED}\n".encode()


def _end() -> NoReturn:
    _reserve.clear()
    try:
        # Logging would swallow what it meets on the way, and take more than this does.
        line = time.strftime("%Y-%m-%d %H:%M:%S,000").encode() + _LINE
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler):
                os.write(handler.stream.fileno(), line)
    finally:
        os._exit(EXIT)


def watch_memory() -> None:
    """From now on a thread looks whether memory can be had, and what threads raise ends the process where it cannot."""
    before = threading.excepthook

    def raised(thread: threading.ExceptHookArgs) -> None:
        end_without_memory(thread.exc_value)
        before(thread)

    threading.excepthook = raised
    sys.unraisablehook = _unraisable
    threading.Thread(target=_look, name="memory", daemon=True).start()


def _unraisable(met: "sys.UnraisableHookArgs") -> None:
    end_without_memory(met.exc_value)
    sys.__unraisablehook__(met)


def _look() -> None:
    missing = 0
    while True:
        time.sleep(LOOK_S)
        try:
            mmap.mmap(-1, ROOM_BYTES).close()
            missing = 0
        except OSError as error:
            missing += 1
            if missing >= LOOKS:
                end_without_memory(error)
