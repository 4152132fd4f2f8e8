"""What `hpcdl simulate` prints of a workload under several policies."""

from collections.abc import Callable, Sequence
from itertools import groupby
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hpcdl.cli.output import Column, escape, print_table, value_column
from hpcdl.core.model.units import count

if TYPE_CHECKING:
    from hpcdl.sim import Conditions, Results, Workload

MOST_UNFAIR = 20
"""So many jobs that took too long are printed, the worst ones."""


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _figure(title: str, key: str, text: Callable[[Any], str] = "{:.0f}".format) -> Column:
    return value_column(title, key, text, right=True)


COLUMNS = (
    value_column("POLICY", "policy"),
    _figure("MAKESPAN S", "makespan_s"),
    _figure("MEAN JCT S", "mean_jct_s"),
    _figure("BOUND", "bound_mean_jct_s"),
    _figure("MEDIAN", "median_jct_s"),
    _figure("P95", "p95_jct_s"),
    _figure("MEAN WAIT S", "mean_wait_s"),
    _figure("LONGEST", "longest_wait_s"),
    _figure("UTILISATION", "utilisation", _percent),
    _figure("GPU MEMORY", "memory_utilisation", _percent),
    _figure("LOST", "lost_share", _percent),
    _figure("SUSPENDS", "suspends", str),
    _figure("RESCALES", "rescales", str),
    _figure("SHARED GPU S", "shared_gpu_s"),
    _figure("DEADLINES MET", "deadlines_met", _percent),
    _figure("FAIRNESS", "mean_fairness", "{:.2f}".format),
    _figure("DONE", "finished", str),
)


def _gpus(row: Any) -> str:
    numbers = [number for _, number in row["gpus"] if number]
    return " -> ".join(str(number) for number, _ in groupby(numbers)) or "-"


JOB_COLUMNS = (
    _figure("ID", "id", str),
    value_column("JOB", "name", shrinks=True),
    value_column("STATE", "state", coloured=True),
    _figure("SUBMIT S", "submit_s"),
    _figure("START S", "start_s"),
    _figure("END S", "end_s"),
    _figure("WAIT S", "wait_s"),
    _figure("JCT S", "jct_s"),
    Column("GPUS", _gpus, shrinks=True),
    _figure("SUSPENDS", "suspends", str),
    _figure("LOST S", "lost_s"),
    _figure("SHARED GPU S", "shared_gpu_s"),
    _figure("GPU MEMORY", "memory_utilisation", _percent),
)


def _print_unfair(result: "Results", conditions: "Conditions") -> None:
    unfair = result.above_max_slowdown
    if not unfair:
        return
    what = f"{count(len(unfair), 'job')} of {len(result.jobs)}"
    print()
    print(escape(f"{result.policy}: {what} took more than {conditions.max_slowdown:g} times their fair share:"))
    for each in unfair[:MOST_UNFAIR]:
        print(escape(f"  job {each.job} {each.name}: {each.fairness:.1f} times: {each.why}"))
    if len(unfair) > MOST_UNFAIR:
        print(f"  and {len(unfair) - MOST_UNFAIR} more: --json lists all of them")


def print_runs(
    workload: "Workload", conditions: "Conditions", results: "Sequence[Results]", options: SimpleNamespace
) -> None:
    there = workload.nodes_named
    what = (
        f"{count(len(workload.jobs), 'job')} of {workload.name} on {count(len(there), 'node')} "
        f"with {count(sum(there.values()), 'GPU')}"
    )
    print(escape(f"Simulated: {what}, objective {conditions.objective}, seed {conditions.seed}."))
    if conditions.spread:
        print(
            f"  start-ups, saves and lengths are drawn (sigma {conditions.spread:g}); policies learn them as jobs train"
        )
    for note in workload.notes:
        print(escape(f"  {note}"))
    print()
    due = any(result.deadlines_met is not None for result in results)
    known = any(result.memory_utilisation is not None for result in results)
    left_out = {
        "DEADLINES MET": not due,
        "SHARED GPU S": not workload.shares,
        "GPU MEMORY": not known,
        "BOUND": not options.bound,
    }
    shown = [column for column in COLUMNS if not left_out.get(column.title)]
    print_table(shown, [result.to_json(jobs=False) for result in results])
    for result in results:
        _print_unfair(result, conditions)
    if options.with_jobs:
        for result in results:
            print(f"\n{result.policy}:")
            shown = [column for column in JOB_COLUMNS if not left_out.get(column.title)]
            print_table(shown, result.to_json()["jobs"])
    if options.report is not None:
        print(f"\nwrote {escape(str(options.report))}")
