"""BFTrainer (HPDC 2021): which elastic trainers get how many of the nodes that come and go, and which ones.

`policy.py` decides for the daemon; `problem.py`, `solve.py` and `answer.py` are `hpcdl allocate`, with any solver.
"""

from hpcdl.milp.policy import BFTrainer, EqualShare
from hpcdl.milp.values import Reallocation

POLICIES = (BFTrainer, EqualShare)

__all__ = ["POLICIES", "BFTrainer", "EqualShare", "Reallocation"]
