"""Means over draws, with their 95 % confidence intervals."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % confidence interval (Student's t; 0 for a single value)."""
    mean = fmean(values)
    if len(values) < 2:
        return mean, 0.0
    from scipy.stats import t  # takes long to load

    return mean, float(t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
