"""MARBLE (CCGrid 2020): Algorithm 1, its baseline, and our variant with warm starts."""

from hpcdl.core.model.plan import Policies
from hpcdl.marble.algorithm import Marble, MarbleWarm
from hpcdl.marble.baseline import FifoExclusive


def register(policies: Policies) -> None:
    """Adds `marble`, `marble-warm` and `fifo-exclusive`."""
    policies.register(Marble.name, Marble)
    policies.register(MarbleWarm.name, MarbleWarm)
    policies.register(FifoExclusive.name, FifoExclusive)


__all__ = ["FifoExclusive", "Marble", "MarbleWarm", "register"]
