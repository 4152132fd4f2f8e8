"""Ours: MARBLE's placements, with the start-up of what is to be resumed hidden behind the suspend."""

from dataclasses import replace

from hpcdl.core.model import Placement
from hpcdl.core.plan import JobView, Plan, Targets, View
from hpcdl.marble.algorithm import Marble


class MarbleWarm(Marble):
    """As `Marble`; and every job whose target is not free yet is started ahead, to wait at the gate."""

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
