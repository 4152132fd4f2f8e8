"""Why each trainer has its nodes under `bftrainer` and its kin, in words and numbers: the reasons of a plan.

Written when a target changes, and read far more often than that: no reason may change while its numbers stay.
"""

from dataclasses import dataclass

from hpcdl.core.model.plan import JobView
from hpcdl.core.model.units import count, fold_nodes
from hpcdl.core.rules.exemption import STARTS
from hpcdl.milp.case import AllocationCase, TrainerCandidate
from hpcdl.milp.pricing import TrainerPrices
from hpcdl.placement.pool import gpus_needed, no_nodes, unmet


@dataclass(frozen=True, slots=True)
class CandidateDecision:
    """What was decided of one candidate: `nodes` of group `group` for `horizon_s`. `why`: words to add, or ""."""

    candidate: TrainerCandidate
    nodes: int
    group: int | None
    horizon_s: float
    why: str = ""


def reason(case: AllocationCase, said: CandidateDecision) -> str:
    """Why it has, gets or loses nodes."""
    text = _reason(case, said)
    return f"{text}; {said.why}" if said.why else text


def _reason(case: AllocationCase, said: CandidateDecision) -> str:
    each, job = said.candidate, said.candidate.job
    its = each.its
    before = each.trains
    held = 0 if job.placement is None or job.leaving else len(job.placement.shares)
    if not said.nodes:
        return _nothing(case, each, before)
    after = _rate(its, said.group, said.nodes)
    unit = "steps/s" if job.profile is not None else "steps/s (estimated: it has no profile yet)"
    if not before:
        again = "resumes" if job.step or job.last is not None else "starts"
        moved = f", and leaves {count(held, 'node')} that it has not whole" if held else ""
        cost = f" after {its.up_s:.0f} s" if its.up_s else ""
        return f"{again} on {count(said.nodes, 'node')}: {after:.3g} {unit}{cost}{moved}"
    rate = each.rate
    if said.group != each.group:
        return (
            f"{before} -> {count(said.nodes, 'node')} of another kind: {rate:.3g} -> {after:.3g} {unit}, "
            f"which pays {its.move_s:.0f} s of moving in {said.horizon_s:.0f} s"
        )
    if said.nodes == before:
        lost = held - len(each.current) if before == len(each.current) else 0
        where = f"keeps {count(before, 'node')}: {after:.3g} {unit}"
        if lost > 0:
            where += f"; {count(lost, 'node')} left"
        if said.nodes < job.nodes_max:
            more = _rate(its, said.group, before + 1) - after
            cost = f", and rescaling takes {its.up_s:.0f} s" if its.up_s else ""
            where += f"; another one would add {more:.2g}{cost}"
        return where
    if said.nodes > before and after <= rate:  # the policy does not ask what it gains
        return (
            f"{before} -> {count(said.nodes, 'node')}: {rate:.3g} -> {after:.3g} {unit}; {its.up_s:.0f} s of rescaling"
        )
    if said.nodes > before:
        gain = f"+{after - rate:.3g} {unit}"
        if not said.horizon_s:
            return f"{before} -> {count(said.nodes, 'node')}: {gain} after {its.up_s:.0f} s of rescaling"
        return (
            f"{before} -> {count(said.nodes, 'node')}: {gain} for {said.horizon_s:.0f} s "
            f"pays {its.up_s:.0f} s of rescaling"
        )
    return (
        f"{before} -> {count(said.nodes, 'node')}: {after - rate:.3g} {unit} and {its.down_s:.0f} s of rescaling; "
        f"{'fewer are faster' if after > rate else 'others gain more from them'}"
    )


def _nothing(case: AllocationCase, each: TrainerCandidate, before: int) -> str:
    job = each.job
    here = case.capacities[each.group] if each.group >= 0 else max(case.capacities, default=0)
    if before and before < job.nodes:
        return f"below its {count(job.nodes, 'node')}: {before} are left"
    if here < job.nodes:
        return f"needs {count(job.nodes, 'node')}, and {here} are there"
    nodes = f"its {count(before, 'node')}" if before else f"the {count(here, 'node')}"
    return f"{'suspended: ' if before else ''}other trainers gain more from {nodes} now"


def _rate(its: TrainerPrices, group: int | None, nodes: int) -> float:
    curve = None if group is None else its.curves[group]
    return 0.0 if curve is None else curve.rate(nodes)


def waits(case: AllocationCase, job: JobView) -> str:
    """Why a job that is no candidate has nothing."""
    if job.blocked:
        return job.blocked
    known = impossible(case, job)
    if known:
        return known
    running = len(case.candidates) + len(case.kept)
    if case.limit is not None and running >= case.limit:
        return f"{count(running, 'trainer')} {'is' if running == 1 else 'are'} before it, the most allowed"
    return f"{count(running, 'trainer')} before it can use all of {count(len(case.where), 'node')}"


def impossible(case: AllocationCase, job: JobView) -> str:
    """Why it could not run on the nodes that can be given, even if it had all of them, or ""."""
    if not case.view.nodes:
        return no_nodes(case.view, job)
    fitting = [many for (_, size), many in zip(case.kinds, case.capacities, strict=True) if job.allowed(size)]
    if not fitting and job.allowed(case.view.largest_node):
        return f"needs {count(job.nodes, 'node')}, and all are kept by jobs that cannot leave them now"
    if not fitting:
        return f"needs {gpus_needed(job)}; the largest node has {case.view.largest_node}"
    if max(fitting) < job.nodes:
        return unmet(case.view, job, f"{count(max(fitting), 'node')} could hold it")
    return ""


def kept(case: AllocationCase, job: JobView) -> str:
    """Why a job that cannot be decided about keeps what it holds."""
    names = () if job.placement is None else job.placement.nodes
    where = f"keeps {fold_nodes(names)}"
    if any(name not in case.nodes and name not in case.view.bare for name in names):
        return f"{where}, one of whose agents is away"
    if job.in_end:
        return f"{where}: its script's end runs, and would start over"
    if job.exempt:
        return f"{where}: not preempted before it has trained {STARTS:g} times as long as its start took"
    return f"{where}: nothing shows yet that it can be suspended"
