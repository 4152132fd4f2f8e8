"""Why each job has what it has under `adaptive`, in words and numbers: the reasons of a plan's targets.

Texts are kept in `JobView.memo` while what they say stays the same, since most do from one decision to the next.
"""

from hpcdl.adaptive.options import Candidate, Option, OptionMenu
from hpcdl.core.model.incarnation import Placement
from hpcdl.core.model.plan import View
from hpcdl.core.model.units import count, fold_nodes, memory_text
from hpcdl.core.rules.exemption import STARTS
from hpcdl.placement.pool import gpus_needed, no_nodes, unmet


def reason(found: OptionMenu, candidate: Candidate, placement: Placement, why: str) -> str:
    """Why a job gets, or keeps, these GPUs."""
    job = candidate.job
    known = job.memo.get("reason")
    if known is not None and known[0] is candidate.menu and known[1] is placement and known[2] == why:
        text: str = known[3]
        return text
    text = _reason(found, candidate, placement) + (f"; {why}" if why else "")
    job.memo["reason"] = (candidate.menu, placement, why, text)
    return text


def _reason(found: OptionMenu, candidate: Candidate, placement: Placement) -> str:
    job = candidate.job
    held = job.placement if not job.leaving else None
    gpus, nodes = placement.per_node, len(placement.shares)
    mine = next((each for each in candidate.options if _is(found, each, placement)), None)
    pool = None if mine is None else found.pools[mine.pool]
    size = "" if pool is None or pool.sizes else f" of {pool.size}"
    each = "" if nodes == 1 else " each"
    where = f"{gpus}{size} GPUs{each} of {fold_nodes(placement.nodes)}" if size else count(gpus, "GPU")
    if job.in_end and held is not None:
        return f"keeps {where}: its script's end runs, and would start over"
    if job.exempt:
        return f"keeps {where}: not preempted before it has trained {STARTS:g} times as long as its start took"
    if candidate.fixed:
        return f"keeps {where}: nothing shows yet that it can be suspended"
    keeps = held is not None and held.same_gpus(placement)
    parts = f"{'keeps' if keeps else 'gets'} {where}"
    if mine is None:
        return parts
    if gpus * nodes > 1:
        parts += f": {mine.rate / candidate.menu.unit:.1f}x one GPU"
        if candidate.job.profile is None:
            parts += ", estimated: it has no profile yet"
    if not keeps and held is not None:
        parts += f", {mine.stall_s:.0f} s for the change from {held.per_node}"
    more = next((each for each in _above(candidate, mine)), None)
    if more is not None:
        gain = 100 * (more.rate / mine.rate - 1)
        extra = f"{more.units - mine.units} more would"
        gains = f" gain {gain:.0f} %" if gain >= 0.5 else " gain nothing"
        cost = f" and cost {more.stall_s:.0f} s" if more.stall_s and gain >= 0.5 else ""
        parts += f"; {extra}{gains}{cost}"
    return parts


def _is(found: OptionMenu, option: Option, placement: Placement) -> bool:
    return (
        option.gpus == placement.per_node
        and option.nodes == len(placement.shares)
        and placement.shares[0].node in found.pools[option.pool].nodes
    )


def _above(candidate: Candidate, mine: Option) -> list[Option]:
    """Options with more GPUs in the same pool, the next one first."""
    return sorted(
        (each for each in candidate.options if each.pool == mine.pool and each.units > mine.units),
        key=lambda each: each.units,
    )


def waits(view: View, found: OptionMenu, candidate: Candidate, why: str) -> str:
    """Why a job gets nothing now."""
    job = candidate.job
    known = job.memo.get("waits")
    if known is not None and known[0] is found.pools and known[1] == (why, view.bare):
        text: str = known[2]
        return text
    text = _waits(view, found, candidate) + (f"; {why}" if why else "")
    job.memo["waits"] = (found.pools, (why, view.bare), text)
    return text


def _waits(view: View, found: OptionMenu, candidate: Candidate) -> str:
    job = candidate.job
    if not found.pools:
        return no_nodes(view, job)
    if not candidate.options:
        if job.needs_mib is not None and any(len(node.gpus) >= job.gpus_min for node in view.nodes):
            enough = sum(node.holds(job.needs_mib) for node in view.nodes)
            return unmet(
                view, job, f"{enough} of {count(len(view.nodes), 'node')} have {memory_text(job.needs_mib)} a GPU"
            )
        return unmet(view, job, f"the largest of {count(len(view.nodes), 'node')} has {view.largest_node}")
    total = sum(found.capacity)
    return f"needs {gpus_needed(job)}; other jobs gain more from the {count(total, 'GPU')} now"


def kept_reason(view: View, placement: Placement | None) -> str:
    """The reason of a job that nothing is decided about."""
    if placement is None:
        return "waiting for its last processes to end"
    where = f"{count(placement.per_node, 'GPU')} of {fold_nodes(placement.nodes)}"
    bare = set(placement.nodes) & view.bare
    return f"keeps its {where}, {'whose GPUs are lost, dirty, excluded or drained' if bare else 'whose agent is away'}"
