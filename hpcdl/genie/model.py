"""What GENIE knows of a job: its placements, their cost and latency, and when it is expected (section 5).

Equations 1 to 4 and 9 to 11; hpcdl/core/model/latency.py has the model of the rates (equations 4 to 8). Pure numbers:
policy.py and baselines.py choose.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

from hpcdl.core.model.plan import JobView, View
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import JobState
from hpcdl.estimators.certainty import WholeTime, certainty

THETA = 0.4
"""Weight of the nodes in the cost (eq. 10, figure 10), unless the setting `theta` says another."""
NORMAL = 2.0
"""A normal job is expected after this many times its latency on one GPU (eq. 9)."""


@dataclass(frozen=True, slots=True)
class Platform:
    """Eq. 1: `nodes` nodes (N) with at most `gpus` GPUs (G); `sizes`: by type of GPU those of its nodes, descending.

    `theta`: the weight of the nodes in the cost of a placement (eq. 10).
    """

    nodes: int
    gpus: int
    sizes: tuple[tuple[str, tuple[int, ...]], ...]
    theta: float = THETA


@dataclass(frozen=True, slots=True)
class PlacementOption:
    """A placement s = <nodes, gpus per node> (eq. 3) on GPUs of one kind: steps/s, Cost(s) and steps/s over cost."""

    kind: str
    nodes: int
    gpus: int
    rate: float
    cost: float
    ratio: float


def platform_of(view: View, theta: float = THETA) -> Platform:
    """The nodes that are there, whoever holds their GPUs."""
    sizes: dict[str, list[int]] = {}
    for node in view.nodes:
        sizes.setdefault(node.kind, []).append(len(node.gpus))
    by_kind = tuple((kind, tuple(sorted(sizes[kind], reverse=True))) for kind in sorted(sizes))
    return Platform(len(view.nodes), view.largest_node, by_kind, theta)


def cost(platform: Platform, nodes: int, gpus: int) -> float:
    """Eq. 10: the share of all GPUs, and of all nodes with the weight theta."""
    return nodes * gpus / (platform.nodes * platform.gpus) + platform.theta * nodes / platform.nodes


def placements(job: JobView, platform: Platform) -> tuple[PlacementOption, ...]:
    """M_i: all symmetric placements that the job may have on this platform, by falling CER (eq. 11).

    Where two are equal, the one with fewer GPUs, then fewer nodes. Each has GPUs of one kind. A job without a profile
    is taken to train in proportion to its GPUs. Empty where none fits.
    """
    numbers = job.counts or (job.gpus_min, job.gpus_max)
    return _placements(job.profile, bool(job.counts), numbers, job.nodes, job.nodes_max, platform)


@lru_cache(maxsize=4096)
def _placements(
    profile: Profile | None, listed: bool, numbers: tuple[int, ...], low: int, high: int, platform: Platform
) -> tuple[PlacementOption, ...]:
    found = []
    for kind, sizes in platform.sizes:
        for nodes in range(low, min(high, len(sizes)) + 1):
            limit = sizes[nodes - 1]  # that many nodes have at least so many GPUs
            each = numbers if listed else range(numbers[0], min(numbers[1], limit) + 1)
            for gpus in (number for number in each if number <= limit):
                rate = float(nodes * gpus) if profile is None else profile.on(kind).rate(gpus, nodes)
                spent = cost(platform, nodes, gpus)
                found.append(PlacementOption(kind, nodes, gpus, rate, spent, rate / spent))
    return tuple(sorted(found, key=lambda option: (-option.ratio, option.nodes * option.gpus, option.nodes)))


def startup_s(job: JobView, gpus: int) -> float:
    """nu of eq. 4: seconds from its start on so many GPUs in all to the first step; a suspended job resumes."""
    if job.profile is None:
        return 0.0
    if job.state is JobState.SUSPENDED:
        return job.profile.resume_for(gpus, gpus, moved=False)
    return job.profile.startup_s


def latency(job: JobView, option: PlacementOption, now: float) -> float | None:
    """Eq. 4, of what is left: seconds from a start now to the end; None without a profile or a number of steps."""
    left = job.remaining(now)
    if left is None or job.profile is None:
        return None
    return startup_s(job, option.nodes * option.gpus) + left / option.rate


def hopeful_latency(job: JobView, option: PlacementOption, now: float) -> float | None:
    """The same where the job is as fast as it may well be (with one chance in ten), as little is known of its rate."""
    seconds = latency(job, option, now)
    if seconds is None:
        return None
    return seconds * math.exp(certainty(job.profile, option.kind, option.nodes, option.gpus, WholeTime()).low)


def single_latency(job: JobView) -> float | None:
    """Lat(t, <1, 1>): seconds of the whole job on one GPU, start-up included; None where it is not known."""
    if job.profile is None or job.total is None:
        return None
    return job.profile.startup_s + job.total / job.profile.rate(1)


def expected_at(job: JobView) -> float | None:
    """e_i, the time at which the job is expected: its deadline; without one it is normal (eq. 9).

    None where it has no deadline and its latency is not known.
    """
    if job.deadline is not None:
        return job.deadline
    single = single_latency(job)
    return None if single is None else job.submitted_at + NORMAL * single
