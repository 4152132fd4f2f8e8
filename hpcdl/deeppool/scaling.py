"""How long training takes by the number of GPUs: weak, strong and batch-optimal scaling (figures 1 to 3 of the paper).

Training to a given error takes S(B) = S_min (1 + B_critical / B) iterations of a global batch B: few samples a batch
cost iterations, many cost samples (McCandlish et al., 2018). The paper took S(B) from measurements of Shallue et al.,
which are not printed. An iteration takes what data parallelism takes, and for `burst` what the fastest plan takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpcdl.deeppool.planner import data_parallel, plan_burst
from hpcdl.deeppool.problem import SEQUENCE, BurstProblem

MOST_PER_GPU = 1 << 12


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """Speedups against one GPU by the time to a given error, and the samples per GPU of the batch-optimal one.

    burst: batch-optimal with the fastest burst-parallel plan of each iteration.
    """

    gpus: int
    bytes_per_s: float
    weak: float
    strong: float
    batch_optimal: float
    burst: float
    samples_per_gpu: float


def scaling_point(problem: BurstProblem, gpus: int, critical_batch: float) -> ScalingPoint:
    """The speedups on so many GPUs. The problem's global batch is that of one GPU, and of strong scaling."""
    batch = problem.global_batch
    alone = replace(problem, gpus=gpus, limit=None, budget=None, branches=SEQUENCE)

    def to_error(global_batch: int, *, burst: bool = False) -> float:
        case = replace(alone, global_batch=global_batch)
        time = (plan_burst(case) if burst else data_parallel(case)).time_ms
        return time * (1 + critical_batch / global_batch)

    one = sum(layer.compute(batch) for layer in problem.layers) * (1 + critical_batch / batch)
    batches = sorted(
        {batch} | {1 << power for power in range((gpus * MOST_PER_GPU).bit_length()) if 1 << power >= gpus}
    )
    times = {each: to_error(each) for each in batches}
    best = min(times, key=times.__getitem__)
    burst = min(to_error(each, burst=True) for each in batches if times[each] <= 8 * times[best])
    return ScalingPoint(
        gpus,
        problem.bytes_per_s,
        one / to_error(batch * gpus),
        one / times[batch],
        one / times[best],
        one / burst,
        best / min(gpus, best),
    )


def scaling_by_gpus(problem: BurstProblem, most: int, critical_batch: float) -> tuple[ScalingPoint, ...]:
    """Figures 1 and 2: on 1, 2, 4, ... up to `most` GPUs."""
    return tuple(scaling_point(problem, 1 << power, critical_batch) for power in range(most.bit_length()))


def scaling_by_network(
    problem: BurstProblem, gpus: int, critical_batch: float, bytes_per_s: Sequence[float]
) -> tuple[ScalingPoint, ...]:
    """Figure 3: on one number of GPUs, by the speed of the network."""
    return tuple(scaling_point(replace(problem, bytes_per_s=each), gpus, critical_batch) for each in bytes_per_s)
