"""Placement, which policies share: from "this job gets so many GPUs" to GPUs on nodes, and the reasons for it."""

from hpcdl.placement.pool import Pool, impossible, pool_of, waiting

__all__ = ["Pool", "impossible", "pool_of", "waiting"]
