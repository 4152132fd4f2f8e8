"""MARBLE (CCGrid 2020): Algorithm 1, the baseline of its paper, and our variant with warm starts.

Secondaries, which run on what is left of a node, are suspended only to get more GPUs.
"""

from hpcdl.marble.algorithm import Marble, MarbleWarm
from hpcdl.marble.baseline import FifoExclusive

POLICIES = (Marble, MarbleWarm, FifoExclusive)

__all__ = ["POLICIES", "FifoExclusive", "Marble", "MarbleWarm"]
