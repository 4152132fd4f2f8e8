"""What a replay of an idle trace comes to: U of both accountings, of the baseline, of diverse trainers, and its time.

python benchmarks/replay.py idle.csv.gz                                   # one JSON value
python benchmarks/replay.py idle.csv.gz --grow-s 0.9 --shrink-s 0.4       # with costs of rescales that were measured
python benchmarks/replay.py idle.csv.gz --hours 24 --only hpo-paper       # one row, of the first day
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hpcdl.sim.replay import IdleTrace, ReplayCase, chosen, read_idle, replayed, table2
from hpcdl.sim.replay.check import counted
from hpcdl.solver import prepare


def cases(grow_s: float | None, shrink_s: float | None) -> dict[str, ReplayCase]:
    """The rows: 10 trainers at a time, rescales of 20 and 5 s, T_fwd 120 s."""
    hpo, diverse = ReplayCase(chosen("ShuffleNet", table2())), ReplayCase(table2())
    found = {
        "hpo-paper": hpo,
        "hpo-stall": replace(hpo, accounting="stall"),
        "hpo-adaptive": replace(hpo, t_fwd_s=None),
        "equal-share-paper": replace(hpo, policy="equal-share"),
        "equal-share-stall": replace(hpo, policy="equal-share", accounting="stall"),
        "diverse-throughput": diverse,
        "diverse-efficiency": replace(diverse, objective="efficiency"),
    }
    if grow_s is not None and shrink_s is not None:
        found["hpo-own-costs"] = replace(hpo, accounting="stall", scale_up_s=grow_s, scale_down_s=shrink_s)
    return found


def measured(idle: IdleTrace, case: ReplayCase, check: bool) -> dict[str, Any]:
    """The figures of a row, with the seconds that it took."""
    began, cpu = time.perf_counter(), time.process_time()
    outcome = replayed(idle, case)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    values = outcome.to_json()
    kept = ("U", "bound_U", "by_efficiency", "events", "decisions", "samples", "rescale_loss", "preemption_loss")
    row = {key: values[key] for key in kept}
    row |= {"of_bound": outcome.U / outcome.bound_U, "completed": outcome.completed, "problems": values["problems"]}
    row |= {"wall_s": round(seconds, 1), "cpu_s": round(cpu_s, 1)}
    row |= {key: values[key] for key in ("policy", "accounting", "objective", "scale_up_s", "scale_down_s", "t_fwd_s")}
    if check and case.t_fwd_s is not None:
        row["U_by_counts"] = counted(idle, case).U
    return row


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the figures as JSON."""
    parser = argparse.ArgumentParser(description="U of an idle trace, and the time of its replay.")
    parser.add_argument("trace", type=Path, help="node,idle_from_s,idle_until_s; plain or .gz")
    parser.add_argument("--hours", type=float, help="the first hours only")
    parser.add_argument("--grow-s", type=float, help="measured seconds without progress of a growth in place")
    parser.add_argument("--shrink-s", type=float, help="and of giving nodes up; a row of their own in stall accounting")
    parser.add_argument("--only", nargs="+", help="these rows")
    parser.add_argument("--check", action="store_true", help="also by counts alone, without the Controller")
    options = parser.parse_args(argv)
    if (options.grow_s is None) != (options.shrink_s is None):
        parser.error("--grow-s and --shrink-s belong together")
    rows = cases(options.grow_s, options.shrink_s)
    unknown = set(options.only or ()) - set(rows)
    if unknown:
        parser.error(f"no row {sorted(unknown)[0]!r}: there are {', '.join(rows)}")
    prepare()
    idle = read_idle(options.trace, options.hours)
    made = {name: measured(idle, case, options.check) for name, case in rows.items() if name in (options.only or rows)}
    print(json.dumps({"schema": 1, "hours": idle.end_s / 3600, "idle_nodes": idle.mean, "rows": made}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
