"""GENIE's prediction model: how fast a job goes on any placement, from few short runs.

Chen et al., GENIE, section 5.1. A job of the global batch size b on n nodes with g GPUs each has b' = b / (n g) samples
on each GPU (eq. 6), and

    sPR(b')    = k0 + k1 b' + k2 b'^2                                       samples/s of a single GPU           (eq. 7)
    Comm(n, g) = ((n - 1) g + lambda (g - 1)) gamma / (n g - 1)             GPUs lost to synchronising; 0 on one GPU,
                                                                            and for inference                   (eq. 8)
    PR(b, n, g) = (n g - Comm(n, g)) sPR(b / (n g))                         samples/s                           (eq. 5)
    Lat        = b iterations / PR + start-up                               seconds                             (eq. 4)

Light profiling: B runs over batch sizes on one GPU give the k; G runs over the GPUs of a node and N runs over nodes, at
one batch size, give lambda and gamma. B + N + G short runs instead of B x N x G.

A quadratic follows a curve that saturates for about three doublings of the batch and no further (over seven it is wrong
by a quarter), so batches that span more are cut into stretches that overlap, each with k of its own. Nor is it believed
past the batches that were run: below the smallest batch per GPU the rate is proportional to the batch, above the
largest one it is held flat. Where synchronising would leave less than a twentieth of a GPU, so much is taken.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hpcdl.core.model.profile import Profile

FEWEST_BATCHES = 3  # as many as eq. 7 has coefficients
SPAN = 8.0  # largest over smallest batch of a stretch
LEAST_GPUS = 0.05  # that synchronising leaves of a placement's GPUs
FALLEN = 0.8  # of the rate at the smallest batch: below that the runs contradict the model


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """What a run of the light profiling is to use: global batch size, nodes, GPUs on each node."""

    batch: int
    nodes: int = 1
    gpus: int = 1

    def __post_init__(self) -> None:
        if min(self.batch, self.nodes, self.gpus) < 1:
            raise ValueError(f"batch, nodes and gpus must be 1 or more, got {self.batch}, {self.nodes}, {self.gpus}")

    @property
    def batch_per_gpu(self) -> float:
        """Samples on each GPU, b' of eq. 6."""
        return self.batch / (self.nodes * self.gpus)


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


@dataclass(frozen=True, slots=True)
class Stretch:
    """Eq. 7 between two batches per GPU: k0, k1, k2 in samples/s."""

    smallest: float
    largest: float
    k: tuple[float, float, float]

    def __post_init__(self) -> None:
        if not 0 < self.smallest <= self.largest < math.inf:
            raise ValueError(f"needs 0 < smallest <= largest batch per GPU, got {self.smallest} and {self.largest}")
        if not all(math.isfinite(number) for number in self.k):
            raise ValueError(f"k must be finite, got {self.k}")
        lowest = min(self.lowest(), key=lambda at: at[1])
        if lowest[1] <= 0:
            raise ValueError(f"k = {self.k} gives {lowest[1]:.4g} samples/s at a batch of {lowest[0]:.4g}")

    def rate(self, batch: float) -> float:
        """sPR(b'), samples/s of one GPU, by the quadratic (eq. 7)."""
        return self.k[0] + self.k[1] * batch + self.k[2] * batch * batch

    def lowest(self) -> list[tuple[float, float]]:
        """(batch, samples/s) at both ends, and where the quadratic turns between them: it is lowest at one of these."""
        turn = -self.k[1] / (2 * self.k[2]) if self.k[2] else 0.0
        inside = [turn] if self.smallest < turn < self.largest else []
        return [(batch, self.rate(batch)) for batch in (self.smallest, self.largest, *inside)]


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """GENIE's prediction model, fitted: the coefficients of eq. 4 to 8.

    stretches: of eq. 7, ascending and overlapping. gamma, lambda_: of eq. 8, in GPUs and without a unit. startup_s: nu
    of eq. 4. synchronises: False for inference. error: mean relative error over the runs that it was fitted to.
    """

    stretches: tuple[Stretch, ...]
    gamma: float
    lambda_: float
    startup_s: float = 0.0
    synchronises: bool = True
    error: float = 0.0

    def __post_init__(self) -> None:
        numbers = (self.gamma, self.lambda_, self.startup_s, self.error)
        if not all(math.isfinite(number) and number >= 0 for number in numbers):
            raise ValueError(f"gamma, lambda, start-up and error must be finite and not negative, got {numbers}")
        if not self.stretches:
            raise ValueError("the model needs a stretch of eq. 7")
        if any(after.smallest > before.largest for before, after in pairwise(self.stretches)):
            raise ValueError("the stretches of eq. 7 must be ascending and leave no gap")

    def single(self, batch_per_gpu: float) -> float:
        """Samples/s of one GPU (eq. 7); proportional below the smallest batch that was run, flat above the largest.

        Where stretches overlap, each one counts for more the further its end is.
        """
        first, last = self.stretches[0], self.stretches[-1]
        at = min(max(batch_per_gpu, first.smallest), last.largest)
        total = weights = 0.0
        for stretch in self.stretches:
            if stretch.smallest <= at <= stretch.largest:
                before = math.inf if stretch is first else at / stretch.smallest
                after = math.inf if stretch is last else stretch.largest / at
                weight = min(math.log(min(before, after)), 1.0) + 1e-9
                total, weights = total + weight * stretch.rate(at), weights + weight
        return total / weights * min(1.0, batch_per_gpu / first.smallest)

    def communication(self, nodes: int, gpus: int) -> float:
        """GPUs lost to synchronising, Comm (eq. 8)."""
        if not self.synchronises:
            return 0.0
        across, within = _paths(nodes, gpus)
        return self.gamma * (across + self.lambda_ * within)

    def rate(self, batch: int, nodes: int, gpus: int) -> float:
        """PR (eq. 5): samples/s of a job of the global batch size `batch` on `gpus` GPUs of each of `nodes` nodes."""
        setting = Setting(batch, nodes, gpus)
        left = max(nodes * gpus - self.communication(nodes, gpus), LEAST_GPUS)
        return left * self.single(setting.batch_per_gpu)

    def to_profile(self, name: str, batch: int, max_nodes: int, max_gpus: int) -> Profile:
        """Steps/s, each of `batch` samples, at every placement up to that many nodes and GPUs on each.

        Saving is not part of the model, so it costs nothing; a resume costs a start-up.
        """
        if min(max_nodes, max_gpus) < 1:
            raise ValueError(f"a profile needs nodes and gpus of 1 or more, got {max_nodes} and {max_gpus}")
        return Profile(
            name,
            tuple(
                (nodes, gpus, self.rate(batch, nodes, gpus) / batch)
                for nodes in range(1, max_nodes + 1)
                for gpus in range(1, max_gpus + 1)
            ),
            startup_s=self.startup_s,
            resume_s=self.startup_s,
            source=f"GENIE's model, fitted to short runs within {self.error:.1%}; batch size {batch}",
            spread=self.error,
        )


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
    stretches = tuple(_stretch(part) for part in _cut(single))
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


def mean_error(model: LatencyModel, runs: Iterable[LightRun]) -> float:
    """Mean relative error of the model's samples/s on runs; 0 where there are none."""
    errors = [
        abs(model.rate(run.setting.batch, run.setting.nodes, run.setting.gpus) / run.samples_per_s - 1) for run in runs
    ]
    return sum(errors) / len(errors) if errors else 0.0


def _paths(nodes: int, gpus: int) -> tuple[float, float]:
    """Shares of the other GPUs of a placement that are on other nodes, and on the same one."""
    others = nodes * gpus - 1
    return ((nodes - 1) * gpus / others, (gpus - 1) / others) if others else (0.0, 0.0)


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
    paths = np.array([_paths(run.setting.nodes, run.setting.gpus) for run in runs])
    lost = np.array([run.setting.nodes * run.setting.gpus for run in runs]) - worth
    across, within = bool(paths[:, 0].any()), bool(paths[:, 1].any())
    if not (across and within):
        # One kind of path was run; the other one is taken to be alike.
        paths = paths.sum(axis=1, keepdims=True)
    found, _ = nnls(paths / worth[:, None], lost / worth)
    if len(found) == 2 and found[0] <= 0 < found[1]:
        # Nothing is lost across nodes, which eq. 8 cannot say together with a loss within one.
        found, _ = nnls(paths.sum(axis=1, keepdims=True) / worth[:, None], lost / worth)
    if len(found) == 1:
        return float(found[0]), 1.0
    return float(found[0]), float(found[1] / found[0]) if found[0] > 0 else 0.0
