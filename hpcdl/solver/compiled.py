"""The arithmetic of kernels.py: plain, or compiled by numba where that is installed (the extra `fast`).

To load numba takes half a second, to compile many; what is compiled is kept on disk, beside the sources or, where these
cannot be written, in numba's folder of the user. So it is only loaded once enough was solved to be worth it, or by
`prepare`. Answers are as good with and without, within the bound that they state, but need not be the same ones.
"""

from collections.abc import Sequence
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np

from hpcdl.solver import kernels

WORTH_LOADING = 100  # solves before what is compiled is loaded
WORTH_COMPILING = 5_000  # solves before it is compiled


class _Compilation:
    """What was loaded so far in this process."""

    solves = 0
    tried = False
    compiled: SimpleNamespace | None = None


def arithmetic() -> Any:
    """The functions of kernels.py, compiled where they are loaded."""
    return _Compilation.compiled or kernels


def compiled() -> bool:
    """Whether the compiled functions are in use; then `cooled` is fast."""
    return _Compilation.compiled is not None


def prepare() -> bool:
    """Load what is compiled, or compile it (some seconds, once); whether it can be used from now on."""
    if not _Compilation.tried:
        _Compilation.tried = True
        try:
            import numba
        except ImportError:  # also where numba does not know the numpy that is installed
            return False
        _Compilation.compiled = _compiled(numba)
    return compiled()


def count_solve() -> None:
    """One more solve: the compiled functions are loaded, and then compiled, once that is worth it."""
    if not _Compilation.tried:
        _Compilation.solves += 1
        if (_Compilation.solves == WORTH_LOADING and _on_disk()) or _Compilation.solves == WORTH_COMPILING:
            prepare()


def _compiled(numba: Any) -> SimpleNamespace:
    found = _jitted(numba, [name for name, each in vars(kernels).items() if isinstance(each, FunctionType)])
    # What is called with these types is loaded or compiled here, not in the middle of the first solve.
    one, zero, real = np.array([1]), np.array([0]), np.array([1.0, 1.0])
    two, none = np.array([0, 2]), np.array([False, False])
    rows = kernels.Rows(zero.repeat(2), two - 1, two, two, two, none, two, zero, one, 1, 0)
    found.searched(rows, found.opened(rows, 1), 1, 9, 1, 1)
    found.lay_out(np.array([[0, -1, -1, 0, 0, 1]]), zero, real[:1], real.repeat(2)[None, :3].copy(), 1.0)
    found.cooled(two, two, real, zero, real[:1], real[:1].copy(), 1.0, 0.5)
    return found


def _jitted(numba: Any, names: Sequence[str]) -> SimpleNamespace:
    """Copies of functions of kernels.py, compiled at their first call, which call one another, not the plain ones."""
    there = dict(vars(kernels))
    for name in names:
        function = FunctionType(getattr(kernels, f"_{name}_loop", there[name]).__code__, there)
        try:
            there[name] = numba.njit(cache=True)(function)
        except RuntimeError:  # no folder that can be written
            there[name] = numba.njit(function)
    return SimpleNamespace(**there)


def _on_disk() -> bool:
    """Whether what is compiled is on disk."""
    try:
        import numba
    except ImportError:
        _Compilation.tried = True
        return False
    numbers = numba.int64[::1]
    try:
        function = _jitted(numba, ["span_max"]).span_max
        return function._cache.load_overload((numbers, numbers), function.targetctx) is not None
    except Exception:  # numba's own affair, which may change: then it counts as not there
        return False
