"""How long the exact choice of counts takes: trainers on nodes as BFTrainer has them, and a cluster full of jobs.

    python benchmarks/counts.py [--rounds N] [--instances N] [--milp] [--no-numba] [--trainers] > result.json

Prints JSON. `trainers`: `allocate` over random instances with equal slopes, sizes with gaps and curves of every shape
among them: median, 99th percentile and worst in milliseconds of wall time, and of the thread's own CPU time, for where
others use the machine too; how many are proven optimal, and the largest relative gap. `decisions`: what a policy pays
for each decision of a replay, its input included. `items`: medians in milliseconds by case, of `solve` (bound and core)
and of `dynamic`, the plain dynamic program over all options; whether the choice is proven optimal, and its relative
gap. `--milp` solves the counts of each case with one pool as a MILP too (HiGHS through SciPy), up to a minute each, and
compares the values.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, vstack

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hpcdl.solver import ElasticTrainer, Item, Solution, ThroughputCurve, allocate, dynamic, prepare, solve
from tests.solver.instances import KINDS, several

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PLAIN_MOST = 2 * 10**8  # additions of the plain dynamic program in a case, at most
Case = tuple[list[Item], list[int]]


def trainers(draw: random.Random, many: int, nodes: int, most: int) -> Case:
    """Trainers of 1 to `most` nodes with concave rates through ten points, which hold the nodes now or wait."""
    items = []
    for _ in range(many):
        power, rate = draw.uniform(0.5, 1.0), draw.uniform(1, 10)
        at = sorted({1, most, *(max(1, round(most ** (step / 9))) for step in range(10))})
        points = tuple((size, rate * size**power * draw.uniform(0.97, 1.03)) for size in at)
        held = draw.choice([0, draw.randint(1, min(most, 2 * nodes // many))])
        trainer = ElasticTrainer((ThroughputCurve(points),), 1, most, now=held, up_s=20.0, down_s=5.0)
        sizes_of = tuple(range(most + 1))
        items.append(Item((0,) * len(sizes_of), sizes_of, tuple(map(trainer.worth, sizes_of)), required=True))
    return items, [nodes]


def jobs(draw: random.Random, many: int, capacity: list[int], sizes: Sequence[int]) -> Case:
    """Jobs with a curve for each pool (GPU type), each with a weight of its own."""
    items = []
    for _ in range(many):
        values: list[float] = []
        for _ in capacity:
            power, weight = draw.uniform(0.4, 1.0), draw.uniform(1, 100)
            values += [weight * size**power * draw.uniform(0.9, 1.1) for size in sizes]
        where = tuple(pool for pool in range(len(capacity)) for _ in sizes)
        items.append(Item(where, tuple(sizes) * len(capacity), tuple(values)))
    return items, capacity


def alike(draw: random.Random, many: int, units: int) -> Case:
    """Jobs of six kinds, all of a kind alike: every reduced cost many times."""
    kinds, capacity = jobs(draw, 6, [units], SIZES)
    return [kinds[at % 6] for at in range(many)], capacity


def median_ms(call: Callable[[], Solution], rounds: int) -> tuple[Solution, float]:
    """What it returns, and the median time of a call in ms; the first one does not count."""
    found = call()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        call()
        times.append((time.perf_counter() - begun) * 1000)
    return found, round(statistics.median(times), 2)


def by_milp(items: Sequence[Item], units: int) -> tuple[float, float]:
    """The best value by HiGHS, within a minute, and the ms that it took."""
    owner = np.repeat(np.arange(len(items)), [len(item.units) for item in items])
    size = np.concatenate([np.array(item.units) for item in items])
    value = np.concatenate([np.array(item.values) for item in items])
    columns = np.arange(len(owner))
    once = csr_array((np.ones(len(owner)), (owner, columns)), shape=(len(items), len(owner)))
    rows = vstack([once, csr_array(size[None, :].astype(float))])
    least = np.array([*(1.0 if item.required else 0.0 for item in items), 0.0])
    most = np.array([*(1.0 for _ in items), float(units)])
    begun = time.perf_counter()
    done = milp(
        -value,
        constraints=LinearConstraint(rows, least, most),
        integrality=np.ones(len(owner)),
        bounds=Bounds(0, 1),
        options={"time_limit": 60.0, "mip_rel_gap": 1e-9},
    )
    return float(-done.fun), (time.perf_counter() - begun) * 1000


def instances(
    name: str, number: int, many: int, nodes: list[int], most: int, kinds: Sequence[str]
) -> dict[str, object]:
    """`allocate` on so many random instances."""
    wall, own, gaps = [], [], []
    for seed in range(number + 1):
        draw = random.Random(seed)
        problem = several(draw, many, sum(nodes), most, len(nodes), kinds)
        begun, begun_own = time.perf_counter(), time.thread_time()
        found = allocate(problem, nodes)
        took, took_own = time.perf_counter() - begun, time.thread_time() - begun_own
        if seed:  # the first one does not count
            wall.append(took * 1000)
            own.append(took_own * 1000)
            gaps.append(found.relative_gap)
    row: dict[str, object] = {"case": name, "instances": number}
    for label, times in (("wall", wall), ("cpu", own)):
        times.sort()
        row[f"{label}_median_ms"] = round(statistics.median(times), 3)
        row[f"{label}_p99_ms"] = round(times[min(number - 1, int(number * 0.99))], 3)
        row[f"{label}_worst_ms"] = round(times[-1], 3)
    return row | {"proven": sum(gap == 0 for gap in gaps), "largest_gap": max(gaps)}


def decisions(number: int) -> list[dict[str, object]]:
    """Decisions of a replay with ten trainers of one kind on nodes that come and go, each from the counts before."""
    curve = ThroughputCurve(((1, 2.8), (2, 5.3), (4, 10.1), (8, 19.5), (16, 36.0), (32, 66.0), (64, 110.0)))
    rows: list[dict[str, object]] = []
    for typical in (85, 400):
        draw, times = random.Random(typical), []
        counts: tuple[int, ...] = (0,) * 10
        for _ in range(number):
            nodes = max(0, round(draw.gauss(typical, typical / 3)))
            begun = time.thread_time()
            problem = [ElasticTrainer((curve,), 1, 64, (), now, 0, 20.0, 5.0, 1.0, 120.0) for now in counts]
            counts = allocate(problem, [nodes]).counts
            times.append((time.thread_time() - begun) * 1000)
        times.sort()
        case = f"a decision: 10 trainers, about {typical} nodes, sizes to 64"
        rows.append(
            {
                "case": case,
                "decisions": number,
                "cpu_median_ms": round(statistics.median(times), 3),
                "cpu_p99_ms": round(times[int(number * 0.99)], 3),
                "cpu_all_s": round(sum(times) / 1000, 2),
            }
        )
    return rows


def trainer_cases(number: int) -> list[dict[str, object]]:
    """The cases of `trainers`."""
    few = max(2, number // 5)
    every, plain = KINDS, ("concave", "alike", "linear")
    return [
        instances("10 trainers, 400 nodes, sizes to 64", number, 10, [400], 64, every),
        instances("30 trainers, 700 nodes, sizes to 64", number, 30, [700], 64, every),
        instances("100 trainers, 4608 nodes, sizes to 256", number, 100, [4608], 256, every),
        instances("1000 trainers, 10000 nodes, sizes to 10000, concave", few, 1000, [10000], 10000, ("concave",)),
        instances("1000 trainers, 10000 nodes, sizes to 10000, every shape", few, 1000, [10000], 10000, every),
        instances("100 trainers, 3 types of 1536 nodes, sizes to 256", few, 100, [1536] * 3, 256, plain),
        instances("100 trainers, 3 types of 1536 nodes, sizes to 1536", few, 100, [1536] * 3, 1536, plain),
        instances("100 trainers, 3 types of 1536 nodes, sizes to 256, every shape", few, 100, [1536] * 3, 256, every),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time of the exact choice of counts.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--milp", action="store_true", help="solve the counts as a MILP too")
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--no-numba", action="store_true", help="without compiled loops")
    parser.add_argument("--trainers", action="store_true", help="trainers and decisions only")
    options = parser.parse_args()
    if options.no_numba:
        sys.modules["numba"] = None  # type: ignore[assignment]
    result: dict[str, object] = {"numba": prepare(), "trainers": trainer_cases(options.instances)}
    result["decisions"] = decisions(10 * options.instances)
    if not options.trainers:
        result |= {"rounds": options.rounds, "items": item_cases(options)}
    print(json.dumps(result, indent=2))


def item_cases(options: argparse.Namespace) -> list[dict[str, str | float | bool]]:
    """The cases of `items`."""
    draw = random.Random(1)
    cases: dict[str, Case] = {
        "10 trainers, 400 nodes, sizes to 64": trainers(draw, 10, 400, 64),
        "30 trainers, 700 nodes, sizes to 64": trainers(draw, 30, 700, 64),
        "100 trainers, 4608 nodes, sizes to 256": trainers(draw, 100, 4608, 256),
        "2000 jobs of 12 sizes, 1024 GPUs": jobs(draw, 2000, [1024], SIZES),
        "2000 jobs of 6 kinds, 1024 GPUs": alike(draw, 2000, 1024),
        "40 jobs, two types of 8 GPUs": jobs(draw, 40, [8, 8], (1, 2, 4, 8)),
        "40 jobs, three types of 60 GPUs": jobs(draw, 40, [60, 60, 60], SIZES),
        "2000 jobs, two types of 512 GPUs": jobs(draw, 2000, [512, 512], SIZES),
    }
    rows = []
    for name, (items, capacity) in cases.items():
        found, spent = median_ms(lambda items=items, capacity=capacity: solve(items, capacity), options.rounds)  # type: ignore[misc]
        row: dict[str, str | float | bool] = {
            "case": name,
            "solve_ms": spent,
            "optimal": found.optimal,
            "relative_gap": found.gap / abs(found.value),
        }
        work = sum(len(item.units) for item in items) * float(np.prod(np.array(capacity) + 1.0))
        if work <= PLAIN_MOST:
            plain, spent = median_ms(lambda items=items, capacity=capacity: dynamic(items, capacity), 3)  # type: ignore[misc]
            row |= {"dynamic_ms": spent, "same": plain.chosen == found.chosen}
        if options.milp and len(capacity) == 1:
            value, spent = by_milp(items, capacity[0])
            row |= {"milp_ms": round(spent, 1), "milp_relative_value": value / found.value - 1}
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
