"""Light runs (`JobSpec.light_steps`): jobs on GPUs that nobody else is to have, beside whatever a policy plans.

GENIE profiles new types of jobs while the cluster has GPUs to spare (section 6). A policy does not see them
(`without_light_runs`): in its view their GPUs are free. What its plan then leaves idle is theirs (`with_light_runs`),
and one whose GPUs the plan gives to another job is ended at once (`reconcile.py`). Both are pure.
"""

from collections.abc import Iterable
from dataclasses import replace

from hpcdl.core.model.incarnation import Placement, Role, Share
from hpcdl.core.model.plan import JobView, Plan, Targets, View
from hpcdl.core.model.units import GpuRef, count, fold_nodes
from hpcdl.core.model.world import Target


def without_light_runs(view: View) -> View:
    """What a policy is to see: the view itself where there are no light runs."""
    if not any(job.only_idle for job in view.jobs):
        return view
    return replace(view, jobs=tuple(job for job in view.jobs if not job.only_idle))


def with_light_runs(view: View, plan: Plan) -> Plan:
    """The plan that was made for `without_light_runs` of the view, and what becomes of the light runs.

    Those that run go on while nobody else is to have their GPUs; others start where enough are idle.
    """
    runs = [job for job in view.jobs if job.only_idle]
    if not runs:
        return plan
    owners = {gpu: target.job for target in plan.targets for gpu in _gpus(target.placement)}
    targets: dict[int, Target] = {}
    idle: dict[str, list[int]] = {}
    for name, free in view.free.items():
        idle[name] = [index for index in free if GpuRef(name, index) not in owners]
    for job in runs:
        held = job.placement or job.target
        if held is None or job.blocked:
            continue
        wanted = sorted({owners[gpu] for gpu in held.gpus if gpu in owners})
        if wanted:
            others = f"{'job' if len(wanted) == 1 else 'jobs'} {', '.join(map(str, wanted))}"
            targets[job.id] = Target(job.id, None, f"makes room for {others}: it runs only on GPUs that are idle")
        elif job.placement is not None or _has(idle, held):
            targets[job.id] = Target(job.id, held, f"{_where(held)}, which nobody else is to have")
            _take(idle, held)
    for job in runs:
        if job.id not in targets and not job.blocked and not job.leaving and (found := _find(job, view, idle)):
            targets[job.id] = Target(job.id, found, f"{_where(found)}, which nobody else is to have")
            _take(idle, found)
    for job in runs:
        why = job.blocked or f"waits until {count(job.gpus_min, 'GPU')} {'is' if job.gpus_min == 1 else 'are'} idle"
        targets.setdefault(job.id, Target(job.id, None, why))
    if isinstance(plan.targets, Targets):
        return replace(plan, targets=plan.targets.of_view(view, targets))
    return replace(plan, targets=(*plan.targets, *targets.values()))


def _gpus(placement: Placement | None) -> Iterable[GpuRef]:
    return () if placement is None else placement.gpus


def _has(idle: dict[str, list[int]], placement: Placement) -> bool:
    return all(set(share.gpus) <= set(idle.get(share.node, ())) for share in placement.shares)


def _take(idle: dict[str, list[int]], placement: Placement) -> None:
    for share in placement.shares:
        idle[share.node] = [index for index in idle.get(share.node, ()) if index not in share.gpus]


def _find(job: JobView, view: View, idle: dict[str, list[int]]) -> Placement | None:
    """Idle GPUs of one type for the job, on the nodes that have fewest to spare; None where there are too few."""
    for kind in sorted(set(view.kinds.values())):
        able = [name for name, free in idle.items() if view.kind_of(name) == kind and len(free) >= job.gpus_min]
        chosen = sorted(able, key=lambda name: (len(idle[name]), name))[: job.nodes]
        if len(chosen) == job.nodes:
            shares = (Share(name, tuple(idle[name][: job.gpus_min])) for name in sorted(chosen))
            return Placement(tuple(shares), Role.PRIMARY)
    return None


def _where(placement: Placement) -> str:
    return f"{count(len(placement.gpus), 'GPU')} of {fold_nodes(placement.nodes)}"
