"""The policies `marble`, Algorithm 1 of the paper (section V.C), and `marble-warm`, ours, which starts jobs ahead.

baseline.py is what the paper compares with; hpcdl/placement/pool.py has the GPUs and most reasons.
"""

from dataclasses import replace

from hpcdl.core.model.incarnation import Placement, Role, Share
from hpcdl.core.model.plan import BY_SETTING, JobView, Plan, Targets, View
from hpcdl.core.model.world import JobState
from hpcdl.placement.connections import closest
from hpcdl.placement.pool import Pool, best_on, impossible, lean_pool_of, most_free, move_reason, role_reason, waiting


class Marble:
    """The policy `marble`, Algorithm 1 line by line:

    ```
     2  run_multiple_jobs()                     every decision ends with it (`_run_multiple_jobs`)
     3  forall job in jobSet
     4    monitor running jobs                  the daemon does: each event and each interval leads to a decision
     5    if job is finished                    then the view has GPUs that nobody holds
     6      if available GPUs >= GPU_optimal and a secondary job is still running      `_promote`: its own GPUs count
     7        suspend a running secondary       its target is more GPUs than it holds: the reconciler suspends it
     8        resume it as primary              and starts it on that target, whose role is primary
    10      run_multiple_jobs()
    14  function run_multiple_jobs()
    15    while available GPUs > 0              `_run_multiple_jobs`: jobs in FIFO order
    16      if available GPUs >= GPU_optimal    `_choose`
    17        run next job as primary
    19      else run next job as secondary      on what is left, at least its minimum
    ```
    Line 6: "promote it by assigning more GPUs freed by completed jobs until the job reaches the optimal number"
    (section V.C) and figure 5 (3 free + 3 own >= 4) say that a secondary's own GPUs count. Where the paper is silent: a
    job that cannot start makes the later ones wait (strict FIFO), except jobs that are not "marked as independent"
    (held, or waiting for others) or larger than all there is; a job with nodes=N takes as many GPUs on each of N nodes;
    of several nodes, it takes those on which it is primary with the fewest GPUs left over, else those with most free.

    No state: what is kept of the last plan is in the view.
    """

    name = "marble"
    sharing = BY_SETTING

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        pool = lean_pool_of(view)
        _promote(pool)
        first = _run_multiple_jobs(pool)
        return pool.lean_plan(lambda job: impossible(pool, job) or waiting(job, first, most_free(pool)))


def _promote(pool: Pool) -> None:
    """Lines 5 to 9: running secondaries, in FIFO order, for which enough GPUs are free."""
    for job in pool.view.steady:
        held = job.placement
        if held is None or held.role is not Role.SECONDARY:
            continue
        best = _best_here(pool, job, held)
        share = held.shares[0]
        if len(share.gpus) < best and len(share.gpus) + len(pool.free.get(share.node, ())) < best:
            continue  # of most jobs, at most decisions
        if any(share.node not in pool.nodes for share in held.shares):
            continue
        if held.per_node >= best:  # these nodes have nothing faster for it
            role = Placement(held.shares, Role.PRIMARY, held.layout)
            pool.give(job, role, role_reason(job, role, pool, best))
        elif job.state is JobState.RUNNING and job.can_suspend:
            target = _larger(pool, held, best)
            if target is not None:
                pool.give(job, target, move_reason(job, target))


def _best_here(pool: Pool, job: JobView, held: Placement) -> int:
    """`best_on` the nodes that it is on, as far as they are there."""
    known: tuple[object, int] | None = job.memo.get("best here")
    if known is not None and known[0] is pool.view.gpus:
        return known[1]
    there = [name for name in held.nodes if name in pool.nodes]
    best = best_on(pool, job, there) if there else 0
    job.memo["best here"] = (pool.view.gpus, best)
    return best


def _larger(pool: Pool, held: Placement, best: int) -> Placement | None:
    """The placement's own GPUs and the lowest free ones of its nodes, `best` on each; None where they are too few."""
    shares = []
    for share in held.shares:
        usable = [gpu for gpu in share.gpus if gpu in pool.nodes[share.node].gpus]
        free, distances = pool.free[share.node], pool.distances(share.node)
        if len(usable) + len(free) < best:
            return None
        kept = closest(usable, min(best, len(usable)), distances)
        shares.append(Share(share.node, closest(free, best - len(kept), distances, kept)))
    return Placement(tuple(shares), Role.PRIMARY)


def _run_multiple_jobs(pool: Pool) -> JobView | None:
    """Lines 14 to 22. Returns the job that is the first to wait, and makes those after it wait, or None."""
    for job in pool.queue():
        if impossible(pool, job):
            continue
        chosen = _choose(pool, job)
        if chosen is None:
            pool.refuse(job, waiting(job, None, most_free(pool)))
            return job
        pool.give(job, chosen, role_reason(job, chosen, pool, best_on(pool, job, chosen.nodes)))
    return None


def _choose(pool: Pool, job: JobView) -> Placement | None:
    """Lines 16 to 20 for one job: as primary, else as secondary, else None."""
    sizes = sorted((len(node.gpus) for node in pool.nodes.values()), reverse=True)
    best = job.best_gpus(sizes[job.nodes - 1])
    by_left_over = sorted((len(free), name) for name, free in pool.free.items() if len(free) >= best)
    if len(by_left_over) >= job.nodes:
        return pool.lowest([name for _, name in by_left_over[: job.nodes]], best, Role.PRIMARY)
    by_free = sorted((-len(free), name) for name, free in pool.free.items())
    names = [name for _, name in by_free[: job.nodes]]
    best = best_on(pool, job, names)
    allowed = job.allowed(min(best, *(len(pool.free[name]) for name in names)))
    if not allowed:
        return None
    left = allowed[-1]
    return pool.lowest(names, left, Role.PRIMARY if left == best else Role.SECONDARY)


class MarbleWarm(Marble):
    """MARBLE's placements, with the start-up of what is to be resumed hidden behind the suspend.

    Every job whose target is not free yet is started ahead, to wait at the gate.
    """

    name = "marble-warm"

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        plan = super().decide(view)
        said = plan.targets.new() if isinstance(plan.targets, Targets) else plan.targets  # the others keep theirs
        return replace(
            plan, warm=tuple(each.job for each in said if _waits(view, view.by_id[each.job], each.placement))
        )


def _waits(view: View, job: JobView, target: Placement | None) -> bool:
    """Whether the job is to get other GPUs than it has, and some are still held: by others, or by itself."""
    if target is None or (job.placement is not None and job.placement.same_gpus(target)):
        return False
    wanted = set(target.gpus)
    holders = [other.placement for name in target.nodes for other in view.by_node.get(name, ())]
    return any(not wanted.isdisjoint(held.gpus) for held in holders if held is not None)
