"""A child that ends with its parent, whatever ends that: for `preexec_fn`.

For agents, their supervisors, the steps of a batch script, the first process of a batch job and solvers, none of which
leaves anything behind. `trainer/ranks` has its own: trainers see nothing of hpcdl but the trainer library.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

PR_SET_PDEATHSIG = 1

# Loaded now: between fork and exec nothing may be imported or looked up.
prctl = ctypes.CDLL(None, use_errno=True).prctl


def dies_with(
    parent: int, then: Callable[[], object] | None = None, number: signal.Signals = signal.SIGKILL
) -> Callable[[], None]:
    """What a child does between fork and exec, or first of all, to get this signal when its parent (or the thread that
    forked it) ends.

    `then`: what it does besides.
    """

    def prepare() -> None:
        prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os.kill(os.getpid(), number)
        if then is not None:
            then()

    return prepare
