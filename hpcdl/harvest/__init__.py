"""Two levels: BFTrainer's optimisation across whole nodes, packing of single-node jobs on those that are left."""

from hpcdl.harvest.policy import Harvest

POLICIES = (Harvest,)

__all__ = ["POLICIES", "Harvest"]
