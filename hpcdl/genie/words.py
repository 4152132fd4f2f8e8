"""Why a job runs or waits, in GENIE's terms."""

from hpcdl.core.model import Placement
from hpcdl.core.plan import JobView
from hpcdl.core.units import count, fold_nodes, seconds_text
from hpcdl.genie.model import startup_s

NO_FIT = "no numbers of GPUs that it takes are there on its nodes"


def shape(nodes: int, gpus: int) -> str:
    """`2 GPUs on one node`, `2 GPUs on each of 3 nodes`."""
    return f"{count(gpus, 'GPU')} on one node" if nodes == 1 else f"{count(gpus, 'GPU')} on each of {nodes} nodes"


def where(placement: Placement) -> str:
    """`2 GPUs of n1`, `2 GPUs each of n[1-3]`."""
    each = "" if len(placement.shares) == 1 else " each"
    return f"{count(placement.per_node, 'GPU')}{each} of {fold_nodes(placement.nodes)}"


def allowance_words(allowance: float | None) -> str:
    """The waiting allowance (eq. 13) for people."""
    if allowance is None:
        return "behind the jobs with a deadline: its length is not known"
    if allowance < 0:
        return f"would be {seconds_text(-allowance)} late if it started now"
    return f"it can wait {seconds_text(allowance)} and still be on time"


def outcome_words(job: JobView, placement: Placement, now: float, kind: str, due: float | None) -> str:
    """When the job will end on these GPUs, and how that lies to `due`; "" where it is not known."""
    left = job.remaining(now, kind)
    if left is None or job.profile is None:
        return ""
    rate = job.profile.on(kind).rate(placement.per_node, len(placement.shares))
    start = 0.0 if job.step_at is not None and job.placement is not None else startup_s(job, len(placement.gpus))
    ends = now + start + left / rate
    text = f"; done in {seconds_text(ends - now)}"
    if due is None:
        return text
    return f"{text}, {seconds_text(abs(due - ends))} {'before it is due' if ends <= due else 'late'}"
