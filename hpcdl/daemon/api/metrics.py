"""`GET /v1/metrics`: what an administrator's monitoring asks for, as the text format of Prometheus (docs/api.md).

`prometheus_client` knows the format; it is loaded with the first request, since few daemons ever get one. Labels are
states, causes, nodes and GPUs: nothing here names a job, its user or its command, and the number of lines does not grow
with the number of jobs. Above MOST_GPUS GPUs there are no lines for each of them.
"""

import asyncio
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import psutil
from starlette.requests import Request

from hpcdl.core.model.sharing import holder_of
from hpcdl.core.model.transitions import state_of
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import GpuInfo, JobState, Node, World
from hpcdl.daemon.api.context import ApiContext, DaemonStatus, route
from hpcdl.daemon.api.http import ApiProblem, Encoded
from hpcdl.daemon.api.job_list import FINISHED
from hpcdl.daemon.api.rows import Json
from hpcdl.daemon.api.viewers import metrics_seen
from hpcdl.daemon.meter import Durations, Totals
from hpcdl.wire.messages import GpuLine, HeartbeatMessage

if TYPE_CHECKING:
    from prometheus_client import Metric

MOST_GPUS = 16_384
GPU_STATES = ("held", "free", "avoided", "unhealthy", "leaving", "away")
"""Of a GPU, the first that is so: unhealthy, held, away (its agent is not connected), leaving, avoided, else free."""
MIB = 1 << 20


@route("GET", "/v1/metrics", metrics_seen)
async def metrics(api: ApiContext, request: Request) -> Json:
    """All metrics as text; with `?form=json` the families and samples as JSON."""
    form = request.query_params.get("form", "text")
    if form not in ("text", "json"):
        raise ApiProblem(400, "form must be text or json")
    totals = await api.call(lambda controller: api.meter.totals(api.loop.now()))
    # The hub is of this thread: agents come and go in it.
    return await asyncio.to_thread(_answer, api, form, totals, api.hub.heartbeats(), len(api.hub.nodes()))


def _answer(api: ApiContext, form: str, totals: Totals, beats: Mapping[str, HeartbeatMessage], connected: int) -> Json:
    world = api.world
    lines = {name: {line.index: line for line in beat.gpus} for name, beat in beats.items()}
    families = [
        *about_daemon(world, api.about, api.loop.planning),
        *about_jobs(world, totals),
        *about_gpus(world, lines),
        *about_gpu_seconds(totals),
        *about_others(world, connected),
    ]
    return {"metrics": to_json(families)} if form == "json" else Encoded(text_of(families), CONTENT_TYPE)


def about_daemon(world: World, process: DaemonStatus, planning: Durations) -> "Iterator[Metric]":
    """The process and its decisions."""
    labels = {"version": process.version, "policy": _text(world.policy), "objective": _text(world.objective)}
    yield family("hpcdl_daemon_info", "The daemon's version, policy and objective.", [(labels, 1)])
    yield single("hpcdl_daemon_start_time_seconds", "When the daemon started, since the epoch.", process.started_at)
    yield single("hpcdl_daemon_cpu_seconds_total", "CPU time of the daemon's process.", time.process_time())
    yield single(
        "hpcdl_daemon_resident_memory_bytes", "Memory of the daemon's process.", psutil.Process().memory_info().rss
    )
    yield histogram(
        "hpcdl_decision_duration_seconds",
        "How long decisions took: the policy, the check of its plan, and its commit.",
        planning,
    )
    yield single("hpcdl_events_total", "Events in the ledger, those of earlier daemons too.", world.seq)


def about_jobs(world: World, totals: Totals) -> "Iterator[Metric]":
    """Unfinished ones as they are, finished ones as they were counted."""
    states: dict[str, float] = {state: 0 for state in JobState if state not in FINISHED}
    held = 0
    for number in world.active:
        job = world.jobs[number]
        states[state_of(job)] += 1
        held += job.held
    yield by_label("hpcdl_jobs", "Unfinished jobs by state.", "state", states)
    yield single("hpcdl_jobs_held", "Unfinished jobs that their user holds.", held)
    since = "since the daemon started"
    yield single("hpcdl_jobs_submitted_total", f"Jobs submitted {since}.", totals.submitted)
    yield by_label("hpcdl_jobs_finished_total", f"Jobs finished {since}.", "state", totals.finished)
    yield by_label(
        "hpcdl_incarnations_ended_total", f"Attempts of jobs that ended {since}, by cause.", "cause",
        totals.ended,
    )  # fmt: skip
    yield by_label("hpcdl_suspends_total", f"Suspends asked for {since}.", "purpose", totals.suspends)


def about_gpus(world: World, lines: dict[str, dict[int, GpuLine]]) -> "Iterator[Metric]":
    """By state, and each by itself. `lines`: the newest sample of each, by node and index."""
    states: dict[str, float] = dict.fromkeys(GPU_STATES, 0)
    there = [node for node in world.nodes.values() if not node.lost]
    for node in there:
        for gpu in node.gpus:
            states[gpu_state(world, node, gpu)] += 1
    yield by_label("hpcdl_gpus", "GPUs by state, each in one.", "state", states)
    each: dict[str, list[Sample]] = {name: [] for name in _OF_A_GPU}
    left_out = sum(len(node.gpus) for node in there) > MOST_GPUS
    for node in () if left_out else there:
        for gpu in node.gpus:
            labels = {"node": _text(node.name), "gpu": str(gpu.index)}  # one for all its samples: there are many
            line = lines.get(node.name, {}).get(gpu.index)
            if gpu.memory_mib:
                each["hpcdl_gpu_memory_bytes"].append((labels, gpu.memory_mib * MIB))
            if line is not None and line.util is not None:
                each["hpcdl_gpu_utilization_ratio"].append((labels, line.util / 100))
            if line is not None and line.memory_mib is not None:
                each["hpcdl_gpu_memory_used_bytes"].append((labels, line.memory_mib * MIB))
            if line is not None and line.power_w is not None:
                each["hpcdl_gpu_power_watts"].append((labels, line.power_w))
    for name, told in _OF_A_GPU.items():
        yield family(name, told, each[name])


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
    if holder_of(world, GpuRef(node.name, gpu.index)) is not None:
        return "held"
    if not node.connected:
        return "away"
    if node.leaving:
        return "leaving"
    return "free" if node.avoids(gpu.index) is None else "avoided"


def about_gpu_seconds(totals: Totals) -> "Iterator[Metric]":
    """What GPU-seconds went into."""
    told = (
        "GPU-seconds since the daemon started. training: in the training loop; starting: from the grant to the first "
        "step; saving: from the request to suspend until the GPU was free; rescaling: while nodes come or go; idle: "
        "held by no job."
    )
    yield by_label("hpcdl_gpu_seconds_total", told, "share", totals.gpu_s)
    told = "Of the GPU-seconds that trained, those in periodic checkpoints."
    yield single("hpcdl_gpu_checkpoint_seconds_total", told, totals.checkpoint_s)
    told = "Of the GPU-seconds that trained, those after the last checkpoint before a failure: they are trained again."
    yield single("hpcdl_gpu_lost_seconds_total", told, totals.lost_s)


def about_others(world: World, connected: int) -> "Iterator[Metric]":
    """Agents, nodes, pilots and notices."""
    yield single("hpcdl_agents_connected", "Agents that are connected.", connected)
    nodes: dict[str, float] = {"connected": 0, "silent": 0, "lost": 0}
    for node in world.nodes.values():
        nodes["lost" if node.lost else "connected" if node.connected else "silent"] += 1
    yield by_label("hpcdl_nodes", "Nodes that the daemon knows, by state.", "state", nodes)
    yield single("hpcdl_pilots", "Pilots that wait or run.", sum(1 for each in world.pilots.values() if not each.over))
    waiting = sum(1 for notice in world.notices.values() if notice.waiting)
    given_up = sum(1 for notice in world.notices.values() if notice.given_up)
    told = "Notifications that are not delivered."
    yield by_label("hpcdl_notices", told, "state", {"waiting": waiting, "given_up": given_up})


# --- as prometheus_client has it --------------------------------------------------------------------------------------

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample: TypeAlias = tuple[dict[str, str], float]
"""Labels, and the number."""


def family(name: str, told: str, samples: Iterable[Sample]) -> "Metric":
    """Numbers of one name: a counter where it ends in `_total`, else a gauge."""
    from prometheus_client import core

    found = (core.CounterMetricFamily if name.endswith("_total") else core.GaugeMetricFamily)(name, told)
    found.samples = [core.Sample(name, labels, value) for labels, value in samples]
    return found


def single(name: str, told: str, value: float | None) -> "Metric":
    """A family of one number without labels; of none where it is not known."""
    return family(name, told, () if value is None else [({}, value)])


def by_label(name: str, told: str, label: str, values: Mapping[str, float]) -> "Metric":
    """A family with a number for each value of one label."""
    return family(name, told, (({label: _text(each)}, value) for each, value in values.items()))


def _text(value: str) -> str:
    """A label's value, with what UTF-8 cannot hold replaced."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def histogram(name: str, told: str, durations: Durations) -> "Metric":
    """How many took at most so long."""
    from prometheus_client.core import HistogramMetricFamily

    buckets = [(f"{bound:g}", many) for bound, many in durations.buckets()]
    return HistogramMetricFamily(name, told, [*buckets, ("+Inf", durations.number)], durations.total_s)


def text_of(families: "Iterable[Metric]") -> bytes:
    """The text format. Families without a number are left out."""
    from prometheus_client import generate_latest

    return generate_latest(_DaemonSnapshot([each for each in families if each.samples]))


@dataclass(frozen=True, slots=True, eq=False)
class _DaemonSnapshot:
    """A collector of what was collected."""

    families: "Sequence[Metric]"

    def collect(self) -> "Iterable[Metric]":
        return self.families


_NOT_FINITE = {math.inf: "+Inf", -math.inf: "-Inf"}


def to_json(families: "Iterable[Metric]") -> list[dict[str, Any]]:
    """The same as plain JSON values."""
    return [
        {
            "name": (name := f"{each.name}_total" if each.type == "counter" else each.name),
            "kind": each.type,
            "help": each.documentation,
            "samples": [
                {"value": sample.value if math.isfinite(sample.value) else _NOT_FINITE.get(sample.value, "NaN")}
                | ({"labels": sample.labels} if sample.labels else {})
                | ({"suffix": suffix} if (suffix := sample.name.removeprefix(name)) else {})
                for sample in each.samples
            ],
        }
        for each in families
    ]
