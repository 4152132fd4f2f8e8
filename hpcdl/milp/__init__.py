"""BFTrainer: which elastic trainers get how many of the nodes that come and go, and which ones."""

from hpcdl.core.model.plan import Policies
from hpcdl.milp.policy import BFTrainer, EqualShare
from hpcdl.milp.values import Reallocation


def register(policies: Policies, settings: Reallocation | None = None) -> None:
    """Adds `bftrainer` and `equal-share`."""
    known = settings or Reallocation()
    policies.register(BFTrainer.name, lambda: BFTrainer(known))
    policies.register(EqualShare.name, lambda: EqualShare(known))


__all__ = ["BFTrainer", "EqualShare", "Reallocation", "register"]
