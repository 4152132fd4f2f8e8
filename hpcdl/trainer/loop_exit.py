"""How the loop over a generator was left, for a generator that is being closed: Python tells it no more than that.

A `break`, or a `return`, drops the generator by an instruction of its own; an exception, sys.exit() or a signal's
handler drops it where it was raised.
"""

from __future__ import annotations

import inspect
import opcode
import sys
from types import FrameType

DROPS = ("POP_TOP", "POP_ITER")  # what `break` and `return` drop a loop's iterator by; since Python 3.14 the second


def left_by_break() -> bool:
    """Whether the loop over the generator that calls this, when it catches GeneratorExit, was left by `break` or
    `return`. Generators round it, such as a progress bar's, may be closed with it. False where somebody else closes it,
    or nobody holds it any more: of that nothing is known."""
    generator = sys._getframe(1)
    frame = generator.f_back
    while frame is not None and _is_closed_with(frame):
        frame = frame.f_back
    return frame is not None and _instruction(frame) in DROPS


def _is_closed_with(frame: FrameType) -> bool:
    """A generator that stands at its `yield`, where it was closed itself."""
    at_yield = _instruction(frame) in ("YIELD_VALUE", "RESUME")
    return at_yield and bool(frame.f_code.co_flags & inspect.CO_GENERATOR)


def _instruction(frame: FrameType) -> str:
    return opcode.opname[frame.f_code.co_code[frame.f_lasti]]
