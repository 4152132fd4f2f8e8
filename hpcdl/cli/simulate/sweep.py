"""`hpcdl simulate --sweep`: policies by settings over draws, in parallel, with confidence intervals."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from hpcdl.cli.output import Column, Output, escape, print_table, progress, say, value_column
from hpcdl.cli.params import replace_file
from hpcdl.cli.simulate import inputs
from hpcdl.core.model.units import count

if TYPE_CHECKING:
    from hpcdl.sim.sweep import Setting, SweepInput, SweepRow, SweepRun

AXES = (
    "load", "seed", "objective", "max-slowdown", "startup", "resume", "save", "unknown", "wrong", "spread", "jitter",
    "mtbf",
)  # fmt: skip
"""What can be swept over: the load, by which submits come so many times as fast, and options of `hpcdl simulate`."""

_NUMBERS = ("max-slowdown", "startup", "resume", "save", "spread", "jitter", "mtbf")


def sweep(ctx: click.Context, output: Output, options: SimpleNamespace, policies: Sequence[str]) -> None:
    """Simulate all of it, and print or draw what came out. Raises UsageError, WorkloadError before the work."""
    from hpcdl.sim import WorkloadError
    from hpcdl.sim.sweep import parse_axes, rows_of, settings_of, simulated

    if options.with_jobs:
        raise click.UsageError("--jobs lists the jobs of one workload: leave it out with --sweep", ctx)
    try:
        axes = parse_axes(options.sweep, AXES)
    except WorkloadError as error:
        raise click.UsageError(str(error), ctx) from None
    seeds = axes.get("seed", (None,))
    cases = [
        _input(ctx, options, setting, place, seed)
        for setting in settings_of(axes)
        for place in range(len(options.workloads))
        for seed in seeds
    ]
    runs, problems = simulated(cases, policies, progress(), home=ctx.find_root().obj, bound=options.bound)
    rows = rows_of(runs)
    if options.report is not None:
        from hpcdl.sim.sweep_page import sweep_page

        replace_file(options.report, sweep_page(rows, runs, policies[0]))
    value = {
        "simulated": True,
        "axes": {name: list(values) for name, values in axes.items()},
        "workloads": [str(path) for path in options.workloads],
        "policies": list(policies),
        "rows": [row.to_json() for row in rows],
        "runs": [run.to_json() for run in runs],
    }
    if not output.print_data(value, policies):
        _print(rows, runs, options, policies[0])
    for problem in problems:
        say(problem)
    if problems:
        ctx.exit(1)


def _input(
    ctx: click.Context, options: SimpleNamespace, setting: "Setting", place: int, seed: str | None
) -> "SweepInput":
    from hpcdl.sim.sweep import SweepInput, at_load

    own = SimpleNamespace(**vars(options))
    own.seed = options.seed if seed is None else int(seed)
    load = 1.0
    for name, text in setting:
        if name in _NUMBERS:
            setattr(own, name.replace("-", "_"), _number(ctx, name, text))
        elif name == "load":
            load = _number(ctx, name, text)
        elif name == "objective":
            own.objective = text
        else:
            parts = [] if text == "none" else text.split("+")
            setattr(own, name, ",".join(parts) if name == "unknown" else parts)
    path = options.workloads[place]
    true = inputs.read(ctx, own, path)
    return SweepInput(
        setting=setting,
        draw=(str(path), own.seed or 0),
        workload=at_load(true, load),
        conditions=inputs.conditions(ctx, true, own),
        beliefs=inputs.beliefs(ctx, own),
    )


def _number(ctx: click.Context, name: str, text: str) -> float:
    """Of an axis: 0 or more; a load is above 0."""
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not (0 <= found < float("inf")) or (name == "load" and found == 0):
        raise click.UsageError(f"cannot sweep over {name}={text}: expected a number above 0", ctx)
    return found


def _print(rows: "Sequence[SweepRow]", runs: "Sequence[SweepRun]", options: SimpleNamespace, first: str) -> None:
    draws = max((row.draws for row in rows), default=0)
    print(escape(f"Simulated: {count(len(runs), 'run')}. ± is half of a 95 % interval over {count(draws, 'draw')}."))
    print()
    names = [name for name, _ in rows[0].setting] if rows else []
    columns = [
        *(_setting_column(name) for name in names),
        value_column("POLICY", "policy"),
        value_column("DRAWS", "draws", right=True),
        _figure("MEAN JCT S", "mean_jct_s"),
        _figure(f"AGAINST {first.upper()}", "jct_vs_first", 100.0, " %"),
        *([_figure("BOUND", "bound_mean_jct_s")] if options.bound else []),
        _figure("MAKESPAN S", "makespan_s"),
        _figure("WORST FAIRNESS", "worst_fairness", digits=2),
        value_column("ABOVE", "above_max_slowdown", right=True),
        _figure("SUSPENDS", "suspends"),
    ]
    print_table(columns, [row.to_json() for row in rows])
    if options.report is not None:
        print(f"\nwrote {escape(str(options.report))}")


def _setting_column(name: str) -> Column:
    return Column(name.upper(), lambda row: row["setting"][name])


def _figure(title: str, key: str, times: float = 1.0, unit: str = "", digits: int | None = None) -> Column:
    places = (1 if unit else 0) if digits is None else digits

    def cell(row: Any) -> str:
        if row.get(key) is None:
            return "-"
        half = row.get(f"{key}_ci95")
        sign = "+" if unit else ""
        text = f"{times * row[key]:{sign}.{places}f}"
        return text + (f" ±{times * half:.{places}f}" if half else "") + unit

    return Column(title, cell, right=True)
