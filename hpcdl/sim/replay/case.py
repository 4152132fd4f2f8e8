"""What is replayed: models, trainers, costs and the policy's objective. Values only.

`run` makes a workload of it; `studies` varies one value at a time.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcdl.config.layers import conf_folder
from hpcdl.core.model.job import LARGEST
from hpcdl.core.model.milp_solvers import MILP_SOLVERS
from hpcdl.core.model.profile import MAX_NODES, Profile
from hpcdl.core.model.units import meant
from hpcdl.milp.counting import MILP_POLICIES
from hpcdl.sim.readers.source import Place, read_text, rows_of
from hpcdl.sim.workload import WorkloadError

Rates = NDArray[np.float64]
"""Samples/s by number of nodes: entry n is for n nodes, entry 0 is 0."""

ALL = "table2"
"""The name that stands for all models of the table in turn."""

MOST_RATE = 1e9


@dataclass(frozen=True, slots=True)
class ScalingModel:
    """A model's weak scaling: `points` are (nodes, samples/s), rising in nodes.

    Between points the rate is linear, from (0, 0) to the first one too; beyond the last one it is that of the last.
    WorkloadError where the numbers make no sense.
    """

    name: str
    points: tuple[tuple[int, float], ...]

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
        return _rates(self, most)

    @property
    def per_node(self) -> "ScalingModel":
        """In units of what it does on its fewest nodes: the same one each time."""
        return _per_node(self)

    def profile(self, most: int, **times: Any) -> Profile:
        """Its profile with one GPU on each of 1 to `most` nodes: a step is a sample."""
        rates = self.rates(most)
        wanted = sorted({1, most} | {count for count, _ in self.points if count <= most})
        points = tuple((count, 1, float(rates[count])) for count in wanted)
        return replace(Profile(self.name, points, source="a table of samples/s by nodes"), **times)


@lru_cache(maxsize=1024)
def _rates(model: ScalingModel, most: int) -> Rates:
    nodes, rates = zip((0, 0.0), *model.points, strict=True)
    found: Rates = np.interp(np.arange(most + 1), nodes, rates)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=256)
def _per_node(model: ScalingModel) -> ScalingModel:
    one = model.points[0][1]
    return replace(model, points=tuple((nodes, rate / one) for nodes, rate in model.points))


def table2() -> tuple[ScalingModel, ...]:
    """The seven models of BFTrainer's Table 2, from conf/workloads."""
    return _read(conf_folder() / "workloads" / "bftrainer_table2.csv")


@lru_cache(maxsize=4)
def _read(path: Path) -> tuple[ScalingModel, ...]:
    return read_models(path)


def read_models(path: Path) -> tuple[ScalingModel, ...]:
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
    return tuple(ScalingModel(name, tuple(listed)) for name, listed in points.items())


def chosen(name: str, models: tuple[ScalingModel, ...]) -> tuple[ScalingModel, ...]:
    """The model of that name, in any case; all of them for `table2`. WorkloadError: there is none."""
    if name.casefold() == ALL:
        return models
    found = tuple(model for model in models if model.name.casefold() == name.casefold())
    if not found:
        names = [model.name for model in models]
        otherwise = f"there are {', '.join(names)}, and {ALL} for all of them in turn"
        raise WorkloadError(f"no model {name!r}: {meant(name, (*names, ALL), otherwise)}")
    return found


ACCOUNTINGS = ("paper", "stall")

MOST_SECONDS = 1e6

MOST_PARALLEL = 1_000


@dataclass(frozen=True, slots=True)
class ReplayCase:
    """A queue of trainers under a policy, first come, first served. WorkloadError where a value makes no sense.

    models: what the trainers of the queue train, in turn; `parallel` of them are active, none has any node at first.
    arrivals: when each trainer joins the queue, seconds, rising; None: there is always another one.
    scale_up_s, scale_down_s: R_up and R_dw of eq. 13, seconds; a start is a scale-up. t_fwd_s: the horizon of eq. 16,
    None: adaptive. samples: of each trainer; it runs on `fewest` to `most` nodes.
    milp_solver: who solves the program of `bftrainer` and `harvest`, one of MILP_SOLVERS.
    believed: what users say of the models, in the same order; (): the truth. learns: nobody says anything, and the
    daemon learns from what the trainers report: curves, and costs where they take time.
    accounting: "paper": a rescale takes no time, R x f(C) samples are subtracted for it (eq. 16); "stall": a trainer
    makes no progress for R seconds.
    """

    models: tuple[ScalingModel, ...]
    policy: str = "bftrainer"
    parallel: int = 10
    scale_up_s: float = 20.0
    scale_down_s: float = 5.0
    t_fwd_s: float | None = 120.0
    accounting: str = "paper"
    objective: str = "throughput"
    samples: int = 130_000_000
    fewest: int = 1
    most: int = 64
    milp_solver: str = "exact"
    arrivals: tuple[float, ...] | None = None
    believed: tuple[ScalingModel, ...] = ()
    learns: bool = False

    def __post_init__(self) -> None:
        if not self.models:
            raise WorkloadError("a replay needs a model at least")
        if self.believed and (self.learns or len(self.believed) != len(self.models)):
            raise WorkloadError("what is believed of the models is one for each, and none where they are learnt")
        if not 1 <= self.parallel <= MOST_PARALLEL:
            raise WorkloadError(f"parallel must be from 1 to {MOST_PARALLEL}, got {self.parallel}")
        for key in ("scale_up_s", "scale_down_s"):
            seconds: float = getattr(self, key)
            if not 0 <= seconds <= MOST_SECONDS:
                raise WorkloadError(f"{key} must be from 0 to {MOST_SECONDS:g} seconds, got {seconds:g}")
        if self.t_fwd_s is not None and not (math.isfinite(self.t_fwd_s) and 0 < self.t_fwd_s <= MOST_SECONDS):
            raise WorkloadError(f"t_fwd_s must be above 0 and up to {MOST_SECONDS:g} seconds, got {self.t_fwd_s:g}")
        if self.accounting not in ACCOUNTINGS:
            raise WorkloadError(f"no accounting {self.accounting!r}: there are {', '.join(ACCOUNTINGS)}")
        if self.milp_solver not in MILP_SOLVERS:
            raise WorkloadError(f"no solver {self.milp_solver!r}: there are {', '.join(MILP_SOLVERS)}")
        if self.milp_solver != "exact" and self.policy not in MILP_POLICIES:
            raise WorkloadError(
                f"a MILP solver is for {' and '.join(MILP_POLICIES)}: {self.policy} has no program that it could solve"
            )
        if not 1 <= self.samples <= LARGEST:
            raise WorkloadError(f"samples must be from 1 to {LARGEST}, got {self.samples}")
        if not 1 <= self.fewest <= self.most <= MAX_NODES:
            raise WorkloadError(f"nodes {self.fewest}:{self.most}: needs 1 <= MIN <= MAX <= {MAX_NODES}")
        if self.arrivals is not None and not _rise(self.arrivals):
            raise WorkloadError("arrivals must be some numbers of seconds from 0 on, none before the one ahead of it")

    @property
    def in_paper(self) -> bool:
        """Whether rescales take no time, and their cost is subtracted."""
        return self.accounting == "paper"

    def model_of(self, place: int) -> ScalingModel:
        """Of the trainer at a place of the queue, from 0 on."""
        return self.models[place % len(self.models)]


def _rise(times: tuple[float, ...]) -> bool:
    return bool(times) and all(0 <= before <= after < math.inf for before, after in pairwise((0.0, *times)))
