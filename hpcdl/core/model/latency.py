"""GENIE's latency model of a type of job, with the batch size as an input: how fast it trains on any placement.

Chen et al., GENIE, section 5.1. A job of the global batch size b on n nodes with g GPUs each has b' = b / (n g) samples
on each GPU (eq. 6), and

    sPR(b')    = k0 + k1 b' + k2 b'^2                                       samples/s of a single GPU           (eq. 7)
    Comm(n, g) = ((n - 1) g + lambda (g - 1)) gamma / (n g - 1)             GPUs lost to synchronising; 0 on one GPU,
                                                                            and for inference                   (eq. 8)
    PR(b, n, g) = (n g - Comm(n, g)) sPR(b / (n g))                         samples/s                           (eq. 5)
    Lat        = b iterations / PR + start-up                               seconds                             (eq. 4)

A quadratic follows a curve that saturates for about three doublings of the batch and no further (over seven it is wrong
by a quarter), so batches that span more are cut into stretches that overlap, each with k of its own. Nor is it believed
past the batches that were run: below the smallest batch per GPU the rate is proportional to the batch, above the
largest one it is held flat. Where synchronising would leave less than a twentieth of a GPU, so much is taken.

Values only; `estimators/latency.py` fits it to runs. `Profile` keeps it for all jobs of its type.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

LEAST_GPUS = 0.05  # that synchronising leaves of a placement's GPUs


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
        across, within = communication_paths(nodes, gpus)
        return self.gamma * (across + self.lambda_ * within)

    def rate(self, batch: int, nodes: int, gpus: int) -> float:
        """PR (eq. 5): samples/s of a job of the global batch size `batch` on `gpus` GPUs of each of `nodes` nodes."""
        setting = Setting(batch, nodes, gpus)
        left = max(nodes * gpus - self.communication(nodes, gpus), LEAST_GPUS)
        return left * self.single(setting.batch_per_gpu)

    @classmethod
    def from_mapping(cls, mapping: object) -> "LatencyModel":
        """The model from plain values, as YAML or JSON give them. Raises ValueError."""
        if not isinstance(mapping, Mapping) or not isinstance(listed := mapping.get("stretches"), list):
            raise ValueError(f"expected stretches, gamma and lambda, got {mapping!r:.200}")
        stretches = []
        for place, entry in enumerate(listed):
            if not isinstance(entry, Mapping) or not isinstance(k := entry.get("k"), list) or len(k) != 3:
                raise ValueError(
                    f"stretches[{place}]: expected smallest, largest and k of 3 numbers, got {entry!r:.200}"
                )
            low, high = (_number(f"stretches[{place}]", entry, key) for key in ("smallest", "largest"))
            numbers = {str(index): each for index, each in enumerate(k)}
            k0, k1, k2 = (_number(f"stretches[{place}]: k", numbers, key) for key in numbers)
            stretches.append(Stretch(low, high, (k0, k1, k2)))
        synchronises = mapping.get("synchronises", True)
        if not isinstance(synchronises, bool):
            raise ValueError(f"synchronises: expected true or false, got {synchronises!r:.200}")
        others = [_number(key, mapping, key) if key in mapping else 0.0 for key in ("gamma", "lambda", "error")]
        return cls(tuple(stretches), others[0], others[1], synchronises=synchronises, error=others[2])

    def to_mapping(self) -> dict[str, Any]:
        """Plain values that `from_mapping` reads back as an equal model, but for its start-up, which a profile has."""
        return {
            "synchronises": self.synchronises,
            "gamma": self.gamma,
            "lambda": self.lambda_,
            "error": self.error,
            "stretches": [
                {"smallest": each.smallest, "largest": each.largest, "k": [*each.k]} for each in self.stretches
            ],
        }


def _number(where: str, mapping: Mapping[str, Any], key: str) -> float:
    value = mapping.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where}: expected a number, got {value!r:.200}")
    return float(value)


def communication_paths(nodes: int, gpus: int) -> tuple[float, float]:
    """Shares of the other GPUs of a placement that are on other nodes, and on the same one."""
    others = nodes * gpus - 1
    return ((nodes - 1) * gpus / others, (gpus - 1) / others) if others else (0.0, 0.0)
