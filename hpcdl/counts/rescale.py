"""What each size of an elastic trainer is worth, rescale costs included (BFTrainer, section 3)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hpcdl.counts.table import Item


@dataclass(frozen=True, slots=True)
class Elastic:
    """A trainer that may run on `fewest` to `most` nodes (equations 3 and 4), or on none.

    `points`: (nodes, rate) in rising order, rate 0 or more in any unit; between them the rate is linear (equations 11
    and 12), from (0, 0) to the first one too, and flat after the last. `now`: nodes that it has (0: it does not run).
    `up_s`, `down_s`: seconds that a rescale to more, and to fewer nodes, costs (0 or more).
    """

    fewest: int
    most: int
    points: tuple[tuple[int, float], ...]
    now: int = 0
    up_s: float = 0.0
    down_s: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.most:
            raise ValueError(f"{self.fewest} to {self.most} nodes: the fewest must be 1 or more, the most no less")
        if self.now < 0:
            raise ValueError(f"a trainer cannot have {self.now} nodes")
        nodes = [at for at, _ in self.points]
        if not nodes or nodes[0] < 1 or any(b <= a for a, b in pairwise(nodes)):
            raise ValueError(f"rates at {nodes} nodes: one at least is needed, in rising order, from 1 node on")
        for name, number in (
            *((f"rate at {at} nodes", rate) for at, rate in self.points),
            ("up_s", self.up_s),
            ("down_s", self.down_s),
        ):
            if not (math.isfinite(number) and number >= 0):
                raise ValueError(f"{name} is {number}: it must be 0 or more, and finite")

    def rates(self, sizes: Sequence[int]) -> list[float]:
        """Its rate on each of these numbers of nodes."""
        at = [0, *(nodes for nodes, _ in self.points)]
        rate = [0.0, *(rate for _, rate in self.points)]
        found: list[float] = np.interp(sizes, at, rate).tolist()
        return found


def rescaled(trainer: Elastic, horizon_s: float, pool: int = 0, weight: float = 1.0) -> Item:
    """The item of a trainer: option 0 is no node at all, option i is `fewest - 1 + i` nodes.

    A size n is worth weight * (horizon_s * f(n) - f(now) * R), with R = up_s if n > now, down_s if n < now, else 0
    (equations 13 to 16; horizon_s is the forward-looking time). A stop costs too, so the item is required: its option 0
    is the one without nodes.
    """
    if not (math.isfinite(horizon_s) and horizon_s >= 0):
        raise ValueError(f"a forward-looking time of {horizon_s} s: it must be 0 or more, and finite")
    sizes = np.concatenate([[0], np.arange(trainer.fewest, trainer.most + 1)])
    stall = np.where(sizes > trainer.now, trainer.up_s, np.where(sizes < trainer.now, trainer.down_s, 0.0))
    held = trainer.rates([trainer.now])[0]
    values = weight * (horizon_s * np.array(trainer.rates(sizes.tolist())) - held * stall)
    return Item((pool,) * len(sizes), tuple(sizes.tolist()), tuple(values.tolist()), required=True)
