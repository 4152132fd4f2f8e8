"""How fast the simulator is: many jobs on many GPUs, with a load that the GPUs can bear and with all jobs at once.

python benchmarks/simulator.py                                  # one JSON value
python benchmarks/simulator.py --jobs 2000 --policy adaptive    # another policy
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hpcdl.config.layers import conf_folder
from hpcdl.config.profiles import load_profiles
from hpcdl.core.model.profile import Profile
from hpcdl.policies import all_policies
from hpcdl.sim import SimJob, Workload, cluster, simulate

MODELS = ("resnet-50", "inception-v3", "resnet-101", "vgg-16")
ALONE_S = (600, 1800, 3600, 7200)
"""Seconds of training on one GPU, as often each."""


def made(jobs: int, gap_s: float, nodes: int, gpus: int, profiles: Sequence[Profile], seed: int) -> Workload:
    """Jobs with exponential gaps of `gap_s` seconds on average, 0: all at once."""
    rng = random.Random(seed)
    at, listed = 0.0, []
    for number in range(jobs):
        at += rng.expovariate(1 / gap_s) if gap_s else 0.0
        profile = rng.choice(profiles)
        listed.append(SimJob(at, f"j{number}", profile, int(profile.rate(1) * rng.choice(ALONE_S))))
    return Workload(f"gaps of {gap_s:g} s", tuple(listed), cluster(nodes, gpus))


def measured(workload: Workload, policy: str) -> dict[str, Any]:
    """CPU seconds of a run, and milliseconds of its decisions (of the wall clock, so they need an idle machine)."""
    began = time.process_time()
    ran = simulate(workload, policy, all_policies())
    cpu_s = time.process_time() - began
    decide = sorted(ran.decide_s)
    waits = [job.attempts[0].start_at - job.submitted_at for job in ran.history.jobs if job.attempts]
    return {
        "workload": workload.name,
        "jobs": len(workload.jobs),
        "gpus": sum(node.gpus for node in workload.nodes),
        "cpu_s": round(cpu_s, 2),
        "simulated_s": round(ran.history.end, 1),
        "mean_wait_s": round(sum(waits) / len(waits), 1) if waits else None,
        "events": len(ran.records),
        "decisions": ran.decisions,
        "decide_p50_ms": round(decide[len(decide) // 2] * 1e3, 3),
        "decide_p99_ms": round(decide[int(len(decide) * 0.99)] * 1e3, 3),
        "problems": list(ran.problems),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the figures as JSON."""
    parser = argparse.ArgumentParser(description="Speed of the simulator.")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=125)
    parser.add_argument("--gpus", type=int, default=8, help="of each node")
    parser.add_argument("--policy", default="marble")
    parser.add_argument("--gaps", type=float, nargs="+", default=[8.0, 0.0], help="mean seconds between submits")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    known = load_profiles([conf_folder() / "profiles"])
    profiles = [known[name] for name in MODELS]
    sizes = (options.nodes, options.gpus)
    runs = [measured(made(options.jobs, gap, *sizes, profiles, options.seed), options.policy) for gap in options.gaps]
    print(json.dumps({"schema": 1, "policy": options.policy, "runs": runs}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
