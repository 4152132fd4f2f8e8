"""Exact optimisation over counts: units of which pool each job gets, nodes of which group each trainer.

`solve` takes items with any options (policies over GPUs), `allocate` trainers with curves (policies over nodes). Pure:
no clock, no chance; budgets count work, so the same input has the same answer, with or without numba.
"""

from hpcdl.solver.compiled import prepare
from hpcdl.solver.nodes import SOLVERS, Allotment, allocate
from hpcdl.solver.solver import Solution, dynamic, solve
from hpcdl.solver.table import InfeasibleError, Item
from hpcdl.solver.trainers import ElasticTrainer, ThroughputCurve

__all__ = [
    "SOLVERS",
    "Allotment",
    "ElasticTrainer",
    "InfeasibleError",
    "Item",
    "Solution",
    "ThroughputCurve",
    "allocate",
    "dynamic",
    "prepare",
    "solve",
]
