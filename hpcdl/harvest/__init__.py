"""Two levels: BFTrainer's optimisation across whole nodes, packing of single-node jobs on those that are left.

On top of hpcdl/milp, which spreads the jobs of several nodes, and of `adaptive` or `marble`, which pack the others.
"""

from hpcdl.harvest.policy import Harvest

POLICIES = (Harvest,)

__all__ = ["POLICIES", "Harvest"]
