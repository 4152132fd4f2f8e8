"""How long an allocation of nodes takes, by solver: BFTrainer's program over nodes beside the exact choice of counts.

    python benchmarks/allocate.py [--quick] [--trainers 30 --nodes 700 --most 64] [--rounds 200] > result.json

The same random problems for every solver, in one run, on one thread: trainers of 1 to `--most` nodes with measured
curves (concave but for noise), a current map of which some nodes have just left while others joined. Prints JSON:
milliseconds of a solve by solver (p50, p99, the longest; p99 of the processor's time, in which other processes do
not count) over so many problems; the ratio to `exact` on the same problems; whether all values are the same.
`--rounds`: problems for exact and dp; `--milps`: of these, problems for each of the others. Needs minutes for
30 x 700; `--quick` is 10 x 400.
"""

import argparse
import json
import random
import statistics
import time

from hpcdl.milp.model import SolverLimits
from hpcdl.milp.problem import NodeGroup, Problem
from hpcdl.milp.solve import SOLVERS, solve
from hpcdl.solver import ElasticTrainer, ThroughputCurve, prepare

LOST = 0.1  # part of the nodes that have just left, and that have just come


def problem(seed: int, trainers: int, nodes: int, most: int) -> Problem:
    """A problem after an event: trainers hold what a map of all nodes has left them."""
    draw = random.Random(seed)
    shares = [draw.expovariate(1.0) if draw.random() < 0.9 else 0.0 for _ in range(trainers)]
    left = round(nodes * (1 - LOST))
    rows, held, at = [], [], 0
    for share in shares:
        power, rate = draw.uniform(0.5, 0.98), draw.uniform(50, 5000)
        points = sorted({most, *(2**step for step in range(12) if 2**step < most)})
        curve = ThroughputCurve(tuple((n, rate * n**power * draw.uniform(0.98, 1.02)) for n in points))
        now = min(most, round(left * share / max(sum(shares), 1e-9)), left - at)
        up, down = draw.uniform(10, 60), draw.uniform(2, 15)
        rows.append(ElasticTrainer((curve,), 1, most, (), now, 0, up, down, 1.0, 120.0))
        held.append(tuple(f"n{n}" for n in range(at, at + now)))
        at += now
    group = NodeGroup("", nodes, tuple(f"n{n}" for n in range(nodes)))
    return Problem(120.0, (group,), tuple(f"t{n}" for n in range(trainers)), tuple(rows), tuple(held))


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, round(part * (len(values) - 1)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--trainers", type=int)
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--most", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--milps", type=int, default=3)
    parser.add_argument(
        "--solvers", nargs="+", choices=SOLVERS, default=["exact", "dp", "counts-highs", "highs", "cbc"]
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="backstop of a solver over nodes")
    args = parser.parse_args()
    trainers, nodes = args.trainers or (10 if args.quick else 30), args.nodes or (400 if args.quick else 700)
    solvers = list(dict.fromkeys(["exact", *args.solvers]))
    limits = SolverLimits(10**9, args.seconds)
    asked = [problem(seed, trainers, nodes, args.most) for seed in range(args.rounds)]
    compiled = prepare()
    for each in solvers:
        solve(problem(10**6, 2, 6, 4), each, limits)  # loads what it needs
    result: dict[str, object] = {
        "trainers": trainers,
        "nodes": nodes,
        "most": args.most,
        "problems": args.rounds,
        "numba": compiled,
    }
    times: dict[str, list[float]] = {}
    processor: dict[str, list[float]] = {}
    values: dict[str, list[float]] = {}
    proven = True
    same = True
    for each in solvers:
        times[each], processor[each], values[each] = [], [], []
        for at, one in enumerate(asked if each in ("exact", "dp") else asked[: args.milps]):
            begun, used = time.perf_counter(), time.process_time()
            answer = solve(one, each, limits)
            times[each].append((time.perf_counter() - begun) * 1000)
            processor[each].append((time.process_time() - used) * 1000)
            found = answer.allotment
            values[each].append(found.value)
            proven = proven and found.optimal and found.solver == each
            same = same and (not found.optimal or abs(found.value / values["exact"][at] - 1) < 1e-6)
        mine = times[each]
        exact = times["exact"][: len(mine)]
        result[each] = {
            "problems": len(mine),
            "p50_ms": round(statistics.median(mine), 3),
            "p99_ms": round(quantile(mine, 0.99), 3),
            "longest_ms": round(max(mine), 3),
            "p99_cpu_ms": round(quantile(processor[each], 0.99), 3),
            "times_exact": round(statistics.median(a / b for a, b in zip(mine, exact, strict=True)), 1),
        }
    result |= {"all_optimal": proven, "same_values": same}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
