"""How many more nodes the jobs of a view could train on."""

from collections.abc import Mapping

from hpcdl.core.model import Target
from hpcdl.core.view import JobView, View


def demand(view: View, targets: Mapping[int, Target], gpus: int, window_s: float) -> int:
    """Nodes with `gpus` GPUs each that would be trained on, beyond those that the plan uses, if they came now.

    `window_s`: how long they would stay. Elastic jobs count as far as they get faster, and as far as to go to more
    nodes pays back within the window (BFTrainer's cost terms, its section 3.4); jobs of one node are packed by GPUs.
    """
    nodes, packed = 0, 0
    for job in view.jobs:
        if job.blocked:
            continue
        target = targets.get(job.id)
        placement = None if target is None else target.placement
        if placement is None:
            if job.gpus_min > gpus or not _starts(job, window_s):
                continue
            if job.nodes == 1 and job.nodes_max == 1:
                packed += job.best_gpus(gpus)
            else:
                nodes += _grown(job, job.nodes, min(gpus, job.gpus_max), window_s)
        elif job.nodes_max > len(placement.shares) and placement.per_node <= gpus:
            now = len(placement.shares)
            nodes += _grown(job, now, placement.per_node, window_s) - now
    return nodes + -(-packed // gpus) if gpus else nodes


def waits(view: View) -> bool:
    """Whether any job is only blocked for a while (a pause after a failure), so that nodes are wanted again soon."""
    return any(job.blocked and job.retry_at > view.now for job in view.jobs)


def _starts(job: JobView, window_s: float) -> bool:
    """Whether a job that waits gets anything done in a window, after its start and before its save."""
    profile = job.profile
    return profile is None or window_s > job.rescale_s(job.nodes, job.gpus_min) + profile.save_s


def _grown(job: JobView, now: int, per_node: int, window_s: float) -> int:
    """The number of nodes, `now` or more, on which the job gets most done in the window."""
    profile = job.profile
    if profile is None:
        return job.nodes_max  # nobody knows better; what it shows there is measured
    rate = profile.rate(per_node, now)
    best, most = now, rate * window_s
    for nodes in range(now + 1, job.nodes_max + 1):
        grown = profile.rate(per_node, nodes)
        if grown <= rate:
            continue
        done = grown * max(0.0, window_s - job.rescale_s(nodes, per_node))
        if done > most:
            best, most = nodes, done
    return best
