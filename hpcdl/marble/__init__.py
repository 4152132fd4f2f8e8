"""MARBLE (CCGrid 2020): Algorithm 1, its baseline, and our variant with warm starts."""

from hpcdl.core.policy import Policies
from hpcdl.marble.algorithm import Marble
from hpcdl.marble.baseline import FifoExclusive
from hpcdl.marble.warm import MarbleWarm


def register(policies: Policies) -> None:
    """Adds `marble`, `marble-warm` and `fifo-exclusive`."""
    policies.register(Marble.name, Marble)
    policies.register(MarbleWarm.name, MarbleWarm)
    policies.register(FifoExclusive.name, FifoExclusive)


__all__ = ["FifoExclusive", "Marble", "MarbleWarm", "register"]
