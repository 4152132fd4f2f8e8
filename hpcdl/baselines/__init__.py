"""Policies of peers, as their papers describe them: what ours is compared with."""

from hpcdl.baselines.policies import LeastAttainedService, MaxMinFairness, ShortestRemainingTime
from hpcdl.core.model.plan import Policies


def register(policies: Policies) -> None:
    """Adds `srt`, `las` and `max-min`."""
    for policy in (ShortestRemainingTime, LeastAttainedService, MaxMinFairness):
        policies.register(policy.name, policy)


__all__ = ["LeastAttainedService", "MaxMinFairness", "ShortestRemainingTime", "register"]
