"""GENIE (TPDS): deadlines met by the cheapest placement and the shortest waiting allowance first; and its baselines."""

from hpcdl.genie.baselines import Capacity, Fifo, MinMin, TetrisCer, TetrisPerf, WeightedFair
from hpcdl.genie.policy import Genie

POLICIES = (Genie, Fifo, Capacity, MinMin, WeightedFair, TetrisPerf, TetrisCer)

__all__ = ["POLICIES", "Capacity", "Fifo", "Genie", "MinMin", "TetrisCer", "TetrisPerf", "WeightedFair"]
