"""Ours, the default policy: exact counts for all jobs together, with measured costs and the user's objective.

`policy.py` is the way in; `options.py` says what each job could have, and a module for each objective chooses.
"""

from hpcdl.adaptive.policy import Adaptive, AdaptiveFifo

POLICIES = (Adaptive, AdaptiveFifo)

__all__ = ["POLICIES", "Adaptive", "AdaptiveFifo"]
