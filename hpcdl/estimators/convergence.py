"""How many steps a job has still to train until its metric reaches a target: the online fit of Optimus.

Peng et al., "Optimus: an efficient dynamic resource scheduler for deep learning clusters", EuroSys 2018, which the
SideCar paper uses in section III-C for jobs that do not say how many epochs they train. A loss falls as

    loss(k) = 1 / (b0 k + b1) + b2        b0, b1, b2 >= 0

and an accuracy rises as the mirror image of it, a constant minus that loss. With b2 given, 1 / (loss - b2) is a line in
k, which non-negative least squares fit; b2 is found by a scan, and then all three are improved together by steps of
Gauss and Newton, each one again a non-negative least squares problem.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

_Array: TypeAlias = NDArray[np.float64]

FEWEST = 3  # distinct steps: as many as the curve has coefficients
FURTHEST = 1_000.0  # times the last step seen; a target beyond that is out of sight
SCAN = 41  # asymptotes that are tried
ROUNDS = 20  # of Gauss and Newton, at most
WINDOW = 2  # points on either side, by which an outlier is known
PACES = np.geomspace(1 / 8, 8, 97)  # that are tried
PACE_SIGMA = 0.5
SHOWN = 2 * WINDOW + 2  # points that show a curve
UNLIKE = 4.0  # times the variance of its points about the earlier job's curve: then that is not its curve
LEAST_ERROR = 0.01  # of the metric's range: no two jobs are alike to the last digit
FAR = 3.0  # times the usual distance of a point from its neighbours


def predict_steps(
    points: Sequence[tuple[float, float]],
    target: float,
    rising: bool = True,
    coming: Sequence[tuple[float, float]] = (),
) -> float | None:
    """Steps, counted from the first one of the job, after which the metric reaches `target`.

    points: (step, metric) in any order; of several with the same step the last one counts. rising: the metric is an
    accuracy, else a loss. An accuracy is expected to end at 1 at most, or at 100 where a point or the target lies above
    1, or anywhere where one lies above 100.

    coming: points that the job is expected to reach (`still_to_come`); they are fitted, too.

    Where a point has reached the target already, its step. None where nothing can be said: fewer than three steps seen,
    a metric that does not move towards the target, a fitted asymptote short of it, or one that is reached a thousand
    times further away than what was seen. ValueError: NaN, infinite, or a negative step.
    """
    if not math.isfinite(target):
        raise ValueError(f"the target must be a finite number, got {target}")
    metrics: dict[float, float] = {}
    for step, metric in points:
        if not (math.isfinite(step) and math.isfinite(metric)):
            raise ValueError(f"a point must be finite, got step {step}, metric {metric}")
        if step < 0:
            raise ValueError(f"a step must not be negative, got {step}")
        metrics[step] = metric
    steps = np.array(sorted(metrics), dtype=np.float64)
    seen = _smooth(np.array([metrics[step] for step in steps], dtype=np.float64))
    reached = np.flatnonzero(seen >= target if rising else seen <= target)
    if len(reached):
        return float(steps[reached[0]])
    if coming:
        more = sorted(coming)
        steps = np.concatenate([steps, [step for step, _ in more]])
        seen = np.concatenate([seen, [metric for _, metric in more]])
    if len(steps) < FEWEST:
        return None
    least = float(steps[len(metrics) - 1]) if metrics else 0.0
    return _extrapolate(steps, *_as_loss(seen, target, rising), least)


def still_to_come(
    points: Sequence[tuple[float, float]], earlier: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """The points of an earlier job that are still to come for one of its kind, in steps of that one.

    The accuracy profile of the SideCar paper (table V): before a job reports anything, the profile's points are all
    that there is (section III-C). Later its own take their place, up to its last step; those after that are to come at
    its own pace. None are where its own show that its curve is another. points, earlier: (step, accuracy) in any order.
    """
    own, known = sorted(dict(points).items()), sorted(dict(earlier).items())
    if not own or not known:
        return known
    pace, alike = _pace(np.array(own, dtype=np.float64), np.array(known, dtype=np.float64))
    if not alike:
        return []
    return [(pace * step, metric) for step, metric in known if pace * step > own[-1][0]]


def _pace(own: _Array, earlier: _Array) -> tuple[float, bool]:
    """How many steps the job makes for one of the earlier one's, most likely: of `PACES` the one at which its points
    lie closest to the earlier one's curve, where paces differ by a factor of exp(PACE_SIGMA) mostly. And whether they
    lie on it, as far as that shows."""
    steps, metrics = earlier[:, 0], _smooth(earlier[:, 1])
    there = np.interp(own[:, 0] / PACES[:, None], steps, metrics)
    errors = np.sum((own[:, 1] - there) ** 2, axis=1)
    bends = np.diff(earlier[:, 1], 2)  # of independent errors, six times their variance
    variance = float(np.mean(bends**2)) / 6 if len(bends) else 0.0
    least = (LEAST_ERROR * float(np.ptp(metrics))) ** 2
    unlikely = errors / max(variance, least, 1e-12)
    best = int(np.argmin(unlikely + (np.log(PACES) / PACE_SIGMA) ** 2))
    alike = len(own) < SHOWN or float(unlikely[best]) <= UNLIKE * len(own)
    return float(PACES[best]), alike


def _smooth(seen: _Array) -> _Array:
    """Outliers replaced by the median of the two points before and the two after.

    An outlier lies outside the range of these neighbours (so a steep curve has none), and by more than three times what
    points usually are away from their neighbours' median. The first and the last two points stay as they are.
    """
    if len(seen) < 2 * WINDOW + 2:
        return seen
    around = np.lib.stride_tricks.sliding_window_view(seen, 2 * WINDOW + 1)
    neighbours, inner = np.delete(around, WINDOW, axis=1), seen[WINDOW:-WINDOW]
    medians = np.median(neighbours, axis=1)
    usual = float(np.median(np.abs(inner - medians)))
    outside = np.maximum(inner - neighbours.max(axis=1), neighbours.min(axis=1) - inner)
    smooth = seen.copy()
    smooth[WINDOW:-WINDOW] = np.where(outside > FAR * usual + 1e-12, medians, inner)
    return smooth


def _as_loss(seen: _Array, target: float, rising: bool) -> tuple[_Array, float]:
    """Points and target as a loss of 0 or more whose largest point is 1."""
    highest = max(float(seen.max()), target)
    if rising:
        top = next((limit for limit in (1.0, 100.0) if highest <= limit), 2 * highest)
        losses, goal = top - seen, top - target
    else:
        floor = min(0.0, 2 * min(float(seen.min()), target))
        losses, goal = seen - floor, target - floor
    scale = float(losses.max())
    return losses / scale, goal / scale


def _extrapolate(steps: _Array, losses: _Array, goal: float, least: float) -> float | None:
    """`least`: no earlier than that, as no point of the job has reached the goal yet."""
    last = float(steps[-1])
    b0, b1, b2 = _fit(steps / last, losses)
    if b0 <= 0 or b2 >= goal:
        return None
    reached = (1 / (goal - b2) - b1) / b0
    if not reached <= FURTHEST:
        return None
    return max(reached * last, least)


def _fit(k: _Array, losses: _Array) -> tuple[float, float, float]:
    """(b0, b1, b2) of the least squares in the loss itself, for k and losses of up to 1."""
    from scipy.optimize import nnls  # takes half a second, which a command that fits nothing need not wait

    columns = np.stack([k, np.ones_like(k)], axis=1)
    best, error = (0.0, 1.0, 0.0), math.inf
    lowest = float(losses.min())
    for b2 in np.linspace(0.0, lowest, SCAN)[:-1]:
        above = losses - b2
        # An error of the loss is one of above^2 as much in its inverse.
        line, _ = nnls(columns * above[:, None] ** 2, above)
        found = (float(line[0]), float(line[1]), float(b2))
        if (its := _error(k, losses, found)) < error:
            best, error = found, its
    for _ in range(ROUNDS):
        model = 1 / (best[0] * k + best[1])
        slopes = np.stack([-(model**2) * k, -(model**2), np.ones_like(k)], axis=1)
        try:
            wanted, _ = nnls(slopes, losses - 2 * model)
        except RuntimeError:  # it did not converge: what was found stays
            break
        step = 1.0
        while step > 1e-3:
            mixed = [old + step * (float(new) - old) for old, new in zip(best, wanted, strict=True)]
            found = (mixed[0], mixed[1], mixed[2])
            if (its := _error(k, losses, found)) < error * (1 - 1e-9):
                break
            step /= 2
        else:
            break
        best, error = found, its
    return best


def _error(k: _Array, losses: _Array, coefficients: tuple[float, float, float]) -> float:
    b0, b1, b2 = coefficients
    line = b0 * k + b1
    if float(line.min()) <= 0:
        return math.inf
    return float(np.sum((1 / line + b2 - losses) ** 2))
