"""How long `adaptive` takes to decide, by objective: 2,000 jobs on 1,024 GPUs, some running and most waiting.

python benchmarks/decisions.py                              # one JSON value
python benchmarks/decisions.py --objectives jct --types 2   # one objective, nodes of two types of GPU
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hpcdl.config.layers import conf_folder
from hpcdl.config.profiles import load_profiles
from hpcdl.core.model.objectives import OBJECTIVES
from hpcdl.core.model.plan import Plan, Policies, Policy, View
from hpcdl.core.model.profile import Profile
from hpcdl.daemon.daemon import POLICIES
from hpcdl.policies import all_policies
from hpcdl.sim import Conditions, SimJob, Workload, cluster, simulate
from hpcdl.solver import prepare

MODELS = ("resnet-50", "inception-v3", "resnet-101", "vgg-16")
ALONE_S = (3600.0, 8 * 3600.0)
"""Seconds of training on one GPU: between these, even in their logarithm."""
GAP_S = 10.0
"""Mean seconds between two submits after the first ones."""
SLOWER = 0.4
"""Speed of the second type of GPU."""


@dataclass(slots=True)
class Timed:
    """A policy whose decisions are timed while so many jobs are there. Milliseconds: of this thread, of the clock."""

    policy: Policy
    least: int
    name: str = "timed"
    cpu_ms: list[float] = field(default_factory=list)
    wall_ms: list[float] = field(default_factory=list)

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        cpu, wall = time.thread_time(), time.perf_counter()
        plan = self.policy.decide(view)
        if len(view.jobs) >= self.least:
            self.cpu_ms.append((time.thread_time() - cpu) * 1e3)
            self.wall_ms.append((time.perf_counter() - wall) * 1e3)
        return plan


def made(jobs: int, decisions: int, nodes: int, gpus: int, types: int, due: bool, seed: int) -> Workload:
    """`jobs` jobs at once and then one after another, each with a curve and a length of its own."""
    rng = random.Random(seed)
    known = load_profiles([conf_folder() / "profiles"])
    kinds = ("v100", "k80")[:types]
    profiles = [_of_kinds(known[name], kinds) for name in MODELS]
    at, listed = 0.0, []
    for number in range(jobs + decisions):
        at += rng.expovariate(1 / GAP_S) if number >= jobs else 0.0
        profile = rng.choice(profiles)
        alone_s = ALONE_S[0] * (ALONE_S[1] / ALONE_S[0]) ** rng.random()
        deadline_s = at + alone_s * rng.uniform(0.5, 20.0) if due else None
        low = rng.choice((1, 1, 1, 2, 4))
        listed.append(
            SimJob(at, f"j{number}", profile, max(1, int(profile.rate(1) * alone_s)), low, gpus, deadline_s=deadline_s)
        )
    share = nodes // types
    spells = [cluster(share, gpus, kind, first=1 + share * place) for place, kind in enumerate(kinds)]
    return Workload("decisions", tuple(listed), tuple(chain.from_iterable(spells)))


def _of_kinds(profile: Profile, kinds: Sequence[str]) -> Profile:
    curves = tuple(
        (kind, tuple((nodes, gpus, rate * SLOWER**place) for nodes, gpus, rate in profile.points))
        for place, kind in enumerate(kinds)
    )
    return replace(profile, kinds=curves)


def measured(objective: str, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of the decisions while no fewer than `options.jobs` less a tenth are there."""
    due = objective == "deadline"
    sizes = (options.nodes, options.gpus, options.types)
    workload = made(options.jobs, options.decisions, *sizes, due, options.seed)
    timed = Timed(all_policies().make(options.policy), options.jobs * 9 // 10)
    policies = Policies()
    policies.register(timed.name, lambda: timed)
    until_s = GAP_S * options.decisions
    run = simulate(workload, timed.name, policies, Conditions(objective=objective, until_s=until_s))
    if not run.world.active:
        raise AssertionError(f"{objective}: all jobs are done, so it was not measured with {options.jobs} of them")
    return {
        "objective": objective,
        "decisions": len(timed.cpu_ms),
        "cpu": _percentiles(timed.cpu_ms),
        "wall": _percentiles(timed.wall_ms),
    }


def _percentiles(milliseconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(milliseconds)
    if not ordered:
        return {}
    at = {"p50_ms": 0.5, "p99_ms": 0.99}
    found = {key: round(ordered[int(len(ordered) * share)], 2) for key, share in at.items()}
    return found | {"first_ms": round(milliseconds[0], 2), "max_ms": round(ordered[-1], 2)}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the figures as JSON."""
    parser = argparse.ArgumentParser(description="How long decisions take.")
    parser.add_argument("--jobs", type=int, default=2_000, help="that are there all the time")
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--gpus", type=int, default=8, help="of each node")
    parser.add_argument("--types", type=int, choices=(1, 2), default=1, help="of GPUs")
    parser.add_argument("--decisions", type=int, default=300, help="about so many are timed")
    parser.add_argument("--policy", default="adaptive")
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=list(OBJECTIVES))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    if options.policy in POLICIES:
        prepare()  # as the daemon does
    runs = [measured(objective, options) for objective in options.objectives]
    sizes = {key: getattr(options, key) for key in ("policy", "jobs", "nodes", "gpus", "types")}
    print(json.dumps({"schema": 1, **sizes, "runs": runs}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
