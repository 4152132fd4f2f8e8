"""`tied`: a process that ends with the first one of the batch job, for where that is killed its nodes are not ours."""

import ctypes
import os
import signal
from collections.abc import Callable

PR_SET_PDEATHSIG = 1

# Loaded now: between fork and exec nothing may be imported or looked up.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def tied() -> Callable[[], None]:
    """For `preexec_fn`: the child gets SIGTERM when this process dies, however that happens. From the main thread."""
    parent = os.getpid()

    def prepare() -> None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os.kill(os.getpid(), signal.SIGTERM)

    return prepare
