"""The most that trainers can do on so many nodes when rescaling is free: F(N), for every N at once.

A dynamic program over (max, +): what a mix of trainers does best on N nodes is the best split of N between its last one
and the others. The yardstick of U (eq. 18), and of what no policy can surpass.
"""

from collections.abc import Sequence

import numpy as np

from hpcdl.sim.replay.models import Model, Rates


class Best:
    """F by mix of models: `of(mix)[n]` is the best total samples/s of these trainers on n whole nodes.

    A trainer has no nodes, or `fewest` to `most` of them. Mixes are remembered, and those of a run differ little.
    """

    def __init__(self, nodes: int, fewest: int, most: int) -> None:
        self.nodes = nodes
        self._fewest, self._most = fewest, min(most, nodes)
        self._models: dict[str, Model] = {}
        self._known: dict[tuple[str, ...], Rates] = {(): np.zeros(nodes + 1)}

    def of(self, mix: Sequence[Model]) -> Rates:
        """For 0 to `nodes` nodes; never falls. Read only."""
        for model in mix:
            self._models[model.name] = model
        return self._of(tuple(sorted(model.name for model in mix)))

    def at(self, mix: Sequence[Model], nodes: float) -> float:
        """On a number of nodes that need not be whole: linear between whole ones."""
        return float(np.interp(nodes, np.arange(self.nodes + 1), self.of(mix)))

    def _of(self, names: tuple[str, ...]) -> Rates:
        found = self._known.get(names)
        if found is None:
            found = best_split(self._of(names[:-1]), self._alone(self._models[names[-1]]))
            found.flags.writeable = False
            self._known[names] = found
        return found

    def _alone(self, model: Model) -> Rates:
        rates = model.rates(self._most).copy()
        rates[1 : self._fewest] = -np.inf
        return rates


def best_split(others: Rates, alone: Rates) -> Rates:
    """max over k of others[n - k] + alone[k], for every n; as long as `others`. Nodes may stay idle: it never falls."""
    most = len(alone) - 1
    before = np.concatenate([np.full(most, -np.inf), others])
    windows = np.lib.stride_tricks.sliding_window_view(before, most + 1)
    together: Rates = np.maximum.accumulate((windows + alone[::-1]).max(axis=1))
    return together
