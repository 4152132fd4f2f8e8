"""GENIE (TPDS): deadlines met by the cheapest placement and the shortest waiting allowance first; and its baselines.

model.py is section 5 of the paper, policy.py its Algorithm 1, baselines.py section 7.1. None of them suspends anything.
"""

from hpcdl.genie.baselines import Capacity, Fifo, MinMin, TetrisCer, TetrisPerf, WeightedFair
from hpcdl.genie.policy import Genie

POLICIES = (Genie, Fifo, Capacity, MinMin, WeightedFair, TetrisPerf, TetrisCer)
WITH_COST = (Genie, TetrisPerf, TetrisCer)
"""Those that are made with `theta`, the weight of the nodes in the cost of a placement."""

__all__ = ["POLICIES", "WITH_COST", "Capacity", "Fifo", "Genie", "MinMin", "TetrisCer", "TetrisPerf", "WeightedFair"]
