"""MalleTrain (Ma et al., ICPE 2024): elastic trainers over idle nodes whose curves nobody knows, learnt as they run.

Three sets of jobs, fixed beforehand: an architecture search, in which no trainer scales as another does, a
hyperparameter search on two of Table 2's models, and both in turn. Each is replayed with the true curves, with two
kinds of guesses, and with the daemon's own learner, under `bftrainer` on the sample of idle nodes.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from hpcdl.config.layers import conf_folder
from hpcdl.sim.generators import chance
from hpcdl.sim.papers.table import PaperRow, PaperTable, paper_file
from hpcdl.sim.replay.case import ReplayCase, ScalingModel, table2
from hpcdl.sim.replay.idle import IdleTrace, read_idle
from hpcdl.sim.replay.outcome import ReplayWindow, replayed
from hpcdl.sim.workload import WorkloadError

SEEDS = (0,)

HOURS, FIRST_H = 12.0, 1.0
"""Hours of the sample of idle nodes, and those before what is measured."""

SAMPLES = 39_000_000
"""Of each trainer: 30 epochs of ImageNet, where BFTrainer's replays train for 100."""

ARCHITECTURES = 400
SERIAL = (0.0015, 0.1)
"""The part of a step that more nodes do not shorten, by architecture: log-uniform from that of Table 2's VGG-16, which
scales best, to five times that of its AlexNet, which scales worst."""
SAMPLES_S = (1_000.0, 7_100.0)
"""Samples/s on one node, by architecture: log-uniform from the slowest to the fastest model of Table 2."""
NODES = (1, 2, 4, 8, 16, 32, 64)

TRIED = ("AlexNet", "DenseNet")
"""The models of the hyperparameter search: those of Table 2 that are fastest and slowest on one node."""

GUESS = (0.5, 2.0)
"""Each point of a guessed curve is so many times what is true: log-uniform."""

Belief = Callable[[ScalingModel, int], ScalingModel]


def linear(model: ScalingModel, seed: int = 0) -> ScalingModel:
    """What its user thinks who measured one node: that each more is worth as much."""
    first, rate = model.points[0]
    return replace(model, points=tuple((nodes, rate * nodes / first) for nodes, _ in model.points))


def guessed(model: ScalingModel, seed: int = 0) -> ScalingModel:
    """What its user guesses of each number of nodes; no more nodes are thought to be slower."""
    draws = chance("malletrain", "guess", model.name, seed)
    points, most = [], 0.0
    for nodes, rate in model.points:
        most = max(most, rate * math.exp(draws.uniform(*map(math.log, GUESS))))
        points.append((nodes, most))
    return replace(model, points=tuple(points))


BELIEFS: dict[str, Belief] = {"guessed, linear": linear, "guessed, told x 0.5 to 2": guessed}

CASES = ("told", *BELIEFS, "learnt")


def searched(seed: int) -> tuple[ScalingModel, ...]:
    """The architectures of a search, in the order of the queue: f(n) = f(1) n / (1 + s (n - 1)), f(1) and s drawn."""
    found = []
    for number in range(ARCHITECTURES):
        draws = chance("malletrain", "architecture", seed, number)
        serial, one = (math.exp(draws.uniform(*map(math.log, bounds))) for bounds in (SERIAL, SAMPLES_S))
        points = tuple((nodes, one * nodes / (1 + serial * (nodes - 1))) for nodes in NODES)
        found.append(ScalingModel(f"architecture {number + 1}", points))
    return tuple(found)


def sets(seed: int) -> dict[str, tuple[ScalingModel, ...]]:
    """What the trainers of each queue train, in turn."""
    architectures = searched(seed)
    tried = tuple(model for model in table2() if model.name in TRIED)
    both = tuple(model for at, each in enumerate(architectures) for model in (each, tried[at % len(tried)]))
    return {"architectures": architectures, "hyperparameters": tried, "both in turn": both}


@dataclass(frozen=True, slots=True)
class MalleTrainFigures:
    """A replay without its first hour. `samples`: A_e, each as the seconds that its model needs for it on one node."""

    U: float  # of eq. 18
    samples: float
    rescales: int
    completed: int


def run_one(models: tuple[ScalingModel, ...], case: str, idle: IdleTrace, seed: int = 0) -> MalleTrainFigures:
    """A set of jobs under one of CASES. WorkloadError where the run had a problem."""
    replay = ReplayCase(models, objective="efficiency", samples=SAMPLES, learns=case == "learnt")
    if case in BELIEFS:
        replay = replace(replay, believed=tuple(BELIEFS[case](model, seed) for model in models))
    outcome = replayed(idle, replay, window_h=FIRST_H)
    if outcome.problems:
        raise WorkloadError(f"{case}: {outcome.problems[0]}")
    later: list[ReplayWindow] = [window for window in outcome.windows if window.from_h >= FIRST_H]
    samples, static = (sum(getattr(window, name) for window in later) for name in ("samples", "static"))
    return MalleTrainFigures(samples / static, samples, outcome.rescales, outcome.completed)


def tables(seeds: Iterable[int] = SEEDS) -> tuple[PaperTable, ...]:
    """One table: each set of jobs under every case."""
    idle = read_idle(conf_folder() / "workloads" / "idle_sample.csv.gz", HOURS)
    rows: list[PaperRow] = []
    for seed in seeds:
        for name, models in sets(seed).items():
            rows += _rows(name, {case: run_one(models, case, idle, seed) for case in CASES})
    return (PaperTable("MalleTrain: curves that nobody told", tuple(rows), tuple(paper_file("malletrain")["notes"])),)


def _rows(name: str, runs: dict[str, MalleTrainFigures]) -> list[PaperRow]:
    rows = []
    told, learnt = runs["told"], runs["learnt"]
    for case, run in runs.items():
        more: dict[str, float | int | None] = {
            "U": run.U,
            "throughput_vs_told": run.samples / told.samples - 1,
            "rescales": run.rescales,
            "completed": run.completed,
            "gap_closed": None,
            "gap_closed_samples": None,
            "learnt_gains": None,
        }
        if case in BELIEFS:
            more["gap_closed"] = _closed(run.U, learnt.U, told.U)
            more["gap_closed_samples"] = _closed(run.samples, learnt.samples, told.samples)
            more["learnt_gains"] = learnt.samples / run.samples - 1
        rows.append(PaperRow(name, case, math.nan, math.nan, more))
    return rows


def _closed(guess: float, learnt: float, told: float) -> float:
    """The part of the gap that is closed; all of it where there is none."""
    return (learnt - guess) / (told - guess) if told > guess else 1.0
