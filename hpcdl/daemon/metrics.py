"""`GET /v1/metrics`: what an administrator's monitoring asks for, as the text format of Prometheus (docs/api.md).

Labels are states, causes, nodes and GPUs: nothing here names a job, its user or its command, and the number of lines
does not grow with the number of jobs. Above MOST_GPUS GPUs there are no lines for each of them.
"""

import asyncio
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from hpcdl.core.model import GpuInfo, JobState, Node, World
from hpcdl.core.transitions import state_of
from hpcdl.core.units import GpuRef
from hpcdl.daemon.answering import Encoded, Problem
from hpcdl.daemon.durations import Durations
from hpcdl.daemon.hub import Hub
from hpcdl.daemon.listed import FINISHED
from hpcdl.daemon.loop import Loop
from hpcdl.daemon.meter import Meter, Totals
from hpcdl.wire.exposition import (
    CONTENT_TYPE,
    Family,
    Labels,
    Sample,
    by_label,
    counter,
    gauge,
    histogram,
    text_of,
    to_json,
)
from hpcdl.wire.messages import GpuLine, HeartbeatMessage

MOST_GPUS = 16_384
GPU_STATES = ("held", "free", "avoided", "unhealthy", "leaving", "away")
"""Of a GPU, the first that is so: unhealthy, held, away (its agent is not connected), leaving, avoided, else free."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Process:
    """What the metrics say of the daemon itself. `started_at`: seconds since the epoch."""

    started_at: float
    version: str


class MetricsRoutes:
    """Handlers of requests; each answers one JSON object, or text."""

    def __init__(self, loop: Loop, hub: Hub, meter: Meter, process: Process) -> None:
        """`meter`: is told of each event in the loop's thread."""
        self._loop = loop
        self._hub = hub
        self._meter = meter
        self._process = process

    async def metrics(self, request: Request) -> dict[str, Any]:
        """`GET /v1/metrics`; with `?form=json` the families and samples as JSON."""
        form = request.query_params.get("form", "text")
        if form not in ("text", "json"):
            raise Problem(400, "form must be text or json")
        totals = await asyncio.wrap_future(self._loop.call(lambda controller: self._meter.totals(self._loop.now())))
        # The hub is of this thread: agents come and go in it.
        found = await asyncio.to_thread(self._families, totals, self._hub.heartbeats(), len(self._hub.nodes()))
        if form == "json":
            return {"metrics": to_json(found)}
        return Encoded(text_of(found).encode(), CONTENT_TYPE)

    def _families(self, totals: Totals, beats: Mapping[str, HeartbeatMessage], connected: int) -> list[Family]:
        world = self._loop.world
        lines = {name: {line.index: line for line in beat.gpus} for name, beat in beats.items()}
        return [
            *about_daemon(world, self._process, self._loop.planning),
            *about_jobs(world, totals),
            *about_gpus(world, lines),
            *about_gpu_seconds(totals),
            *about_others(world, connected),
        ]


def about_daemon(world: World, process: Process, planning: Durations) -> Iterator[Family]:
    """The process and its decisions."""
    labels = (("version", process.version), ("policy", world.policy), ("objective", world.objective))
    yield Family("hpcdl_daemon_info", "gauge", "The daemon's version, policy and objective.", (Sample(1, labels),))
    yield gauge("hpcdl_daemon_start_time_seconds", "When the daemon started, since the epoch.", process.started_at)
    yield counter("hpcdl_daemon_cpu_seconds_total", "CPU time of the daemon's process.", time.process_time())
    yield gauge("hpcdl_daemon_resident_memory_bytes", "Memory of the daemon's process.", resident_bytes())
    yield histogram(
        "hpcdl_decision_duration_seconds",
        "How long decisions took: the policy, the check of its plan, and its commit.",
        planning.buckets(),
        planning.total_s,
        planning.number,
    )
    yield counter("hpcdl_events_total", "Events in the ledger, those of earlier daemons too.", world.seq)


def about_jobs(world: World, totals: Totals) -> Iterator[Family]:
    """Unfinished ones as they are, finished ones as they were counted."""
    states: dict[str, float] = {state: 0 for state in JobState if state not in FINISHED}
    held = 0
    for number in world.active:
        job = world.jobs[number]
        states[state_of(job)] += 1
        held += job.held
    yield by_label("hpcdl_jobs", "gauge", "Unfinished jobs by state.", "state", states)
    yield gauge("hpcdl_jobs_held", "Unfinished jobs that their user holds.", held)
    since = "since the daemon started"
    yield counter("hpcdl_jobs_submitted_total", f"Jobs submitted {since}.", totals.submitted)
    yield by_label("hpcdl_jobs_finished_total", "counter", f"Jobs finished {since}.", "state", totals.finished)
    yield by_label(
        "hpcdl_incarnations_ended_total", "counter", f"Incarnations of jobs ended {since}, by cause.", "cause",
        totals.ended,
    )  # fmt: skip
    yield by_label("hpcdl_suspends_total", "counter", f"Suspends asked for {since}.", "purpose", totals.suspends)


def about_gpus(world: World, lines: dict[str, dict[int, GpuLine]]) -> Iterator[Family]:
    """By state, and each by itself. `lines`: the newest sample of each, by node and index."""
    states: dict[str, float] = dict.fromkeys(GPU_STATES, 0)
    there = [node for node in world.nodes.values() if not node.lost]
    for node in there:
        for gpu in node.gpus:
            states[gpu_state(world, node, gpu)] += 1
    yield by_label("hpcdl_gpus", "gauge", "GPUs by state, each in one.", "state", states)
    each: dict[str, list[Sample]] = {name: [] for name in _OF_A_GPU}
    left_out = sum(len(node.gpus) for node in there) > MOST_GPUS
    for node in () if left_out else there:
        for gpu in node.gpus:
            labels: Labels = (("node", node.name), ("gpu", str(gpu.index)))
            line = lines.get(node.name, {}).get(gpu.index)
            if gpu.memory_mib:
                each["hpcdl_gpu_memory_bytes"].append(Sample(gpu.memory_mib * MIB, labels))
            if line is not None and line.util is not None:
                each["hpcdl_gpu_utilization_ratio"].append(Sample(line.util / 100, labels))
            if line is not None and line.memory_mib is not None:
                each["hpcdl_gpu_memory_used_bytes"].append(Sample(line.memory_mib * MIB, labels))
            if line is not None and line.power_w is not None:
                each["hpcdl_gpu_power_watts"].append(Sample(line.power_w, labels))
    for name, told in _OF_A_GPU.items():
        yield Family(name, "gauge", told, tuple(each[name]))


_OF_A_GPU = {
    "hpcdl_gpu_utilization_ratio": "Share of the last sample in which the GPU computed, from 0 to 1.",
    "hpcdl_gpu_memory_used_bytes": "Memory of the GPU that is in use.",
    "hpcdl_gpu_memory_bytes": "Memory of the GPU.",
    "hpcdl_gpu_power_watts": "Power that the GPU draws.",
}


def gpu_state(world: World, node: Node, gpu: GpuInfo) -> str:
    """One of GPU_STATES."""
    if gpu.state != "ok":
        return "unhealthy"
    if GpuRef(node.name, gpu.index) in world.holders:
        return "held"
    if not node.connected:
        return "away"
    if node.leaving:
        return "leaving"
    return "free" if node.avoids(gpu.index) is None else "avoided"


def about_gpu_seconds(totals: Totals) -> Iterator[Family]:
    """What GPU-seconds went into."""
    told = (
        "GPU-seconds since the daemon started. training: in the training loop; starting: from the grant to the first "
        "step; saving: from the request to suspend until the GPU was free; rescaling: while nodes come or go; idle: "
        "held by no job."
    )
    yield by_label("hpcdl_gpu_seconds_total", "counter", told, "share", totals.gpu_s)
    told = "Of the GPU-seconds that trained, those in periodic checkpoints."
    yield counter("hpcdl_gpu_checkpoint_seconds_total", told, totals.checkpoint_s)
    told = "Of the GPU-seconds that trained, those after the last checkpoint before a failure: they are trained again."
    yield counter("hpcdl_gpu_lost_seconds_total", told, totals.lost_s)


def about_others(world: World, connected: int) -> Iterator[Family]:
    """Agents, nodes, pilots and notices."""
    yield gauge("hpcdl_agents_connected", "Agents that are connected.", connected)
    nodes: dict[str, float] = {"connected": 0, "silent": 0, "lost": 0}
    for node in world.nodes.values():
        nodes["lost" if node.lost else "connected" if node.connected else "silent"] += 1
    yield by_label("hpcdl_nodes", "gauge", "Nodes that the daemon knows, by state.", "state", nodes)
    yield gauge("hpcdl_pilots", "Pilots that wait or run.", sum(1 for each in world.pilots.values() if not each.over))
    waiting = sum(1 for notice in world.notices.values() if notice.waiting)
    given_up = sum(1 for notice in world.notices.values() if notice.given_up)
    told = "Notices that are not delivered."
    yield by_label("hpcdl_notices", "gauge", told, "state", {"waiting": waiting, "given_up": given_up})


def resident_bytes() -> float | None:
    """Of this process; None where /proc does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None
