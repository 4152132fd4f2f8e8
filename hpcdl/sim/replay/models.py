"""Models that trainers of a replay train: samples/s by number of nodes, read from a table like BFTrainer's Table 2."""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcdl.core.profile import MAX_NODES, Profile
from hpcdl.profiles import conf_folder
from hpcdl.sim.readers.source import Place, read_text
from hpcdl.sim.readers.table import rows_of
from hpcdl.sim.workload import WorkloadError

Rates = NDArray[np.float64]
"""Samples/s by number of nodes: entry n is for n nodes, entry 0 is 0."""

ALL = "table2"
"""The name that stands for all models of the table in turn."""

MOST_RATE = 1e9


@dataclass(frozen=True, slots=True)
class Model:
    """A model's weak scaling: `points` are (nodes, samples/s), rising in nodes.

    Between points the rate is linear, from (0, 0) to the first one too; beyond the last one it is that of the last.
    WorkloadError where the numbers make no sense.
    """

    name: str
    points: tuple[tuple[int, float], ...]
    _rates: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise WorkloadError(f"a model's name must be printable and not empty, got {self.name!r}")
        nodes = [count for count, _ in self.points]
        if not nodes or nodes != sorted(set(nodes)) or not 1 <= nodes[0] <= nodes[-1] <= MAX_NODES:
            raise WorkloadError(f"model {self.name}: numbers of nodes must rise from 1 on, got {nodes}")
        for count, rate in self.points:
            if not 0 < rate <= MOST_RATE:
                raise WorkloadError(f"model {self.name}: {rate:g} samples/s on {count} nodes: must be above 0")

    def rates(self, most: int) -> Rates:
        """Samples/s on 0 to `most` nodes. Read only."""
        found: Rates | None = self._rates.get(most)
        if found is None:
            nodes, rates = zip((0, 0.0), *self.points, strict=True)
            found = np.interp(np.arange(most + 1), nodes, rates)
            found.flags.writeable = False
            self._rates[most] = found
        return found

    @property
    def per_node(self) -> "Model":
        """In units of what it does on its fewest nodes: the same one each time."""
        return _per_node(self)

    def profile(self, most: int, **times: Any) -> Profile:
        """Its profile with one GPU on each of 1 to `most` nodes: a step is a sample."""
        rates = self.rates(most)
        wanted = sorted({1, most} | {count for count, _ in self.points if count <= most})
        points = tuple((count, 1, float(rates[count])) for count in wanted)
        return replace(Profile(self.name, points, source="a table of samples/s by nodes"), **times)


@lru_cache(maxsize=256)
def _per_node(model: Model) -> Model:
    one = model.points[0][1]
    return replace(model, points=tuple((nodes, rate / one) for nodes, rate in model.points))


def table2() -> tuple[Model, ...]:
    """The seven models of BFTrainer's Table 2, from conf/workloads."""
    return _read(conf_folder() / "workloads" / "bftrainer_table2.csv")


@lru_cache(maxsize=4)
def _read(path: Path) -> tuple[Model, ...]:
    return read_models(path)


def read_models(path: Path) -> tuple[Model, ...]:
    """The models of a table: `nodes` and a column each, in thousand samples/s. WorkloadError with file and line."""
    path = Path(path)
    points: dict[str, list[tuple[int, float]]] = {}
    before = 0
    for place, cells in rows_of(path, read_text(path), ("nodes",), None):
        nodes = place.whole("nodes", cells["nodes"], 1, MAX_NODES)
        if nodes <= before:
            place.wrong("nodes", f"{nodes} is not above that of the row before, {before}: sort the rows")
        before = nodes
        for name, text in cells.items():
            if name != "nodes":
                rate = place.number(name, text, 0.0, MOST_RATE / 1000)
                points.setdefault(name, []).append((nodes, 1000 * rate))
    if not points:
        Place(path).wrong("", "names no model below its header: its columns are nodes and one for each model")
    return tuple(Model(name, tuple(listed)) for name, listed in points.items())


def chosen(name: str, models: tuple[Model, ...]) -> tuple[Model, ...]:
    """The model of that name, in any case; all of them for `table2`. WorkloadError: there is none."""
    if name.casefold() == ALL:
        return models
    found = tuple(model for model in models if model.name.casefold() == name.casefold())
    if not found:
        names = ", ".join(model.name for model in models)
        raise WorkloadError(f"no model {name!r}: there are {names}, and {ALL} for all of them in turn")
    return found
