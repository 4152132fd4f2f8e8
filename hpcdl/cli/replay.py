"""`hpcdl replay`: a trace of idle nodes with an endless queue of elastic trainers; BFTrainer's section 5.

Decided by the daemon's own Controller on a virtual clock, in hpcdl/sim/replay. Starts no process.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from hpcdl.cli.output import Column, Output, escape, outputs_as, print_fields, print_table, progress, progress_line, say
from hpcdl.cli.params import REPORT, SKIP_SINGLE, Finite, InputFile, OneOf, Seconds, names_in, replace_file
from hpcdl.core.model.milp_solvers import MILP_SOLVERS
from hpcdl.core.model.objectives import OBJECTIVES

if TYPE_CHECKING:
    from hpcdl.sim.replay import IdleTrace, Outcome, ReplayCase, ScalingModel
    from hpcdl.sim.replay.check import CountedReplay
    from hpcdl.sim.replay.outcome import MilpTally
    from hpcdl.sim.replay.studies import Study

_STUDIES = ("t-fwd", "diverse", "parallel", "scale", "costs")
_MOST_DONE = 1e5
_SECONDS = Seconds(0, 1_000_000)


def _horizon(ctx: click.Context, param: click.Parameter, value: str) -> float | None:
    """Seconds above 0; None: adaptive, T_fwd follows the gaps between the changes of the set of nodes."""
    if value == "adaptive":
        return None
    try:
        seconds = Seconds().convert(value, param, ctx)
    except click.BadParameter:
        raise click.BadParameter(f"{value!r} is neither a number of seconds nor adaptive", ctx, param) from None
    if not 0 < seconds <= 1e6:
        raise click.BadParameter(f"{value} must be above 0 and up to 1e6 seconds, or adaptive", ctx, param)
    return seconds


@click.command()
@click.argument("trace", type=InputFile(folders=True), metavar="TRACE.csv[.gz]|DIR")
@click.option(
    "-p", "--policy", default="bftrainer", show_default=True, metavar="NAME", help="bftrainer, equal-share, …",
)  # fmt: skip
@click.option("-m", "--model", default="ShuffleNet", show_default=True, metavar="NAME",
              help="What the trainers train: a model of the curves, or table2 for all of them in turn.")  # fmt: skip
@click.option("--curves", type=InputFile(), metavar="FILE",
              help="Thousand samples/s by nodes, a column for each model.  [default: Table 2]")  # fmt: skip
@click.option("--parallel", type=click.IntRange(1, 1000), default=10, show_default=True, metavar="N",
              help="Trainers that are active at a time.")  # fmt: skip
@click.option(
    "--scale-up", type=_SECONDS, default=20, show_default=True, metavar="SECONDS", help="Cost of a start or growth."
)
@click.option(
    "--scale-down", type=_SECONDS, default=5, show_default=True, metavar="SECONDS", help="Cost of giving nodes up."
)
@click.option("--t-fwd", callback=_horizon, default="120", show_default=True, metavar="SECONDS",
              help="Forward-looking time; adaptive: from the gaps between changes.")  # fmt: skip
@click.option("--milp-solver", default="exact", show_default=True, metavar="NAME",
              help=f"Who solves the program of bftrainer, harvest: {', '.join(MILP_SOLVERS)}.")  # fmt: skip
@click.option("--hours", type=Finite(min=0, max=87_840, min_open=True), metavar="H",
              help="The first hours of the trace.  [default: all]")  # fmt: skip
@click.option("--accounting", type=OneOf(("paper", "stall")), default="paper", show_default=True,
              help="Rescales cost R x f(C) samples and no time; or R seconds.")  # fmt: skip
@click.option("--objective", default="efficiency", show_default=True, metavar="NAME",
              help=f"What the policy is to aim for: {', '.join(OBJECTIVES)}.")  # fmt: skip
@click.option("--samples", type=Finite(1, 2**53), default=130e6, metavar="N",
              help="Samples of each trainer.  [default: 130e6]")  # fmt: skip
@click.option("--nodes", default="1:64", show_default=True, metavar="MIN:MAX", help="Nodes of each trainer.")
@click.option("--check", is_flag=True, help="Also replay it by counts alone, without the Controller, and compare.")
@click.option("--study", metavar="NAME", help=f"{', '.join(_STUDIES)} or all: figures 7 to 16, Tables 3 and 4.")
@SKIP_SINGLE
@REPORT
@outputs_as("U only, or the names of studies.")
def replay(ctx: click.Context, /, output: Output, **values: Any) -> None:
    """Replay a trace of idle nodes, or a record, with an endless queue of elastic trainers.

    How well would a policy have used the backfill holes? U is the samples that were processed over what the same
    trainers do on the mean number of nodes if these never change.

    hpcdl replay idle.csv.gz --policy bftrainer --model ShuffleNet --report replay.html
    """
    from hpcdl.sim.replay import read_idle

    options = SimpleNamespace(**values)
    base, models = _case(ctx, options)
    idle = read_idle(options.trace, options.hours, options.skip_single)
    _check_length(ctx, idle, base)
    if options.study is None:
        problems = _one(output, options, idle, base)
    else:
        problems = _studies(ctx, output, options, idle, base, models)
    for problem in problems:
        say(problem)
    if problems:
        ctx.exit(1)


def _case(ctx: click.Context, options: SimpleNamespace) -> "tuple[ReplayCase, tuple[ScalingModel, ...]]":
    """The replay that the options describe, and all models that there are. Raises UsageError."""
    from hpcdl.core.model.units import one_of, parse_range
    from hpcdl.policies import all_policies
    from hpcdl.sim.replay import ReplayCase, chosen, read_models, table2
    from hpcdl.sim.workload import WorkloadError

    names = all_policies().names()
    if options.policy not in names:
        what = f"no policy {options.policy!r}; {one_of(options.policy, names)}"
        raise click.BadParameter(what, ctx, param_hint="'--policy'")
    if options.objective not in OBJECTIVES:
        what = f"no objective {options.objective!r}; {one_of(options.objective, OBJECTIVES)}"
        raise click.BadParameter(what, ctx, param_hint="'--objective'")
    if options.samples != int(options.samples):
        raise click.BadParameter(f"{options.samples:g} is not a whole number", ctx, param_hint="'--samples'")
    try:
        fewest, most = parse_range(options.nodes)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param_hint="'--nodes'") from None
    models = table2() if options.curves is None else read_models(options.curves)
    try:
        case = ReplayCase(
            models=chosen(options.model, models),
            policy=options.policy,
            parallel=options.parallel,
            scale_up_s=options.scale_up,
            scale_down_s=options.scale_down,
            t_fwd_s=options.t_fwd,
            accounting=options.accounting,
            objective=options.objective,
            milp_solver=options.milp_solver,
            samples=int(options.samples),
            fewest=fewest,
            most=most if most is not None else 64,
        )
    except WorkloadError as error:
        raise click.UsageError(str(error), ctx) from None
    return case, models


def _check_length(ctx: click.Context, idle: "IdleTrace", case: "ReplayCase") -> None:
    """Raises UsageError where the trainers would be done so often that the replay would never end."""
    fastest = max(rate / nodes for model in case.models for nodes, rate in model.points)
    most = fastest * idle.node_hours * 3600.0
    if most / case.samples > _MOST_DONE:
        what = f"up to {most / case.samples:.2g} trainers would be done: give {most / _MOST_DONE:.2g} or more"
        raise click.BadParameter(what, ctx, param_hint="'--samples'")


# --- one replay ------------------------------------------------------------------------------------------------------


def _one(output: Output, options: SimpleNamespace, idle: "IdleTrace", case: "ReplayCase") -> tuple[str, ...]:
    from hpcdl.sim.replay import replayed
    from hpcdl.solver import prepare

    prepare()  # before the first decision is timed
    other = None
    if options.check:
        from hpcdl.sim.replay.check import counted

        other = counted(idle, case)
    outcome = replayed(idle, case, _hours(idle, case.policy))
    if options.report is not None:
        _draw(options.report, outcome, ())
    checked = {} if other is None else {"check": asdict(other)}
    if not output.print_data(outcome.to_json() | checked, [f"{outcome.U:.4f}"]):
        _print(outcome, other)
        _wrote(options.report)
    return outcome.problems


def _of(figures: dict[str, float]) -> str:
    return f"{_share(figures['U'])} of {_share(figures['bound_U'])}"


def _print(outcome: "Outcome", other: "CountedReplay | None") -> None:
    case, idle, values = outcome.case, outcome.idle, outcome.to_json()
    names = ", ".join(model.name for model in case.models)
    print(escape(f"Simulated: {case.parallel} trainers ({names}) on idle nodes under {case.policy}, {case.objective}."))
    print()
    one = len(case.models) == 1
    print_fields(
        [
            ("U", f"{_share(outcome.U)} of {_share(outcome.bound_U)} that are possible"),
            *(("" if one else name.replace("_", " "), _of(values[name])) for name in ("by_efficiency", "by_samples")),
            ("by counts", "" if other is None else f"{_share(other.U)} of {_share(other.bound_U)}"),
            ("time", f"{values['hours']:.4g} h, {values['events']} events"),
            ("idle nodes", f"{idle.mean:.1f} on average, {_share(outcome.used_share)} of their time used"),
            ("samples", f"{outcome.samples:.4g}, {outcome.completed} trainers done"),
            ("rescales", f"{outcome.rescales}, which cost {outcome.rescale_loss:.4g} samples"),
            ("preemptions", f"{outcome.preemptions}, which cost {outcome.preemption_loss:.4g} samples"),
            ("decisions", _decisions(values["decisions"])),
            ("solver", "" if outcome.milp is None else _tally(case.milp_solver, outcome.milp)),
        ]
    )


def _tally(solver: str, milp: "MilpTally") -> str:
    exact = f", {milp.exact} of them by the exact counts" if milp.exact else ", all proven optimal"
    return f"{solver}, {milp.solves} programs{exact}{'; '.join(['', *milp.troubles])}"


def _decisions(values: Any) -> str:
    return f"{values['count']}, p50 {values['p50_ms']:.2f} ms, p99 {values['p99_ms']:.2f} ms"


def _share(value: float) -> str:
    return f"{100 * value:.2f} %"


def _hours(idle: "IdleTrace", name: str) -> Callable[[float], None] | None:
    show, end = progress_line(), idle.end_s / 3600
    if show is None:
        return None
    return lambda hours: show(f"{name}: {hours:.0f} of {end:.0f} h" if hours < end - 1 else "")


# --- studies ---------------------------------------------------------------------------------------------------------


def _studies(
    ctx: click.Context,
    output: Output,
    options: SimpleNamespace,
    idle: "IdleTrace",
    base: "ReplayCase",
    models: "tuple[ScalingModel, ...]",
) -> tuple[str, ...]:
    from hpcdl.sim.replay.studies import studied

    names = names_in(options.study, (*_STUDIES, "all"), "--study")
    names = list(_STUDIES) if "all" in names else names
    if options.check:
        raise click.UsageError("--check is of one replay, not of studies", ctx)
    if len(base.models) > 1:
        base = replace(base, models=models[:1])  # studies of several models take them all anyway
    studies, problems = studied(names, idle, base, models, progress())
    if options.report is not None:
        _draw(options.report, None, studies)
    if not output.print_data(
        {"simulated": True, "studies": [study.to_json() for study in studies]}, [study.name for study in studies]
    ):
        for study in studies:
            _table(study)
        _wrote(options.report)
    return problems


def _table(study: "Study") -> None:
    from hpcdl.sim.replay.page import cells_of

    header, rows = cells_of(study)
    print(f"{escape(study.title)}\n")
    labels = len(rows[0][0]) if rows else 0
    columns = [
        Column(title.upper(), itemgetter(str(place)), right=place >= labels)
        for place, title in enumerate(header if rows else ())
    ]
    lines = [
        [*names, *(f"{each.ours} ({each.printed})" if each.printed else each.ours for each in cells)]
        for names, cells in rows
    ]
    print_table(columns, [{str(place): text for place, text in enumerate(line)} for line in lines])
    for text in study.notes:
        print(f"  {escape(text)}")
    print()


def _draw(target: Path, outcome: "Outcome | None", studies: "Sequence[Study]") -> None:
    from hpcdl.sim.replay.page import replay_page

    replace_file(target, replay_page(outcome, studies))


def _wrote(target: Path | None) -> None:
    if target is not None:
        print(f"\nwrote {escape(str(target))}")
