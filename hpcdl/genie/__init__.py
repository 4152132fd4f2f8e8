"""GENIE (TPDS): deadlines met by the cheapest placement and the shortest waiting allowance first; and its baselines."""

from hpcdl.core.model.plan import Policies
from hpcdl.genie.baselines import Capacity, Fifo, MinMin, TetrisCer, TetrisPerf, WeightedFair
from hpcdl.genie.policy import Genie


def register(policies: Policies) -> None:
    """Adds `genie`, `fifo`, `capacity`, `min-min`, `weighted-fair`, `tetris-perf` and `tetris-cer`."""
    for policy in (Genie, Fifo, Capacity, MinMin, WeightedFair, TetrisPerf, TetrisCer):
        policies.register(policy.name, policy)


__all__ = ["Capacity", "Fifo", "Genie", "MinMin", "TetrisCer", "TetrisPerf", "WeightedFair", "register"]
