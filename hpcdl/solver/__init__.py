"""Exact optimisation over counts: units of which pool each job gets, nodes of which group each trainer."""

from hpcdl.counts.allocate import SOLVERS, Allotment, allocate
from hpcdl.counts.fast import prepare
from hpcdl.counts.solver import Solution, dynamic, solve
from hpcdl.counts.table import InfeasibleError, Item
from hpcdl.counts.trainers import Curve, Trainer

__all__ = [
    "SOLVERS",
    "Allotment",
    "Curve",
    "InfeasibleError",
    "Item",
    "Solution",
    "Trainer",
    "allocate",
    "dynamic",
    "prepare",
    "solve",
]
