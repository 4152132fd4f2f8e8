"""Policies of peers, as their papers describe them: what ours is compared with in the simulator."""

from hpcdl.baselines.policies import LeastAttainedService, MaxMinFairness, ShortestRemainingTime

POLICIES = (ShortestRemainingTime, LeastAttainedService, MaxMinFairness)
