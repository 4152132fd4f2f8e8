"""Policies of peers, as their papers describe them: what ours is compared with in the simulator.

The simulator and the figures of docs/policies.md use them; the daemon offers them too.
"""

from hpcdl.baselines.policies import LeastAttainedService, MaxMinFairness, ShortestRemainingTime

POLICIES = (ShortestRemainingTime, LeastAttainedService, MaxMinFairness)
