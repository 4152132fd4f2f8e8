"""Nodes that go at a known time: what runs there is saved, or leaves them, before that."""

from hpcdl.core.model import events as ev
from hpcdl.core.model.units import seconds_text
from hpcdl.core.model.world import Job, World

SAVES_AGAIN = 1.5
"""A save is estimated to take this many times what the job's last one took."""

TRAINED = 0.5
"""What starts on a node trains for this part of its time there at least, however long its grace: else it never would.
"""


def leave_s(world: World, margin_s: float) -> float:
    """The longest notice of the nodes that have an end, or could get one; see `due`."""
    found = _slowest(world, margin_s)
    return margin_s + max((s for name, s in found.items() if not world.nodes[name].lost), default=0.0)


def _slowest(world: World, margin_s: float) -> dict[str, float]:
    """By node, what the slowest save there may take; nodes where nothing runs are left out."""
    found: dict[str, float] = {}
    for number in world.live:
        job = world.jobs[number]
        save_s = _save_s(job)
        for incarnation in job.live:
            for part in incarnation.parts:
                node = world.nodes.get(part.node)
                within_s = save_s
                if node is not None and node.until is not None:
                    begun = max(incarnation.requested_at, part.asked_at)
                    within_s = min(save_s, max(0.0, TRAINED * (node.until - margin_s - begun)))
                found[part.node] = max(within_s, found.get(part.node, 0.0))
    return found


def _save_s(job: Job) -> float:
    """What a save of the job may take: by its last one, and what a drill found, within its grace; the grace where none
    was seen."""
    if job.costs.save_s is None:
        return job.spec.grace_s
    drilled_s = 0.0 if job.drill is None else job.drill.result.grace_needed_s or 0.0
    return min(job.spec.grace_s, max(SAVES_AGAIN * job.costs.save_s, drilled_s))


def nodes_to_leave(world: World, now: float, margin_s: float) -> tuple[list[ev.NodeLeaves], float | None]:
    """The nodes that have to be left now, and when the next one will have to be (None: no end is known)."""
    ending = [(node, node.until) for node in world.nodes.values() if node.until is not None and not node.lost]
    found, next_at = [], None
    slowest = _slowest(world, margin_s) if ending else {}
    for node, until in ending:
        if node.leaving or not node.connected:
            continue
        at = until - margin_s - slowest.get(node.name, 0.0)
        if at <= now:
            left = seconds_text(max(0.0, until - now))
            found.append(ev.NodeLeaves(node.name, until, True, f"its allocation ends in {left}"))
        elif next_at is None or at < next_at:
            next_at = at
    return found, next_at
