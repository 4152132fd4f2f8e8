"""`hpcdl simulate`: a workload under several policies on a virtual clock, compared.

Decided by the daemon's own Controller, in hpcdl/sim. Starts no process; every figure is said to be simulated.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from hpcdl.cli.backfill import backfill
from hpcdl.cli.output import Column, Output, escape, outputs_as, print_table, progress_line, say, value_column
from hpcdl.cli.papers import papers
from hpcdl.cli.params import REPORT, SKIP_SINGLE, InputFile, Seconds, replace_file
from hpcdl.core.model.objectives import OBJECTIVES
from hpcdl.core.model.units import count, one_of, parse_memory_mib

if TYPE_CHECKING:
    from hpcdl.core.model.plan import Policies
    from hpcdl.core.model.profile import Profile
    from hpcdl.sim import Conditions, NodeSpell, Results, SimulatedRun, Workload

OBJECTIVE = f"{', '.join(OBJECTIVES)}: what policies that heed it aim for"
MOST_JOBS_LISTED = 2_000
"""More jobs than this are left out of --json unless --jobs asks for them."""


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _figure(title: str, key: str, text: Callable[[Any], str] = "{:.0f}".format) -> Column:
    return value_column(title, key, text, right=True)


COLUMNS = (
    value_column("POLICY", "policy"),
    _figure("MAKESPAN S", "makespan_s"),
    _figure("MEAN JCT S", "mean_jct_s"),
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


class _Simulate(click.Group):
    """Its arguments are options; a word that is no command is taken for a workload."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """See click."""
        if args[0] not in self.commands:
            raise click.UsageError(f"a workload stands behind --workload: hpcdl simulate --workload {args[0]}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_Simulate, invoke_without_command=True)
@click.option(
    "-w", "--workload", type=InputFile(), metavar="FILE",
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
@click.option("--unknown", is_flag=True, help="Policies get no profile: they learn what they can.")
@click.option("--jobs", "with_jobs", is_flag=True, help="List every job.")
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

    if options.workload is None:
        raise click.UsageError("--workload FILE is missing, or `papers` for the papers' tables", ctx)
    policies = all_policies(home=ctx.find_root().obj)
    names = _names(ctx, policies, options.policy_names)
    workload = _read(ctx, options)
    conditions = _conditions(ctx, workload, options)
    learn = _learner(workload) if options.unknown else None
    runs: list[tuple[SimulatedRun, Results]] = []
    for name in names:
        run = run_one(workload, name, policies, conditions, learn, _progress(name))
        runs.append((run, summarise(run)))
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
        "simulated": True,
        "notes": list(workload.notes),
        "runs": [result.to_json(listed) for result in results],
    }
    if not output.print_data(value, [result.policy for result in results]):
        _print(workload, conditions, results, options)
    broken = [f"under {result.policy}: {problem}" for result in results for problem in result.problems]
    for problem in broken:
        say(problem)
    if broken:
        ctx.exit(1)


def _names(ctx: click.Context, policies: "Policies", given: Sequence[str]) -> list[str]:
    names = list(dict.fromkeys(part.strip() for text in given for part in text.split(",") if part.strip()))
    known = policies.names()
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        what = f"no policy {unknown[0]!r}" if unknown else "no policy is named"
        raise click.BadParameter(f"{what}; {one_of(''.join(unknown[:1]), known)}", ctx, param_hint="'--policy'")
    return names


def _read(ctx: click.Context, options: SimpleNamespace) -> "Workload":
    from dataclasses import replace

    from hpcdl.sim import cluster
    from hpcdl.sim.readers import read_idle_trace, read_workload

    nodes: tuple[NodeSpell, ...] = ()
    kind = options.gpu_type.strip().lower()
    if options.idle_trace is not None:
        if options.nodes is not None:
            raise click.UsageError("--nodes and --idle-trace exclude each other", ctx)
        nodes = read_idle_trace(options.idle_trace, options.gpus_per_node or 1, kind, options.skip_single)
    elif options.skip_single:
        raise click.UsageError("--skip-single is of --idle-trace DIR", ctx)
    elif options.nodes is not None:
        nodes = cluster(options.nodes, options.gpus_per_node or 1, kind)
    elif options.gpus_per_node is not None:
        nodes = cluster(1, options.gpus_per_node, kind)
    workload = read_workload(options.workload, _profiles(options, kind), nodes, kind, options.seed)
    if options.gpu_memory is not None:
        try:
            memory_mib = parse_memory_mib(options.gpu_memory)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param_hint="'--gpu-memory'") from None
        workload = replace(workload, nodes=tuple(replace(spell, memory_mib=memory_mib) for spell in workload.nodes))
    if options.unknown:
        workload = replace(workload, jobs=tuple(replace(job, told=False) for job in workload.jobs))
    return workload


def _profiles(options: SimpleNamespace, kind: str) -> "dict[str, Profile]":
    from hpcdl.config.layers import conf_folder
    from hpcdl.config.profiles import load_profiles, read_profiles
    from hpcdl.sim.readers import read_throughputs

    if not options.profile_files:
        return load_profiles([conf_folder() / "profiles"])
    found: dict[str, Profile] = {}  # and not ours: a model of the same name would silently have another speed
    for path in options.profile_files:
        if path.name.lower().removesuffix(".gz").endswith(".csv"):
            found |= read_throughputs(path, kind, options.gpus_per_node)
        else:
            found |= {profile.name.casefold(): profile for profile in read_profiles(path)}
    return found


def _conditions(ctx: click.Context, workload: "Workload", options: SimpleNamespace) -> "Conditions":
    from hpcdl.sim import Conditions, WorkloadError

    due = any(job.deadline_s is not None for job in workload.jobs)
    objective = options.objective or ("deadline" if due else "jct")
    if objective not in OBJECTIVES:
        what = f"no objective {objective!r}; {one_of(objective, OBJECTIVES)}"
        raise click.BadParameter(what, ctx, param_hint="'--objective'")
    try:
        return Conditions(
            seed=options.seed or 0,
            jitter=options.jitter,
            spread=options.spread,
            mtbf_s=options.mtbf,
            objective=objective,
            warm=options.warm,
            sharing=options.sharing,
        )
    except WorkloadError as error:
        raise click.UsageError(f"--{str(error).replace('mtbf_s', 'mtbf')}", ctx) from None


def _learner(workload: "Workload") -> Any:
    from hpcdl.estimators.scaling import learner

    kinds = sorted({spell.kind for spell in workload.nodes} - {""})
    sizes = workload.nodes_named
    return learner(max(sizes.values(), default=1), min(64, max(1, len(sizes))), kinds)


def _progress(name: str) -> Callable[[int, int], None] | None:
    show = progress_line()
    if show is None:
        return None
    return lambda finished, jobs: show(f"{name}: {finished} of {jobs} jobs" if finished < jobs else "")


def _print(
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
    left_out = {"DEADLINES MET": not due, "SHARED GPU S": not workload.shares, "GPU MEMORY": not known}
    shown = [column for column in COLUMNS if not left_out.get(column.title)]
    print_table(shown, [result.to_json(jobs=False) for result in results])
    if options.with_jobs:
        for result in results:
            print(f"\n{result.policy}:")
            shown = [column for column in JOB_COLUMNS if not left_out.get(column.title)]
            print_table(shown, result.to_json()["jobs"])
    if options.report is not None:
        print(f"\nwrote {escape(str(options.report))}")


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
