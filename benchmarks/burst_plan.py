"""How long it takes to plan burst-parallel training, and what the plans come to.

    python benchmarks/burst_plan.py [--rounds N] [--gpus N] [--batch N] > result.json

Prints JSON. `searches`: for VGG-16 and Inception-v3 on N GPUs, in one thread: medians and the best of the CPU time of
`plan_burst` in milliseconds, from the problem to the plan, without a limit, with limits and with budgets, branches in
sequence and in parallel; the iteration, whether it is proven optimal, and whether the limit is kept. `integers`: the
same with every whole number as a width, on 64 GPUs and a batch of 256. `goals`: what an idle machine is to reach.
"""

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measuring import setting
from hpcdl.deeppool.models import model_document, model_names
from hpcdl.deeppool.planner import data_parallel, plan_burst
from hpcdl.deeppool.problem import ALL, PARALLEL, SEQUENCE, BurstProblem, read_problem

GOALS_MS = {("vgg16", SEQUENCE): 2, ("inception-v3", SEQUENCE): 10, ("inception-v3", PARALLEL): 50}
LIMITS = (None, 1.2, 2.0, 4.0)
BUDGETS = (1.2, 2.0)


def search(name: str, problem: BurstProblem, rounds: int) -> dict[str, Any]:
    """The times of one search, and its plan."""
    times = []
    for _ in range(rounds):
        begun = time.process_time()
        plan = plan_burst(problem)
        times.append(1e3 * (time.process_time() - begun))
    exempt = {layer.name for layer in problem.layers if layer.compute(problem.global_batch) < problem.exempt_below_ms}
    most = max(layer.amplification or 0 for layer in plan.layers if layer.name not in exempt)
    return {
        "model": name,
        "gpus": problem.gpus,
        "global_batch": problem.global_batch,
        "branches": problem.branches,
        "widths": problem.widths,
        "limit": problem.limit,
        "budget": problem.budget,
        "median_ms": statistics.median(times),
        "best_ms": min(times),
        "iteration_ms": plan.time_ms,
        "bound_ms": plan.bound_ms,
        "gpu_time_ratio": plan.gpu_ms / plan.one_gpu_ms,
        "data_parallel_ms": data_parallel(problem).time_ms,
        "optimal": plan.optimal,
        "limit_kept": problem.limit is None or most <= problem.limit * (1 + 1e-9),
    }


def main() -> None:
    """Print the measurements as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--gpus", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1024)
    options = parser.parse_args()
    searches, integers = [], []
    for name in model_names():
        base = replace(read_problem(model_document(name)), gpus=options.gpus, global_batch=options.batch)
        for branches in (SEQUENCE, PARALLEL):
            if (name, branches) in GOALS_MS:
                searches += [
                    search(name, replace(base, limit=limit, branches=branches), options.rounds) for limit in LIMITS
                ]
        searches += [search(name, replace(base, budget=budget), 1) for budget in BUDGETS]
        small = replace(base, gpus=64, global_batch=256, widths=ALL)
        integers += [search(name, replace(small, limit=limit), 1) for limit in LIMITS]
    goals = [
        {
            "model": name,
            "branches": branches,
            "goal_ms": goal,
            "median_ms": max(
                each["median_ms"]
                for each in searches
                if (each["model"], each["branches"]) == (name, branches) and each["budget"] is None
            ),
        }
        for (name, branches), goal in GOALS_MS.items()
    ]
    print(json.dumps({"setting": setting(), "goals": goals, "searches": searches, "integers": integers}, indent=1))


if __name__ == "__main__":
    main()
