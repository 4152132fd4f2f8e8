"""How the loop over a generator was left, for a generator that is being closed: Python tells it no more than that.

A `break`, or a `return`, drops the generator in the frame of the loop, by an instruction of its own; an exception,
sys.exit() or a signal's handler drops it where it was raised, or where the exception is forgotten.
"""

from __future__ import annotations

import inspect
import opcode
import sys
from types import FrameType

DROPS = ("POP_TOP", "POP_ITER")  # what `break` and `return` drop a loop's iterator by; since Python 3.14 the second
ITERATES = ("FOR_ITER", "SEND", "YIELD_FROM")
AT_YIELD = ("YIELD_VALUE", "RESUME")


class LoopExit:
    """Of one generator, which calls `entered` whenever it runs on, and `is_break` where it catches GeneratorExit."""

    def __init__(self) -> None:
        self._loop: tuple[int, object] | None = None  # the loop's frame, which is not kept alive by that

    def entered(self) -> None:
        """Whoever asks for the next value now has the loop."""
        frame = sys._getframe(2)
        while frame.f_back is not None and _is_generator(frame):
            frame = frame.f_back
        self._loop = id(frame), frame.f_code

    def is_break(self) -> bool:
        """Whether the loop was left by `break` or `return`. Generators round it, such as a progress bar's, may be
        closed with it, or leave theirs. False where somebody else closes it, or nobody holds it any more: of that
        nothing is known."""
        frame = sys._getframe(1).f_back  # None as the interpreter ends
        left = False  # a generator round it has left its own loop, or was closed and says nothing of it
        while frame is not None:
            instruction = _instruction(frame)
            if not _is_generator(frame):
                if left:
                    return instruction in (*DROPS, *ITERATES)
                return instruction in DROPS and self._loop == (id(frame), frame.f_code)
            if instruction in DROPS:
                left = True
            elif instruction not in (AT_YIELD if not left else (*AT_YIELD, *ITERATES)):
                return False
            frame = frame.f_back
        return False


def _is_generator(frame: FrameType) -> bool:
    return bool(frame.f_code.co_flags & inspect.CO_GENERATOR)


def _instruction(frame: FrameType) -> str:
    """The one under way; what stands behind it for the interpreter's own use is a part of it."""
    code, place = frame.f_code.co_code, frame.f_lasti
    while place > 0 and opcode.opname[code[place]] == "CACHE":
        place -= 2
    return opcode.opname[code[place]]
