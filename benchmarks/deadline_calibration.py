"""Does what `submit --deadline` foretells come true? Probabilities in bins against the share that met its deadline.

Simulates GENIE's tasks (drawn anew from --seeds, which the weights in hpcdl/adaptive/forecast.py were not fitted to) at
--per-hour on 4 nodes of 4 K80 under `adaptive` with the objective `deadline`. Every task is foretold once, when it is
submitted; tasks whose deadline is their submission are left out. --spread: relative standard error of the rates that
the policy believes, drawn per task.
"""

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hpcdl.adaptive import Adaptive
from hpcdl.adaptive.forecast import foresee
from hpcdl.core.plan import Plan, View
from hpcdl.core.policy import Policies
from hpcdl.core.profile import Profile
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.engine import simulate
from hpcdl.sim.papers.data import genie
from hpcdl.sim.workload import SimJob, Workload

BINS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 1.001)

Told = tuple[float, bool]


class Watching(Adaptive):
    """The same policy, asked about every new job before it decides."""

    name = "watching"

    def __init__(self) -> None:
        self.chances: dict[int, float] = {}

    def decide(self, view: View) -> Plan:
        for job in view.jobs:
            if job.id not in self.chances and job.deadline is not None and job.deadline > job.submitted_at:
                found = foresee(view, job)
                if found is not None:
                    self.chances[job.id] = found.probability
        return super().decide(view)


def foretold(workload: Workload) -> list[Told]:
    """Probability and outcome of every job."""
    watching = Watching()
    policies = Policies()
    policies.register("watching", lambda: watching)
    run = simulate(workload, "watching", policies, Conditions(objective="deadline"))
    told = []
    for number, chance in watching.chances.items():
        job, ended = run.jobs[number], run.world.jobs[number].finished_at
        told.append((chance, ended is not None and job.deadline_s is not None and ended <= job.deadline_s + 1e-6))
    return told


def uncertain(workload: Workload, spread: float, seed: int) -> Workload:
    """The same, with profiles for the policy that are wrong by so much, and say so."""
    if not spread:
        return workload
    draws = random.Random(f"calibration/{seed}")
    return replace(workload, jobs=tuple(_believed(job, draws.gauss(0.0, spread), spread) for job in workload.jobs))


def _believed(job: SimJob, error: float, spread: float) -> SimJob:
    truth: Profile = job.profile
    points = tuple((nodes, gpus, rate * max(0.2, 1.0 + error)) for nodes, gpus, rate in truth.points)
    return replace(job, believed=replace(truth, points=points, spread=spread))


def bins(told: Sequence[Told]) -> list[dict[str, float]]:
    """Of each bin: from, to, how many, the mean probability, the share that met its deadline."""
    rows = []
    for low, high in pairwise(BINS):
        within = [(chance, met) for chance, met in told if low <= chance < high]
        if within:
            mean = sum(chance for chance, _ in within) / len(within)
            met = sum(met for _, met in within) / len(within)
            rows.append({"from": low, "to": min(1.0, high), "jobs": len(within), "told": mean, "met": met})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-hour", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12])
    parser.add_argument("--spread", type=float, default=0.0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    by_load = {
        load: [each for seed in asked.seeds for each in foretold(uncertain(genie(load, seed), asked.spread, seed))]
        for load in asked.per_hour
    }
    everything = [each for told in by_load.values() for each in told]
    tables = {**{f"{load} an hour": bins(told) for load, told in by_load.items()}, "all": bins(everything)}
    brier = sum((chance - met) ** 2 for chance, met in everything) / max(1, len(everything))
    if asked.json:
        print(json.dumps({"schema": 1, "tables": tables, "brier": brier}))
        return
    for name, rows in tables.items():
        print(f"{name}:\n  probability   jobs   told    met")
        for row in rows:
            print(f"  {row['from']:.2f} to {row['to']:.2f}  {row['jobs']:5.0f}  {row['told']:5.2f}  {row['met']:5.2f}")
    print(f"Brier score {brier:.3f}")


if __name__ == "__main__":
    main()
