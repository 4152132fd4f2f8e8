"""Arrivals and jobs that are drawn: the same seed gives the same ones, on every machine.

Chance is `random.Random` alone, seeded with text: no library of numbers, whose draws change with its versions.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from hpcdl.sim.workload import WorkloadError

MOST_JOBS = 1_000_000

SIDECAR_GPUS = (1, 2, 4, 8)
SIDECAR_SPAN_S = 11_000.0

GENIE_MODELS = ("AlexNet", "GoogLeNet", "ResNet-50", "Inception-v3", "LSTM", "Seq2seq")
GENIE_BATCHES = (16, 32, 64, 128)
GENIE_SHARES = {"urgent": 0.05, "prior": 0.35, "normal": 0.60}
GENIE_HOURS = 24.0
GENIE_LATENCY_S = (400.0, 15_800.0)
"""Of training on one GPU, uniform; of inference a third of it: what fits the file of drawn ones."""


def chance(*parts: object) -> random.Random:
    """A source of draws for this purpose and seed: `chance("genie", 20, seed)`."""
    return random.Random(" ".join(map(str, parts)))


def exponential_gaps(draws: random.Random, jobs: int, span_s: float) -> tuple[float, ...]:
    """`jobs` arrivals within [0, span_s] with exponential gaps, ascending, the first at 0.

    Gaps whose sum is given are exponential ones scaled to it; one more than the jobs, so that neither end is special.
    """
    _check(jobs, span_s)
    gaps = [draws.expovariate(1.0) for _ in range(jobs + 1)]
    scale = span_s / sum(gaps)
    found, at = [0.0], 0.0
    for gap in gaps[1:-1]:
        at += gap * scale
        found.append(at)
    return tuple(found)


def poisson(draws: random.Random, per_hour: float, hours: float) -> tuple[float, ...]:
    """Arrivals of a Poisson process from 0 to `hours`, ascending, in seconds; possibly none."""
    if not 0 < per_hour < 1e9 or not 0 < hours < 1e7:
        raise WorkloadError(
            f"arrivals need a rate above 0 and below 1e9, and hours above 0 and below 1e7, got {per_hour:g} an hour "
            f"for {hours:g} h"
        )
    _check(round(per_hour * hours), hours * 3600)
    found: list[float] = []
    at = draws.expovariate(per_hour / 3600)
    while at < hours * 3600:
        found.append(at)
        at += draws.expovariate(per_hour / 3600)
    return tuple(found)


def _check(jobs: int, span_s: float) -> None:
    if not 0 <= jobs <= MOST_JOBS or not span_s >= 0:
        raise WorkloadError(f"arrivals must be 0 to {MOST_JOBS} jobs in 0 s or more, got {jobs} in {span_s:g} s")


@dataclass(frozen=True, slots=True)
class SidecarDraw:
    """A job of the SideCar paper's kind; `gpus`: what the static default draws for it."""

    submit_s: float
    type: str
    gpus: int


def draw_sidecar(draws: random.Random, types: Sequence[str], jobs: int) -> tuple[SidecarDraw, ...]:
    """Exponential gaps within 11000 s, types and default numbers of GPUs uniform (section V of the paper)."""
    return tuple(
        SidecarDraw(round(at, 1), draws.choice(types), draws.choice(SIDECAR_GPUS))
        for at in exponential_gaps(draws, jobs, SIDECAR_SPAN_S)
    )


@dataclass(frozen=True, slots=True)
class GenieDraw:
    """A job of the GENIE paper's kind (Table 3). `seconds`: of computing on one GPU. `priority`: of GENIE_SHARES."""

    submit_s: float
    model: str
    kind: str
    batch: int
    seconds: float
    priority: str


def draw_genie(draws: random.Random, per_hour: float, hours: float = GENIE_HOURS) -> tuple[GenieDraw, ...]:
    """Poisson arrivals; model, training or inference, and batch uniform, priorities in the paper's shares."""
    priorities, shares = tuple(GENIE_SHARES), tuple(GENIE_SHARES.values())
    found: list[GenieDraw] = []
    for at in poisson(draws, per_hour, hours):
        model, kind = draws.choice(GENIE_MODELS), draws.choice(("training", "inference"))
        batch, seconds = draws.choice(GENIE_BATCHES), draws.uniform(*GENIE_LATENCY_S)
        priority = draws.choices(priorities, shares)[0]
        seconds = round(seconds if kind == "training" else seconds / 3, 1)
        found.append(GenieDraw(round(at, 1), model, kind, batch, seconds, priority))
    return tuple(found)
