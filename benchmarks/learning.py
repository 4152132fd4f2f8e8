"""How far off are curves that were learnt from one, two and three numbers of GPUs, and what does it cost to trust them?

The truth are the profiles of conf/profiles/, and any throughput table given with --csv: columns `model...`, `gpu`,
`gpus`, `steps_per_s`. For each of its curves and each choice of numbers of GPUs that were seen for --seconds each, with
--noise: the relative error of the rate at the other numbers, and the regret: how much slower than its best number the
job is on the number that the learnt curve takes for the best one. `field` in place of the numbers seen: before any.
"""

import argparse
import csv
import itertools
import json
import math
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from hpcdl.config.layers import conf_folder
from hpcdl.config.profiles import load_profiles
from hpcdl.core.model.profile import Observation
from hpcdl.estimators.scaling import fit_curve

Rates = dict[int, float]


def from_profiles() -> Iterator[tuple[str, Rates]]:
    for profile in load_profiles([conf_folder() / "profiles"]).values():
        rates = {gpus: rate for nodes, gpus, rate in profile.points if nodes == 1}
        if len(rates) > 1:
            yield profile.name, rates


def from_table(path: Path) -> Iterator[tuple[str, Rates]]:
    curves: dict[tuple[str, str], Rates] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            name = next(value for key, value in row.items() if key.startswith("model"))
            if (rate := float(row["steps_per_s"])) > 0:
                curves.setdefault((name, row["gpu"]), {})[int(row["gpus"])] = rate
    for (name, gpu), rates in curves.items():
        if len(rates) > 1:
            yield f"{name} on {gpu}", rates


def measure(curves: list[Rates], seen: int, seconds: float, noise: float, seed: int) -> dict[str, float | int]:
    draw = random.Random(seed)
    errors, regrets, spent = [], [], 0.0
    for rates in curves:
        for chosen in itertools.combinations(sorted(rates), min(seen, len(rates))):
            observed = [
                Observation("", 1, gpus, rates[gpus] * seconds * math.exp(draw.gauss(0, noise)), seconds)
                for gpus in chosen
            ]
            began = time.perf_counter()
            curve = fit_curve(observed, max(rates))
            learnt = {gpus: curve.rate(gpus) for gpus in rates}
            spent = max(spent, time.perf_counter() - began)
            if seen:
                errors += [abs(learnt[gpus] / rate - 1) for gpus, rate in rates.items() if gpus not in chosen]
            regrets.append(1 - rates[max(learnt, key=lambda gpus: learnt[gpus])] / max(rates.values()))
    row: dict[str, float | int] = {"curves": len(curves), "mean_regret": round(statistics.mean(regrets), 4)}
    if errors:
        row["median_error"] = round(statistics.median(errors), 4)
        row["p90_error"] = round(sorted(errors)[int(0.9 * len(errors))], 4)
    row["slowest_fit_ms"] = round(spent * 1000, 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path, action="append", default=[], help="a throughput table; may be repeated")
    parser.add_argument("--seconds", type=float, default=600.0, help="that each number of GPUs was seen for")
    parser.add_argument("--noise", type=float, default=0.01, help="relative error of what was seen")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    sources = {"conf/profiles": [rates for _, rates in from_profiles()]}
    sources.update({path.name: [rates for _, rates in from_table(path)] for path in asked.csv})
    rows = [
        {"curves_of": source, "seen": seen or "field"} | measure(curves, seen, asked.seconds, asked.noise, asked.seed)
        for source, curves in sources.items()
        for seen in (0, 1, 2, 3)
    ]
    print(json.dumps({"schema": 1, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
