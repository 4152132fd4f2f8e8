"""A lower bound on the mean JCT of a workload under any policy: by how much could the best one still be better?

Two bounds, of which the larger counts.

Own: no job ends sooner after its submit than its start-up and its steps at the highest rate of its options take.

Fused: give each GPU of type k a speed w_k > 0, whatever it is, and fuse all GPUs into one machine, as fast at each
moment as the sum over those that are there, C(t). A job trains at rate r on n GPUs of a type, so each step takes it at
least a = min n w_k / r of the machine's work over its options, and its first start at least the start-up times the
least n w_k. Let W be what the whole job takes. Take any schedule of any policy, and give on the fused machine each job
that holds n GPUs of type k the speed n w_k. These speeds are never more than C(t) together; and when a job ends it has
had at least W. So on the fused machine all jobs can be done no later than under the policy. There the policy that
serves the job with the least left (SRPT) has at each moment ended the most jobs that can be ended by then: Schrage,
"A proof of the optimality of the shortest remaining processing time discipline", Operations Research 16(3), 1968; if
C(t) changes, measure time in work done. The sum of all JCTs is the integral over time of the number of jobs that are
there, which SRPT therefore makes least. This holds for all w, so the largest of these bounds is one.

What a run leaves to chance is taken as nothing: start-ups where they vary, failures. Where jobs share GPUs one may
start while another trains, so starts take no work, and C(t) is multiplied by the most that two jobs do on one GPU.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from hpcdl.sim.conditions import Conditions
from hpcdl.sim.slowdowns import Slowdown
from hpcdl.sim.trainers import drawn
from hpcdl.sim.workload import SimJob, Workload

SEARCHES = 60
"""So many speeds w of the types of GPU are tried. Any are valid; better ones come closer."""


@dataclass(frozen=True, slots=True)
class Need:
    """The least that a job takes. `own_s`: from its submit to its end. By type of GPU: `step_gpu_s`, GPU seconds of
    each step; `gpus`, its fewest GPUs. `start_s`: for which it holds GPUs before its first step."""

    submit_s: float
    own_s: float
    steps: int
    start_s: float
    step_gpu_s: Mapping[str, float]
    gpus: Mapping[str, int]

    def work(self, weights: Mapping[str, float]) -> float:
        """W on the fused machine, on which GPUs have these speeds by type."""
        step = min(weights[kind] * seconds for kind, seconds in self.step_gpu_s.items())
        return self.steps * step + self.start_s * min(weights[kind] * gpus for kind, gpus in self.gpus.items())


def mean_jct_bound_s(workload: Workload, conditions: Conditions) -> float | None:
    """Seconds below which no policy's mean JCT is, over all jobs; None where a job can never end, or there is none."""
    needs = _needs(workload, conditions)
    if not needs:
        return None
    fused_s = _fused_s(needs, workload)
    return None if fused_s is None else max(fmean(need.own_s for need in needs), fused_s)


def _needs(workload: Workload, conditions: Conditions) -> list[Need]:
    nodes = Counter((kind, gpus) for _, kind, gpus in {(each.name, each.kind, each.gpus) for each in workload.nodes})
    known: dict[object, tuple[float, dict[str, float], dict[str, int]]] = {}
    found = []
    for number, truth in enumerate(workload.jobs, 1):
        job = drawn(truth, number, conditions)
        profile, last = job.profile, job.nodes if job.nodes_max is None else job.nodes_max
        key = (id(truth.profile), job.gpus_min, job.gpus_max, job.gpus_counts, job.nodes, last)
        if key not in known:
            known[key] = _options(job, last, nodes)
        rate, step_gpu_s, gpus = known[key]
        start_s, held_s = profile.startup_s, max(0.0, profile.startup_s - profile.gate_s)
        if conditions.jitter or profile.times_spread:
            start_s = held_s = 0.0
        if workload.shares or conditions.warm or job.rescale != "restart":
            held_s = 0.0  # it may start beside another job, or ahead of its GPUs
        found.append(Need(job.submit_s, start_s + job.steps / rate, job.steps, held_s, step_gpu_s, gpus))
    return found


def _options(
    job: SimJob, last: int, nodes: Mapping[tuple[str, int], int]
) -> tuple[float, dict[str, float], dict[str, int]]:
    """Of all numbers of nodes and GPUs that it may have: its highest rate; as `Need`, the least by type."""
    best, step_gpu_s, fewest = 0.0, dict[str, float](), dict[str, int]()
    for kind in {kind for kind, _ in nodes}:
        profile = job.profile.on(kind)
        largest = max(gpus for each, gpus in nodes if each == kind)
        top = largest if job.gpus_max is None else min(job.gpus_max, largest)
        for gpus in job.gpus_counts or range(job.gpus_min, top + 1):
            there = sum(many for (each, size), many in nodes.items() if each == kind and size >= gpus)
            for number in range(job.nodes, min(last, there) + 1):
                rate = profile.rate(gpus, number)
                best = max(best, rate)
                step_gpu_s[kind] = min(gpus * number / rate, step_gpu_s.get(kind, math.inf))
                fewest[kind] = min(gpus * number, fewest.get(kind, gpus * number))
    return best, step_gpu_s, fewest


# --- the fused machine -----------------------------------------------------------------------------------------------


def _fused_s(needs: Sequence[Need], workload: Workload) -> float | None:
    """The largest mean JCT of SRPT over the weights that are tried; None where a job can never end."""
    kinds = sorted({spell.kind for spell in workload.nodes})
    together = _together(workload)

    def mean_s(logs: Iterable[float]) -> float | None:
        weights = dict(zip(kinds, map(math.exp, (0.0, *logs)), strict=True))
        speeds = [
            (spell.from_s, spell.until_s, together * weights[spell.kind] * spell.gpus) for spell in workload.nodes
        ]
        return srpt_mean_jct_s([(need.submit_s, need.work(weights)) for need in needs], speeds)

    if len(kinds) == 1 or mean_s([0.0] * (len(kinds) - 1)) is None:
        return mean_s([0.0] * (len(kinds) - 1))
    from scipy.optimize import minimize

    first, begin = kinds[0], []  # where a GPU of each type counts for what the jobs get of it
    for kind in kinds[1:]:
        both = [need.step_gpu_s for need in needs if {first, kind} <= need.step_gpu_s.keys()]
        begin.append(fmean([math.log(each[first] / each[kind]) for each in both] or [0.0]))
    tries = minimize(lambda logs: -(mean_s(logs) or 0.0), begin, method="Nelder-Mead", options={"maxfev": SEARCHES})
    return max(-float(tries.fun), mean_s([0.0] * (len(kinds) - 1)) or 0.0)


def _together(workload: Workload) -> float:
    """The most that a GPU does, in GPUs: of two jobs that share it, the speeds of both."""
    cells: list[Slowdown] = [*workload.slowdowns, Slowdown()] if workload.shares else []
    return max((1.0, *(math.fsum(cell.speeds(None)) for cell in cells if not cell.apart)))


def srpt_mean_jct_s(jobs: Sequence[tuple[float, float]], speeds: Sequence[tuple[float, float, float]]) -> float | None:
    """The mean JCT of jobs (submit, work) on one machine that always serves the one with the least work left.

    `speeds`: (from, until, speed) of its parts, of which it has those that are there. None where a job never ends.
    """
    changes = Counter[float]()
    for begin, end, speed in speeds:
        changes[begin] += speed  # type: ignore[assignment]  # typed as counts, which floats are as well
        changes[end] -= speed  # type: ignore[assignment]
    submits = sorted(jobs)
    times = sorted({at for at, _ in submits} | set(changes))
    left: list[float] = []
    spent_s, number = 0.0, 0
    speed = 0.0
    for at, until in zip(times, [*times[1:], math.inf], strict=True):
        speed += changes.get(at, 0.0)
        while number < len(submits) and submits[number][0] <= at:
            heapq.heappush(left, submits[number][1])
            number += 1
        now = at
        while left and now < until:
            if speed <= 1e-9:
                if until == math.inf:
                    return None
                spent_s += len(left) * (until - now)
                break
            ends = now + left[0] / speed
            if ends > until:
                left[0] -= (until - now) * speed
                spent_s += len(left) * (until - now)
                break
            spent_s += len(left) * (ends - now)
            heapq.heappop(left)
            now = ends
    return spent_s / len(submits)
