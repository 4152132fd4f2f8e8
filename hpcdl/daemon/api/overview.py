"""`GET /v1/overview`: everything that the web page shows, in one answer of bounded size (docs/api.md).

Rows are those of `rows`, with the keys that the page draws; how long an answer takes is bounded, too: bands of times
are left out when they take too long. `report/live` draws it.
"""

import asyncio
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice

from starlette.requests import Request

from hpcdl.core.controller.controller import Controller
from hpcdl.core.model import events as ev
from hpcdl.core.model.events import Recorded
from hpcdl.core.model.sharing import holders_of
from hpcdl.core.model.units import GpuRef, runs
from hpcdl.core.model.world import Job, JobState, World
from hpcdl.daemon.api.context import ApiContext, route
from hpcdl.daemon.api.estimates import when, when_json
from hpcdl.daemon.api.http import number_of
from hpcdl.daemon.api.notices import notice_row
from hpcdl.daemon.api.rows import Json, RowBuilder, event_row, picked
from hpcdl.daemon.api.series import series_rows
from hpcdl.daemon.api.status import status
from hpcdl.daemon.queue import LastViews
from hpcdl.daemon.series import Points
from hpcdl.daemon.time_left import measured_rate
from hpcdl.wire.messages import HeartbeatMessage

MOST_NODES = 2000
MOST_JOBS = 60
"""Of those that hold GPUs, and of those that wait."""
MOST_MEMBERS = 5
"""Waiting jobs of one array that are listed; the page folds them into one row."""
MOST_FAILED = 12
NEWEST = 2000
"""So many jobs are looked at for those that failed."""
MOST_NOTICES = 20
MOST_EVENTS = 10_000
"""So far back an answer goes, whatever happened in between; it looks at no more of the ledger either."""
MOST_WITH_CURVES, MOST_CURVES, POINTS = 12, 4, 48
"""So many jobs have curves, of each so many, of so many points."""
LOOK = 1000  # events of one look into the ledger, which holds up the controller
BACK_S = 6 * 3600.0
BANDS_S = 0.05
"""So long may an answer take over when jobs start and are done."""

Beats = Mapping[str, HeartbeatMessage]

_KEYS = (
    *("id", "name", "user", "state", "gpus", "gpus_min", "gpus_max", "nodes", "nodes_max", "role", "step", "total"),
    *("saved_step", "submitted_at", "started_at", "reason", "priority", "held", "eta_s", "queue_position", "tags"),
    *("links", "array", "metric", "not_finite_since"),
)
_FAILED_KEYS = ("id", "name", "user", "finished_at", "cause", "detail", "exit_code", "failures", "tags", "links")
_OF_NODE = ("name", "connected", "lost", "leaving", "until", "reason")
_GROWS = ("agents", "trainers")
"""Of the status, what grows with the number of nodes and jobs."""
_DRAWN = (ev.IncarnationEvent, ev.NodeLost)
_NOT_DRAWN = (ev.Progressed, ev.Noted, ev.Saved, ev.AtGate, ev.Throttled)


@route("GET", "/v1/overview")
async def overview(api: ApiContext, request: Request) -> Json:
    """Everything that the page shows, and what is new of the events after `after`."""
    after = number_of(request.query_params.get("after", "0"), "after")
    state = await status(api, request)
    rows = await api.rows(queued=True)
    last = rows.world.seq
    # An `after` that the ledger has not reached is of another ledger: it is answered with everything anew.
    after = after if after <= last else 0
    records = await _recorded(api, after, last, rows.now)
    beats = api.hub.heartbeats()  # in this thread, in which agents come and go
    curves = {} if api.series is None else {number: api.series.recent(number) for number in rows.world.live}
    return await asyncio.to_thread(_answer, rows, api.queues.views, state, after, records, beats, curves)


async def _recorded(api: ApiContext, after: int, last: int, now: float) -> list[Recorded]:
    """What is drawn of the events after `after`, oldest first; of old ones without `after` no more than BACK_S."""
    found: deque[list[Recorded]] = deque()
    end = last
    while end > max(after, last - MOST_EVENTS):
        begin = max(after, end - LOOK, last - MOST_EVENTS, 0)
        some = await api.call(partial(_read, begin, end - begin))
        drawn = (each for each in some if isinstance(each.event, _DRAWN))
        found.appendleft([each for each in drawn if not isinstance(each.event, _NOT_DRAWN)])
        end = begin
        if not some or some[0].at < now - BACK_S:
            break
    return [each for some in found for each in some]


def _read(after: int, limit: int, controller: Controller) -> list[Recorded]:
    return controller.journal.read(after, limit)


def _answer(
    rows: RowBuilder,
    views: LastViews,
    state: Json,
    after: int,
    records: list[Recorded],
    beats: Beats,
    series: Mapping[int, Points],
) -> Json:
    world, now = rows.world, rows.now
    running = sorted((world.jobs[number] for number in world.live if world.jobs[number].running is not None), key=_size)
    waiting = sorted(
        (job for number in world.active if (job := world.jobs[number]).running is None),
        key=lambda job: (job.held, rows.queue.position(job) or sys.maxsize, -job.spec.priority),
    )
    listed = _listed(waiting)
    named = {each.event.job for each in records if isinstance(each.event, ev.JobEvent)}
    named |= {job.id for job in running}
    return {
        "at": now,
        "status": {key: value for key, value in state.items() if key not in _GROWS},
        "nodes": _nodes(world, beats),
        "nodes_more": max(0, len(world.nodes) - MOST_NODES),
        "running": _drawn(rows, views, running[:MOST_JOBS]),
        "running_more": max(0, len(running) - MOST_JOBS),
        "waiting": _drawn(rows, views, listed),
        "waiting_more": len(waiting) - len(listed),
        "curves": _curves(running[:MOST_JOBS], series),
        "arrays": _arrays([*running[:MOST_JOBS], *listed], waiting),
        "failed": [_only(rows.job(job, ()), _FAILED_KEYS) for job in _failed(world)],
        "notices": [notice_row(world, each, now) for each in islice(world.notices.values(), MOST_NOTICES)],
        "notices_more": max(0, len(world.notices) - MOST_NOTICES),
        "names": {str(number): world.jobs[number].spec.name for number in sorted(named) if number in world.jobs},
        "events": [event_row(each) for each in records],
        "after": after,
        "last": world.seq,
    }


def _curves(running: Iterable[Job], series: Mapping[int, Points]) -> Json:
    """Some curves of the first jobs that have any, by id."""
    known = [(job.id, points) for job in running if (points := series.get(job.id))]
    return {str(number): series_rows(points, POINTS)[:MOST_CURVES] for number, points in known[:MOST_WITH_CURVES]}


def _listed(waiting: Iterable[Job]) -> list[Job]:
    """The first ones, of each array a few."""
    found: list[Job] = []
    members: Counter[int] = Counter()
    for job in waiting:
        members[job.spec.array] += 1
        if not job.spec.array or members[job.spec.array] <= MOST_MEMBERS:
            found.append(job)
            if len(found) == MOST_JOBS:
                break
    return found


def _arrays(listed: Iterable[Job], waiting: Iterable[Job]) -> Json:
    """Of each array that is listed: how many of it wait, which, and between which values they differ."""
    members: dict[int, list[Job]] = {job.spec.array: [] for job in listed if job.spec.array}
    for job in waiting:
        if job.spec.array in members:
            members[job.spec.array].append(job)
    return {str(number): _array(jobs) for number, jobs in sorted(members.items())}


def _array(jobs: Sequence[Job]) -> Json:
    if not jobs:
        return {"waiting": 0, "ids": "", "varies": []}
    first, last = min(jobs, key=_by_id), max(jobs, key=_by_id)
    pairs = zip(first.spec.sweep or _index(first), last.spec.sweep or _index(last), strict=False)
    varies = [[name, a, b] for (name, a), (_, b) in pairs if a != b]
    ids = runs(sorted(job.id for job in jobs)) if len(jobs) <= MOST_EVENTS else [(first.id, last.id)]
    return {
        "waiting": len(jobs),
        "ids": ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ids),
        "varies": varies,
    }


def _by_id(job: Job) -> int:
    return job.id


def _index(job: Job) -> tuple[tuple[str, str], ...]:
    return (("index", str(job.spec.array_index)),)


def _failed(world: World) -> list[Job]:
    """Those that failed last, the newest first, of the newest jobs."""
    newest = islice(reversed(world.jobs.values()), NEWEST)
    found = [job for job in newest if job.outcome is JobState.FAILED]
    return sorted(found, key=lambda job: -(job.finished_at or 0.0))[:MOST_FAILED]


def _drawn(rows: RowBuilder, views: LastViews, jobs: Iterable[Job]) -> list[Json]:
    """Rows with the nodes, the rate, and a band of when it starts and is done while there is time for that."""
    found = []
    end = time.monotonic() + BANDS_S
    for job in jobs:
        row = _only(rows.job(job, _KEYS), _KEYS)
        running = job.running
        row["on"] = list(running.placement.nodes) if running is not None and running.placement is not None else []
        row["rate"] = measured_rate(job, rows.now)
        if job.spec.sweep:
            row["sweep"] = dict(job.spec.sweep)
        if time.monotonic() < end:
            band = when_json(when(rows.world, job, rows.profiles, rows.now, views))
            row |= {key: value for key, value in band.items() if value is not None}
        found.append(row)
    return found


def _nodes(world: World, beats: Beats) -> list[Json]:
    since = {(number, each.number): each.granted_at for number in world.live for each in world.jobs[number].live}
    found = []
    for name in sorted(world.nodes)[:MOST_NODES]:
        node = world.nodes[name]
        lines = {line.index: line for line in beats[name].gpus} if name in beats else {}
        gpus = []
        for gpu in node.gpus:
            (holder, behind), line = holders_of(world, GpuRef(name, gpu.index)), lines.get(gpu.index)
            avoided = node.avoids(gpu.index) if node.avoided else None
            gpus.append(
                [
                    gpu.index,
                    "avoided" if avoided is not None and gpu.state == "ok" else gpu.state,
                    holder[0] if holder else 0,
                    holder[1] if holder else 0,
                    None if line is None else line.util,
                    None if line is None else line.memory_mib,
                    gpu.memory_mib,
                    gpu.detail or ("" if avoided is None else avoided.reason),
                    since.get(holder) if holder else None,
                    *(behind[:1] if behind else ()),
                ]
            )
        kind = node.gpus[0].name if node.gpus else ""
        found.append({**picked(node, _OF_NODE), "kind": kind, "gpus": gpus})
    return found


def _only(row: Json, keys: Iterable[str]) -> Json:
    """Those that are not null."""
    return {key: row[key] for key in keys if row[key] is not None}


def _size(job: Job) -> tuple[int, int]:
    """The largest first."""
    running = job.running
    return (0 if running is None or running.placement is None else -len(running.placement.gpus), job.id)
