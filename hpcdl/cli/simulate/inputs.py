"""From the options of `hpcdl simulate` to what is simulated: policies, workload, conditions, beliefs."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

import click

from hpcdl.core.model.objectives import OBJECTIVES
from hpcdl.core.model.units import one_of, parse_memory_mib

if TYPE_CHECKING:
    from pathlib import Path

    from hpcdl.core.model.plan import Policies
    from hpcdl.core.model.profile import Profile
    from hpcdl.sim import Conditions, NodeSpell, Workload
    from hpcdl.sim.beliefs import Beliefs
    from hpcdl.sim.readers import Costs


def policy_names(ctx: click.Context, policies: "Policies", given: Sequence[str]) -> list[str]:
    """The policies that are named, each once. Raises BadParameter."""
    names = list(dict.fromkeys(part.strip() for text in given for part in text.split(",") if part.strip()))
    known = policies.names()
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        what = f"no policy {unknown[0]!r}" if unknown else "no policy is named"
        raise click.BadParameter(f"{what}; {one_of(''.join(unknown[:1]), known)}", ctx, param_hint="'--policy'")
    return names


def read(ctx: click.Context, options: SimpleNamespace, path: "Path") -> "Workload":
    """The workload on its nodes, as it truly is. Raises UsageError, WorkloadError."""
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
    workload = read_workload(path, _profiles(options, kind), nodes, kind, options.seed, costs=_costs(options))
    if options.gpu_memory is not None:
        try:
            memory_mib = parse_memory_mib(options.gpu_memory)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param_hint="'--gpu-memory'") from None
        workload = replace(workload, nodes=tuple(replace(spell, memory_mib=memory_mib) for spell in workload.nodes))
    return workload


def _costs(options: SimpleNamespace) -> "Costs | None":
    from hpcdl.sim.readers import Costs

    if options.startup is options.resume is options.save is None:
        return None
    return Costs(options.startup or 0.0, options.resume, options.save or 0.0)


def beliefs(ctx: click.Context, options: SimpleNamespace) -> "Beliefs":
    """What policies are told that is not the truth. Raises UsageError."""
    from hpcdl.sim import WorkloadError
    from hpcdl.sim.beliefs import parse_beliefs

    try:
        found = parse_beliefs(options.unknown, options.wrong)
        if options.spread and found.wrong_steps != (1.0, 1.0):
            raise WorkloadError("--spread hides the steps of jobs, so none are told wrong: leave out one of the two")
    except WorkloadError as error:
        raise click.UsageError(str(error), ctx) from None
    return found


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


def conditions(ctx: click.Context, workload: "Workload", options: SimpleNamespace) -> "Conditions":
    """What surrounds the workload. Raises UsageError, BadParameter."""
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
            max_slowdown=options.max_slowdown,
        )
    except WorkloadError as error:
        raise click.UsageError(f"--{str(error).replace('mtbf_s', 'mtbf').replace('_', '-', 1)}", ctx) from None
