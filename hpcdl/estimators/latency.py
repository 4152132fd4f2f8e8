"""The fit of GENIE's latency model (`core/model/latency.py`, equations 4 to 8) to few short runs.

Light profiling (Chen et al., GENIE, section 5.1.5): B runs over batch sizes on one GPU give the k; G runs over the GPUs
of a node and N runs over nodes, at one batch size, give lambda and gamma. B + N + G short runs instead of B x N x G.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hpcdl.core.model.latency import LatencyModel, Setting, Stretch, communication_paths
from hpcdl.core.model.profile import Profile

FEWEST_BATCHES = 3  # as many as eq. 7 has coefficients
SPAN = 8.0  # largest over smallest batch of a stretch
GAP = 2.0  # between two batches of a stretch, at most
FALLEN = 0.8  # of the rate at the smallest batch: below that the runs contradict the model


@dataclass(frozen=True, slots=True)
class LightRun:
    """What a short run gave: samples/s once it trained, and the seconds until then if they were measured."""

    setting: Setting
    samples_per_s: float
    startup_s: float | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.samples_per_s) or self.samples_per_s <= 0:
            raise ValueError(f"a run's samples/s must be a finite number above 0, got {self.samples_per_s}")
        if self.startup_s is not None and not (math.isfinite(self.startup_s) and self.startup_s >= 0):
            raise ValueError(f"a run's start-up must be a finite number of seconds, 0 or more, got {self.startup_s}")


def plan_light_runs(batches: Iterable[int], nodes: Iterable[int], gpus: Iterable[int]) -> list[Setting]:
    """The runs of a light profiling: at most B + G + N, none twice.

    Each batch size on one GPU; the largest one on each number of GPUs of one node; and it on each number of nodes, one
    GPU each. For batches per GPU as small as the job will see on its largest placement, `batches` must go that low.
    """
    sizes, wide, many = sorted(set(batches)), sorted(set(gpus)), sorted(set(nodes))
    if not sizes:
        raise ValueError("a light profiling needs batch sizes")
    runs = [Setting(batch) for batch in sizes]
    runs += [Setting(sizes[-1], 1, count) for count in wide] + [Setting(sizes[-1], count, 1) for count in many]
    return list(dict.fromkeys(runs))


def fit(runs: Sequence[LightRun], synchronises: bool = True) -> LatencyModel:
    """The model with the least squares of relative errors; ValueError says which runs are missing, or make no sense.

    Needs three different batch sizes on one GPU, on which larger batches are not clearly slower. Where runs on several
    GPUs of a node or those on several nodes are missing, GPUs of one node are taken to synchronise as those of
    different nodes do (lambda 1); with neither, gamma is 0 and only what is said of one GPU is worth something.
    """
    single = [run for run in runs if run.setting.nodes * run.setting.gpus == 1]
    several = [run for run in runs if run.setting.nodes * run.setting.gpus > 1]
    batches = {run.setting.batch for run in single}
    if len(batches) < FEWEST_BATCHES:
        had = ", ".join(str(batch) for batch in sorted(batches)) or "none"
        raise ValueError(f"needs runs of {FEWEST_BATCHES} different batch sizes on 1 GPU for eq. 7, has {had}")
    single.sort(key=lambda run: run.setting.batch)
    stretches = tuple(_stretch(part) for part in _cut(_filled(single)))
    low, high = stretches[0].rate(stretches[0].smallest), stretches[-1].rate(stretches[-1].largest)
    if high < FALLEN * low:
        raise ValueError(
            f"the runs on 1 GPU fall from {low:.4g} samples/s at a batch of {min(batches)} to {high:.4g} at "
            f"{max(batches)}; eq. 7 is for larger batches being at least as fast: measure again, or leave those out"
        )
    gamma = lambda_ = 0.0
    if several and synchronises:
        gamma, lambda_ = _penalties(several, LatencyModel(stretches, 0.0, 0.0))
    startups = [run.startup_s for run in runs if run.startup_s is not None]
    model = LatencyModel(
        stretches, gamma, lambda_, sum(startups) / len(startups) if startups else 0.0, synchronises=synchronises
    )
    return replace(model, error=mean_error(model, runs))


def profile_of(model: LatencyModel, name: str, batch: int, max_nodes: int, max_gpus: int) -> Profile:
    """The profile of jobs of the model's type, which answers for every batch size (`Profile.at_batch`).

    Its points are those of `batch`: steps/s at every placement up to that many nodes and GPUs on each. Saving is not
    part of the model, so it costs nothing; a resume costs a start-up.
    """
    if min(max_nodes, max_gpus) < 1:
        raise ValueError(f"a profile needs nodes and gpus of 1 or more, got {max_nodes} and {max_gpus}")
    return Profile(
        name,
        tuple(
            (nodes, gpus, model.rate(batch, nodes, gpus) / batch)
            for nodes in range(1, max_nodes + 1)
            for gpus in range(1, max_gpus + 1)
        ),
        startup_s=model.startup_s,
        resume_s=model.startup_s,
        source=f"GENIE's model, fitted to short runs within {model.error:.1%}; its points are of batch size {batch}",
        spread=model.error,
        batch=batch,
        latency=model,
    )


def mean_error(model: LatencyModel, runs: Iterable[LightRun]) -> float:
    """Mean relative error of the model's samples/s on runs; 0 where there are none."""
    errors = [
        abs(model.rate(run.setting.batch, run.setting.nodes, run.setting.gpus) / run.samples_per_s - 1) for run in runs
    ]
    return sum(errors) / len(errors) if errors else 0.0


def _filled(runs: Sequence[LightRun]) -> list[LightRun]:
    """Runs on one GPU, by batch, with points between those that are more than a factor of GAP apart.

    The time of a step is nearly a straight line in the batch between two batches that were run; a quadratic of the rate
    bulges there by a tenth and more where nothing holds it.
    """
    rates: dict[int, list[float]] = {}
    for run in runs:
        rates.setdefault(run.setting.batch, []).append(run.samples_per_s)
    seconds = {batch: batch * len(found) / sum(found) for batch, found in rates.items()}
    filled = list(runs)
    for low, high in pairwise(sorted(seconds)):
        parts = math.ceil(math.log(high / low) / math.log(GAP) - 1e-9)
        for part in range(1, parts):
            batch = round(low * (high / low) ** (part / parts))
            step_s = seconds[low] + (seconds[high] - seconds[low]) * (batch - low) / (high - low)
            filled.append(LightRun(Setting(batch), batch / step_s))
    return sorted(filled, key=lambda run: run.setting.batch)


def _cut(runs: Sequence[LightRun]) -> list[list[LightRun]]:
    """Runs on one GPU, by batch, in stretches of three batches or more that overlap in two."""
    batches = sorted({run.setting.batch for run in runs})
    parts: list[tuple[int, int]] = []
    start = 0
    while True:
        end = start + FEWEST_BATCHES
        while end < len(batches) and batches[end] <= SPAN * batches[start]:
            end += 1
        if end >= len(batches):
            parts.append((batches[max(0, min(start, len(batches) - FEWEST_BATCHES))], batches[-1]))
            break
        parts.append((batches[start], batches[end - 1]))
        start = end - 2
    return [[run for run in runs if low <= run.setting.batch <= high] for low, high in parts]


def _stretch(runs: Sequence[LightRun]) -> Stretch:
    """Eq. 7 by least squares of the relative errors."""
    batch = np.array([run.setting.batch for run in runs], dtype=np.float64)
    rates = np.array([run.samples_per_s for run in runs], dtype=np.float64)
    scale = float(batch.max())
    columns = np.stack([np.ones_like(batch), batch / scale, (batch / scale) ** 2], axis=1)
    found, *_ = np.linalg.lstsq(columns / rates[:, None], np.ones_like(rates), rcond=None)
    try:
        return Stretch(
            float(batch.min()), scale, (float(found[0]), float(found[1] / scale), float(found[2] / scale**2))
        )
    except ValueError as error:
        raise ValueError(f"the runs on 1 GPU do not follow eq. 7, measure them again: {error}") from None


def _penalties(runs: Sequence[LightRun], single: LatencyModel) -> tuple[float, float]:
    """gamma and lambda of eq. 8, 0 or more: GPUs that a placement lost, as a sum over the two kinds of paths.

    In relative errors of the rate, so each row is divided by the GPUs that the run was worth.
    """
    from scipy.optimize import nnls  # takes half a second, which a command that fits nothing need not wait

    worth = np.array([run.samples_per_s / single.single(run.setting.batch_per_gpu) for run in runs])
    shares = np.array([communication_paths(run.setting.nodes, run.setting.gpus) for run in runs])
    lost = np.array([run.setting.nodes * run.setting.gpus for run in runs]) - worth
    across, within = bool(shares[:, 0].any()), bool(shares[:, 1].any())
    if not (across and within):
        # One kind of path was run; the other one is taken to be alike.
        shares = shares.sum(axis=1, keepdims=True)
    found, _ = nnls(shares / worth[:, None], lost / worth)
    if len(found) == 2 and found[0] <= 0 < found[1]:
        # Nothing is lost across nodes, which eq. 8 cannot say together with a loss within one.
        found, _ = nnls(shares.sum(axis=1, keepdims=True) / worth[:, None], lost / worth)
    if len(found) == 1:
        return float(found[0]), 1.0
    return float(found[0]), float(found[1] / found[0]) if found[0] > 0 else 0.0
