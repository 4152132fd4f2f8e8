"""The loops of kernels.py, compiled by numba where it is installed (the extra `fast`).

To load numba takes half a second, to compile the loops several; what is compiled is kept on disk, beside the sources
or, where these cannot be written, in numba's folder of the user. So they are only loaded once enough was asked for to
be worth it, or by `prepare`. Answers are the same with and without.
"""

from types import ModuleType
from typing import Any

import numpy as np

from hpcdl.counts import kernelprices, kernels

LOOPS = ("columns", "plus", "price_of", "greedy", "solved")  # those that are called come before those that call
PRICES = ("softened", "newton", "cooled")
WORTH_LOADING = 300  # times asked for, some three in a solve, before what is compiled is loaded
WORTH_COMPILING = 15_000  # the same, before it is compiled


class _Loaded:
    """What was loaded so far in this process: never part of an answer."""

    asked = 0
    tried = False
    ready = False


def prepare() -> bool:
    """Load what is compiled, or compile it (some seconds, once); whether it can be used from now on."""
    if not _Loaded.tried:
        _Loaded.tried = True
        try:
            import numba
        except ImportError:  # also where numba does not know the numpy that is installed
            return False
        _compile(numba)
        _Loaded.ready = True
    return _Loaded.ready


def loops() -> ModuleType | None:
    """The compiled loops, or None: do without."""
    if _Loaded.ready:
        return kernels
    if _Loaded.tried:
        return None
    _Loaded.asked += 1
    if _Loaded.asked == WORTH_LOADING:
        try:
            import numba
        except ImportError:
            _Loaded.tried = True
            return None
        return kernels if _kept(numba) and prepare() else None
    return kernels if _Loaded.asked >= WORTH_COMPILING and prepare() else None


def _compile(numba: Any) -> None:
    for module, name in [*((kernels, name) for name in LOOPS), *((kernelprices, name) for name in PRICES)]:
        function = getattr(module, name)
        try:
            compiled = numba.njit(cache=True)(function)
        except RuntimeError:  # no folder that can be written
            compiled = numba.njit(function)
        setattr(module, name, compiled)
    # What is called with these types is loaded or compiled here, not in the middle of the first solve.
    two, one = np.array([0, 0]), np.array([0])
    kernels.solved(two, np.array([0, 2]), np.array([0, 2]), two, np.array([False, False]), two, one, 1, 1, 100)
    wide, real = np.array([[1, 2, 0, 0, 0]]), np.array([[1.0, 1.0, 0.0, 0.0, 0.0]])
    kernels.columns(
        wide, real, np.array([[0, 0, 0, 1]]), real[:, :2].copy(), one + 2, real[0], one[:0], one + 2, 40, 1e250
    )
    kernelprices.cooled(two, two, real[0, :2], one, real[0, :1], real[0, :1].copy(), 1.0, 0.5)
    kernels.plus(one, one, one + 1, one, one, one, 0, 1)
    none = np.array([False, False])
    kernels.price_of(np.array([0, 2]), np.array([0, 2]), one, 1, one + 1, one.copy())
    kernels.greedy(two, np.array([0, 2]), np.array([0, 2]), none, two, 1, two, one)


def _kept(numba: Any) -> bool:
    """Whether what is compiled is on disk."""
    numbers, whole = numba.int64[::1], numba.int64
    types = (numbers,) * 4 + (numba.boolean[::1],) + (numbers,) * 2 + (whole,) * 3
    try:
        function = numba.njit(cache=True)(kernels.solved)
        return function._cache.load_overload(types, function.targetctx) is not None
    except Exception:  # numba's own affair, which may change: then it counts as not there
        return False
