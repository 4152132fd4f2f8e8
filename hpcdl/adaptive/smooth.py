"""Rates that are known with an error, made to look like a scaling curve again."""

from functools import lru_cache

import numpy as np


@lru_cache(maxsize=4096)
def concave(gpus: tuple[int, ...], rates: tuple[float, ...]) -> tuple[float, ...]:
    """The concave curve through 0 that is nearest to the rates (steps/s, relative least squares), at those numbers.

    `gpus`: ascending. Every further GPU gains at most what the one before did, and may cost; what does not hold that is
    taken for an error. The best of noisy rates is as a rule one whose error is high: without this, whoever picks it is
    disappointed.
    """
    if len(gpus) < 3:
        return rates
    from scipy.optimize import nnls  # it takes long to load

    at, given = np.array(gpus, dtype=np.float64), np.array(rates)
    shapes = np.array([at] + [-np.maximum(0.0, at - knot) for knot in at[:-1]]).T
    weights, _ = nnls(shapes / given[:, None], np.ones(len(given)))
    curve = np.maximum(shapes @ weights, 0.01 * given)
    return tuple(float(rate) for rate in curve)
