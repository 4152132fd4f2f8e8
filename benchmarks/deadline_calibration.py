"""Does what `submit --deadline` predicts come true? Probabilities in bins against the share that met its deadline.

Simulates GENIE's tasks (drawn anew from --seeds, which the weights in hpcdl/adaptive/forecast.py were not fitted to) at
--per-hour on 4 nodes of 4 K80 under `adaptive` with the objective `deadline`. Every task has one prediction, when it is
submitted; tasks whose deadline is their submission are left out. --spans: on how many nodes a task may be, 4 (one pool
of 16 GPUs) or 1 (each node is a pool of its own). --spread: relative standard error of the rates that the policy
believes, drawn per task. --steps-alone: no task has a profile; what is known of one is its steps, and what earlier
tasks of its model showed. --objective: what the policy aims for.

python benchmarks/deadline_calibration.py                                    # tables and Brier score; half a minute
python benchmarks/deadline_calibration.py --fit --seeds 0 1 2 --spans 4 1    # weights that these tasks would have
"""

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np

from hpcdl.adaptive import Adaptive
from hpcdl.adaptive.forecast import probability, roll, signs
from hpcdl.core.model.plan import Plan, Policies, View
from hpcdl.core.model.profile import Profile
from hpcdl.estimators.scaling import learner
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.engine import simulate
from hpcdl.sim.papers.data import genie
from hpcdl.sim.workload import SimJob, Workload

BINS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 1.001)

PENALTY = 1e-3
"""Of a fit, for the square of each weight: without it nothing bounds that of a sign which separates the two."""

Told = tuple[float, bool]


@dataclass(frozen=True, slots=True)
class Asked:
    """What was predicted of a task: its probability, and the signs that it was made of; whether it came true."""

    chance: float
    signs: tuple[float, ...]
    met: bool


class Watching(Adaptive):
    """The same policy, asked about every new job before it decides."""

    name = "watching"

    def __init__(self) -> None:
        self.told: dict[int, tuple[float, tuple[float, ...]]] = {}

    def decide(self, view: View) -> Plan:
        for job in view.jobs:
            if job.id not in self.told and job.deadline is not None and job.deadline > job.submitted_at:
                found = roll(view, job)
                if found is not None:
                    self.told[job.id] = probability(view, job, found), signs(job.deadline - view.now, found)
        return super().decide(view)


def asked(workload: Workload, objective: str = "deadline") -> list[Asked]:
    """What was predicted of every job, and what came; of jobs without profiles what is learnt is used."""
    watching = Watching()
    policies = Policies()
    policies.register("watching", lambda: watching)
    unknown = any(not job.told for job in workload.jobs)
    learn = learner(4, 4, ("k80",)) if unknown else None
    run = simulate(workload, "watching", policies, Conditions(objective=objective), learn)
    found = []
    for number, (chance, seen) in watching.told.items():
        job, ended = run.jobs[number], run.world.jobs[number].finished_at
        met = ended is not None and job.deadline_s is not None and ended <= job.deadline_s + 1e-6
        found.append(Asked(chance, seen, met))
    return found


def predicted(workload: Workload) -> list[Told]:
    """Probability and outcome of every job."""
    return [(each.chance, each.met) for each in asked(workload)]


def drawn(per_hour: int, seed: int, spans: int) -> Workload:
    """GENIE's tasks, each on so many nodes at most."""
    day = genie(per_hour, seed)
    return replace(day, jobs=tuple(replace(job, nodes_max=spans) for job in day.jobs))


def fitted(found: Sequence[Asked]) -> list[float]:
    """The weights that make these outcomes likeliest, of those who could be on time at all; by Newton's method."""
    able = [each for each in found if each.chance > 0.0]
    values = np.array([each.signs for each in able])
    met = np.array([each.met for each in able], dtype=np.float64)
    weights = np.zeros(values.shape[1])
    for _ in range(50):
        chances = 1.0 / (1.0 + np.exp(-values @ weights))
        slope = values.T @ (met - chances) - PENALTY * weights
        bend = (values * (chances * (1.0 - chances))[:, None]).T @ values + PENALTY * np.eye(len(weights))
        step = np.linalg.solve(bend, slope)
        weights += step
        if np.abs(step).max() < 1e-9:
            break
    return [round(float(each), 2) for each in weights]


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


def brier(told: Sequence[Told]) -> float:
    """The mean square of what was told, against 1 for what came true and 0 for what did not."""
    return sum((chance - met) ** 2 for chance, met in told) / max(1, len(told))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-hour", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12])
    parser.add_argument("--spread", type=float, default=0.0)
    parser.add_argument("--spans", type=int, nargs="+", choices=(1, 2, 3, 4), default=[4])
    parser.add_argument("--steps-alone", action="store_true", help="tasks have no profiles")
    parser.add_argument("--objective", default="deadline")
    parser.add_argument("--fit", action="store_true", help="print weights that these tasks would have")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    by_load: dict[str, list[Asked]] = {}
    for spans, load in product(given.spans, given.per_hour):
        tasks = [uncertain(drawn(load, seed, spans), given.spread, seed) for seed in given.seeds]
        if given.steps_alone:
            tasks = [replace(each, jobs=tuple(replace(job, told=False) for job in each.jobs)) for each in tasks]
        runs = [asked(each, given.objective) for each in tasks]
        nodes = "one node each" if spans == 1 else f"up to {spans} nodes"
        by_load[f"{load} an hour, {nodes}"] = [each for run in runs for each in run]
    everything = [each for found in by_load.values() for each in found]
    if given.fit:
        print(json.dumps({"schema": 1, "weights": fitted(everything), "tasks": len(everything)}))
        return
    names = {**by_load, "all": everything}
    tables = {name: bins([(each.chance, each.met) for each in found]) for name, found in names.items()}
    scores = {name: brier([(each.chance, each.met) for each in found]) for name, found in names.items()}
    if given.json:
        print(json.dumps({"schema": 1, "tables": tables, "brier": scores["all"], "briers": scores}))
        return
    for name, rows in tables.items():
        print(f"{name}: Brier score {scores[name]:.4f}\n  probability   jobs   told    met")
        for row in rows:
            print(f"  {row['from']:.2f} to {row['to']:.2f}  {row['jobs']:5.0f}  {row['told']:5.2f}  {row['met']:5.2f}")


if __name__ == "__main__":
    main()
