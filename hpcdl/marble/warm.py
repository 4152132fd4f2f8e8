"""Ours: MARBLE's placements, with the start-up of what is to be resumed hidden behind the suspend."""

from hpcdl.core.model import Placement
from hpcdl.core.plan import JobView, Plan, View
from hpcdl.core.units import GpuRef
from hpcdl.marble.algorithm import Marble


class MarbleWarm(Marble):
    """As `Marble`; and every job whose target is not free yet is started ahead, to wait at the gate."""

    name = "marble-warm"

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        pool = self._pool(view)
        holders = {gpu: job.id for job in view.jobs if job.placement is not None for gpu in job.placement.gpus}
        plan = pool.plan()
        targets = plan.by_job()
        return pool.plan(tuple(job.id for job in view.jobs if _waits(job, targets[job.id].placement, holders)))


def _waits(job: JobView, target: Placement | None, holders: dict[GpuRef, int]) -> bool:
    """Whether the job is to get other GPUs than it has, and some are still held: by others, or by itself."""
    if target is None or (job.placement is not None and job.placement.same_gpus(target)):
        return False
    return any(gpu in holders for gpu in target.gpus)
