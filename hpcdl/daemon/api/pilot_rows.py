"""Pilots and holes as the API answers them, and `hpcdl holes` without a daemon (docs/api.md)."""

from typing import Any

from hpcdl.core.model.pilot import Hole, Pilot

Json = dict[str, Any]


def pilot_row(pilot: Pilot, now: float) -> Json:
    """A pilot. `now`: the daemon's time."""
    job, spec = pilot.job, pilot.spec
    until = None if job is None or pilot.over else job.until
    return {
        "id": pilot.id,
        "state": pilot.state,
        "batch_id": pilot.batch_id,
        "queue": (job.queue if job is not None else "") or spec.queue,
        "nodes": list(pilot.nodes),
        "asked": {
            "nodes": spec.nodes,
            "on": list(spec.on),
            "gpus": spec.gpus,
            "walltime_s": spec.walltime_s,
        },
        "why": spec.why,
        "asked_at": pilot.asked_at,
        "since": pilot.since,
        "started_at": None if job is None else job.started_at,
        "until": until,
        "left_s": None if until is None else max(0.0, until - now),
        "reason": "" if job is None else job.reason,
        "preempted": job is not None and job.preempted,
        "exit_code": None if job is None else job.code,
        "cancelled": pilot.cancelled,
        "how": pilot.how,
    }


def hole_row(hole: Hole) -> Json:
    """A hole."""
    return {
        "queue": hole.queue,
        "count": hole.count,
        "nodes": list(hole.nodes),
        "gpus": hole.gpus,
        "kind": hole.kind,
        "until": hole.until,
        "why": hole.why,
        "walltime_s": hole.walltime_s,
        "nodes_max": hole.nodes_max,
        "preemptable": hole.preemptable,
        "why_not": hole.why_not,
    }
