"""Two levels: BFTrainer's optimisation across whole nodes, packing within those that are left."""

from hpcdl.core.model.plan import Policies
from hpcdl.harvest.policy import Harvest
from hpcdl.milp import Reallocation


def register(policies: Policies, settings: Reallocation | None = None) -> None:
    """Adds `harvest`."""
    known = settings or Reallocation()
    policies.register(Harvest.name, lambda: Harvest(known))


__all__ = ["Harvest", "register"]
