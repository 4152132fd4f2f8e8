"""Exact optimisation over counts: units of which pool each job gets, for the highest sum of values."""

from hpcdl.counts.rescale import Elastic, rescaled
from hpcdl.counts.solver import Solution, dynamic, solve
from hpcdl.counts.table import InfeasibleError, Item

__all__ = ["Elastic", "InfeasibleError", "Item", "Solution", "dynamic", "rescaled", "solve"]
