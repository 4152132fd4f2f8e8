"""`hpcdl simulate`: a workload under several policies on a virtual clock, compared.

Decided by the daemon's own Controller, in hpcdl/sim. Every figure is said to be simulated. `inputs` makes what is
simulated of the options, `tables` prints what came out.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from hpcdl.cli.backfill import backfill
from hpcdl.cli.output import Output, outputs_as, progress_line, say
from hpcdl.cli.papers import papers
from hpcdl.cli.params import REPORT, SKIP_SINGLE, InputFile, Seconds, replace_file
from hpcdl.cli.simulate import inputs
from hpcdl.cli.simulate.sweep import AXES, sweep
from hpcdl.cli.simulate.tables import print_runs
from hpcdl.core.model.objectives import OBJECTIVES

if TYPE_CHECKING:
    from hpcdl.sim import Results, SimulatedRun

OBJECTIVE = f"{', '.join(OBJECTIVES)}: what policies that heed it aim for"
MOST_JOBS_LISTED = 2_000
"""More jobs than this are left out of --json unless --jobs asks for them."""


class _Simulate(click.Group):
    """Its arguments are options; a word that is no command is taken for a workload."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """See click."""
        if args[0] not in self.commands:
            raise click.UsageError(f"a workload stands behind --workload: hpcdl simulate --workload {args[0]}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_Simulate, invoke_without_command=True)
@click.option(
    "-w", "--workload", "workloads", type=InputFile(), multiple=True, metavar="FILE",
    help="YAML, CSV, SWF, or what sacct --parsable2, bhist -l, bacct -l or hpcdl events --json print; plain or .gz.",
)  # fmt: skip
@click.option("-N", "--nodes", type=click.IntRange(1, 100_000), metavar="N", help="Nodes.  [default: the workload's]")
@click.option("--gpus-per-node", type=click.IntRange(1, 1024), metavar="G", help="GPUs of each of them.")
@click.option(
    "--gpu-memory", metavar="SIZE",
    help="Memory of each GPU, 40G: jobs share one only where both fit.  [default: the workload's]",
)  # fmt: skip
@click.option("--gpu-type", default="", metavar="TYPE", help="Their type, as profiles name it: v100, k80.")
@click.option(
    "--idle-trace", type=InputFile(folders=True), metavar="FILE|DIR",
    help="When which node is there: CSV of node,idle_from_s,idle_until_s, or a record. In place of --nodes.",
)  # fmt: skip
@SKIP_SINGLE
@click.option(
    "-p", "--policy", "policy_names", multiple=True, default=("adaptive,marble,fifo",), metavar="NAME,..",
    help="Policies to compare.  [default: adaptive,marble,fifo]",
)  # fmt: skip
@click.option(
    "--profiles", "profile_files", multiple=True, type=InputFile(), metavar="FILE",
    help="Throughputs: CSV of model_and_batch_per_gpu,gpu,gpus,steps_per_s, or profiles as in conf/profiles.",
)  # fmt: skip
@click.option("--objective", metavar="NAME", help=f"{OBJECTIVE}.  [default: deadline if jobs have some, else jct]")
@click.option(
    "--seed", type=int, metavar="N", help="Same seed, same result.  [default: the workload's for its arrivals, else 0]"
)
@click.option(
    "--jitter", type=float, default=0.0, metavar="SIGMA", help="Lognormal noise on every delay.  [default: 0]"
)
@click.option(
    "--spread", type=float, default=0.0, metavar="SIGMA",
    help="Each job's start-ups, saves and length are drawn, and policies do not know them.  [default: 0]",
)  # fmt: skip
@click.option("--mtbf", type=Seconds(), default=0, metavar="SECONDS", help="Mean time between failures of a trainer.")
@click.option(
    "--sharing/--no-sharing", default=True,
    help="Jobs that agreed to it share GPUs, as with the setting `sharing`.  [default: sharing]",
)  # fmt: skip
@click.option("--warm", is_flag=True, help="Jobs may start ahead, and wait at the gate for their GPUs.")
@click.option(
    "--startup", type=Seconds(min=0), metavar="SECONDS", help="Of profiles without costs, as from CSV: a start."
)
@click.option(
    "--resume", type=Seconds(min=0), metavar="SECONDS", help="Of these, too: a resume.  [default: as a start]"
)
@click.option(
    "--save", type=Seconds(min=0), metavar="SECONDS", help="Of these, too: the save of a suspend.  [default: 0]"
)
@click.option(
    "--unknown", is_flag=False, flag_value="curves,startup,save", default="", metavar="[WHAT,..]",
    help="Policies are not told: curves, steps, startup, save.  [without WHAT: no profile]",
)  # fmt: skip
@click.option(
    "--wrong", multiple=True, metavar="curves:S|steps:A..B",
    help="What they are told is wrong: each point times exp(N(0, S)), each job's steps times A to B.",
)  # fmt: skip
@click.option(
    "--max-slowdown", type=float, default=5.0, metavar="X",
    help="Jobs that take more than X times their fair share are listed.  [default: 5]",
)  # fmt: skip
@click.option("--bound", is_flag=True, help="Say below which mean JCT no policy can be.")
@click.option("--jobs", "with_jobs", is_flag=True, help="List every job.")
@click.option(
    "--sweep", multiple=True, metavar="KEY=V,V,..",
    help=f"Simulate each combination, in parallel: {', '.join(AXES)}; several --workload, and seed=0..9, are draws.",
)  # fmt: skip
@REPORT
@outputs_as("The names of the policies only.")
def simulate(ctx: click.Context, /, output: Output, **options: Any) -> None:
    """Replay a workload under several policies on a virtual clock, with the daemon's own Controller.

    hpcdl simulate --workload jobs.csv --nodes 4 --gpus-per-node 4 --policy marble,adaptive
    """
    if ctx.invoked_subcommand is None:
        _compare(ctx, output, SimpleNamespace(**options))


simulate.add_command(backfill)
simulate.add_command(papers)


def _compare(ctx: click.Context, output: Output, options: SimpleNamespace) -> None:
    from hpcdl.policies import all_policies
    from hpcdl.sim import simulate as run_one
    from hpcdl.sim import summarise
    from hpcdl.sim.beliefs import believe, learner_of
    from hpcdl.sim.jct_bound import mean_jct_bound_s

    if not options.workloads:
        raise click.UsageError("--workload FILE is missing, or `papers` for the papers' tables", ctx)
    policies = all_policies(home=ctx.find_root().obj)
    names = inputs.policy_names(ctx, policies, options.policy_names)
    if options.sweep:
        sweep(ctx, output, options, names)
        return
    if len(options.workloads) > 1:
        raise click.UsageError("several workloads are draws of a sweep: add --sweep seed=0, or give one", ctx)
    told = inputs.beliefs(ctx, options)
    true = inputs.read(ctx, options, options.workloads[0])
    conditions = inputs.conditions(ctx, true, options)
    workload = believe(true, told, conditions.seed)
    learn = learner_of(workload, told.unknown) if "curves" in told.unknown else None
    bound_s = mean_jct_bound_s(workload, conditions) if options.bound else None
    runs: list[tuple[SimulatedRun, Results]] = []
    for name in names:
        run = run_one(workload, name, policies, conditions, learn, _progress(name))
        runs.append((run, summarise(run, bound_s)))
    results = [result for _, result in runs]
    if options.report is not None:
        from hpcdl.sim.page import page_of

        replace_file(options.report, page_of(workload, conditions, runs))
    listed = output is Output.JSON and (options.with_jobs or len(workload.jobs) <= MOST_JOBS_LISTED)
    value = {
        "workload": workload.name,
        "source": workload.source,
        "jobs": len(workload.jobs),
        "nodes": len(workload.nodes_named),
        "gpus": sum(workload.nodes_named.values()),
        "seed": conditions.seed,
        "spread": conditions.spread,
        "objective": conditions.objective,
        "sharing": conditions.sharing,
        "max_slowdown": conditions.max_slowdown,
        **told.to_json(),
        "simulated": True,
        "notes": list(workload.notes),
        "runs": [result.to_json(listed) for result in results],
    }
    if not output.print_data(value, [result.policy for result in results]):
        print_runs(workload, conditions, results, options)
    broken = [f"under {result.policy}: {problem}" for result in results for problem in result.problems]
    for problem in broken:
        say(problem)
    if broken:
        ctx.exit(1)


def _progress(name: str) -> Callable[[int, int], None] | None:
    show = progress_line()
    if show is None:
        return None
    return lambda finished, jobs: show(f"{name}: {finished} of {jobs} jobs" if finished < jobs else "")
