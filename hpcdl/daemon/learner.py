"""Profiles that are learnt from how jobs train, and how many steps a job will take.

`estimators` has the fits; they are loaded when the first job needs them. Nothing is recorded here.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache

from hpcdl.core.model.plan import Learn, Predict, Profiles
from hpcdl.core.model.profile import MetricPoints, Observations, Profile
from hpcdl.core.model.units import gpu_kind
from hpcdl.core.model.world import World

MOST_NODES = 64
"""A learnt profile has points for so many nodes at most."""

_Shape = tuple[int, int, tuple[str, ...]]


class Learner:
    """The hooks of `Profiles`. What they need is loaded when the first job needs it: that takes a while."""

    def __init__(self, world: Callable[[], World]) -> None:
        """`world`: how it is now; a profile has points for its nodes and kinds of GPU."""
        self._world = world
        self._made: tuple[_Shape, Learn, Predict] | None = None  # one value: threads share it

    def learn(self, key: str, seen: Observations) -> Profile | None:
        """See `Profiles`: the same for the same arguments, as long as nodes and GPUs are the same."""
        return self._fits()[1](key, seen)

    def predict(
        self, key: str, batch: int, seen: tuple[tuple[int, Observations], ...], synchronises: bool
    ) -> Profile | None:
        """See `Profiles`: GENIE's model; the same for the same arguments, as `learn`."""
        return self._fits()[2](key, batch, seen, synchronises)

    def _fits(self) -> tuple[_Shape, Learn, Predict]:
        shape = shape_of(self._world())
        made = self._made
        if made is None or made[0] != shape:
            from hpcdl.estimators.batches import predictor
            from hpcdl.estimators.scaling import learner

            made = self._made = (shape, learner(*shape), predictor(*shape[:2]))
        return made

    def foresee(self, points: MetricPoints, target: float, earlier: MetricPoints) -> float | None:
        """See `Profiles`: Optimus's fit, whose first points are those of an earlier job."""
        return _foreseen(points, target, earlier)

    def profiles(self, by_name: Mapping[str, Profile]) -> Profiles:
        """Those profiles, and the hooks."""
        return Profiles(by_name, self.learn, self.predict, self.foresee)


@lru_cache(maxsize=256)
def _foreseen(points: MetricPoints, target: float, earlier: MetricPoints) -> float | None:
    """Lists, answers and decisions ask for the same again and again."""
    from hpcdl.estimators.convergence import predict_steps, still_to_come

    return predict_steps(points, target, coming=still_to_come(points, earlier))


def shape_of(world: World) -> _Shape:
    """GPUs of the largest node, nodes (up to a power of two, so that it rarely changes), and kinds of GPU."""
    gpus = max((len(node.gpus) for node in world.nodes.values()), default=1)
    nodes = min(MOST_NODES, 1 << max(0, len(world.nodes) - 1).bit_length())
    kinds = {gpu_kind(gpu.name) for node in world.nodes.values() for gpu in node.gpus}
    return max(1, gpus), nodes, tuple(sorted(kinds - {""}))
