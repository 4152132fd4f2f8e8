"""Signals of a batch system: none is lost and none locks the process up, at whatever line it comes."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

from hpcdl.allocation.signals import Signals

ALL_LINES = 1000


def test_a_signal_at_each_line_of_a_wait() -> None:
    """Lines of what `wait` calls included. Each time another one, until there are no more."""
    for line in range(ALL_LINES):
        seen = 0

        def trace(frame: FrameType, event: str, argument: Any, line: int = line) -> Any:
            nonlocal seen
            if event == "line":
                seen += 1
                if seen == line + 1:
                    os.kill(os.getpid(), signal.SIGUSR2)
            return trace

        with Signals((signal.SIGUSR2,)) as signals:
            sys.settrace(trace)
            try:
                said = signals.wait(0.02)
            finally:
                sys.settrace(None)
            if seen <= line:
                assert signals.first == said == ""
                break
            assert signals.wait(60.0 if not signals.first else 0.0) == "SIGUSR2"
    else:
        raise AssertionError(f"a wait of more than {ALL_LINES} lines")
    assert line > 1
