"""Ours: the default policy. Exact counts for all jobs together, with measured costs and the user's objective."""

from hpcdl.adaptive.policy import Adaptive, AdaptiveFifo
from hpcdl.core.model.plan import Policies


def register(policies: Policies) -> None:
    """Adds `adaptive` and `adaptive-fifo`."""
    policies.register(Adaptive.name, Adaptive)
    policies.register(AdaptiveFifo.name, AdaptiveFifo)


__all__ = ["Adaptive", "AdaptiveFifo", "register"]
