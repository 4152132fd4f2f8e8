"""`GET /v1/overview`: everything that the web page shows, in one answer of bounded size (docs/api.md)."""

import asyncio
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from starlette.requests import Request

from hpcdl.core.controller.controller import Controller
from hpcdl.core.model import events as ev
from hpcdl.core.model.events import Recorded
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import Job, JobState, World
from hpcdl.daemon.agents import Hub
from hpcdl.daemon.api.estimates import when, when_json
from hpcdl.daemon.api.http import number_of
from hpcdl.daemon.api.notices import notice_row
from hpcdl.daemon.api.rows import JobRows, RowBuilder, event_row
from hpcdl.daemon.loop import ControllerLoop
from hpcdl.daemon.time_left import measured_rate
from hpcdl.wire.messages import HeartbeatMessage

MOST_NODES = 2000
MOST_JOBS = 60
"""Of those that hold GPUs, and of those that wait."""
MOST_FAILED = 12
NEWEST = 2000
"""So many jobs are looked at for those that failed."""
MOST_NOTICES = 20
MOST_EVENTS = 10_000
"""So far back an answer goes, whatever happened in between; it looks at no more of the ledger either."""
LOOK = 1000  # events of one look into the ledger, which holds up the controller
BACK_S = 6 * 3600.0
BANDS_S = 0.05
"""So long may an answer take over when jobs start and are done."""

Json = dict[str, Any]
Beats = Mapping[str, HeartbeatMessage]

_KEYS = (
    *("id", "name", "user", "state", "gpus", "gpus_min", "gpus_max", "nodes", "nodes_max", "role", "step", "total"),
    *("saved_step", "submitted_at", "started_at", "reason", "priority", "held", "eta_s", "queue_position"),
)
_FAILED_KEYS = ("id", "name", "user", "finished_at", "cause", "detail", "exit_code", "failures")
_DRAWN = (ev.IncarnationEvent, ev.NodeLost)
_NOT_DRAWN = (ev.Progressed, ev.Noted, ev.Saved, ev.AtGate)


class OverviewRoutes:
    """Handlers of requests; each answers one JSON object."""

    def __init__(
        self, loop: ControllerLoop, hub: Hub, rows: JobRows, status: Callable[[Request], Awaitable[Json]]
    ) -> None:
        """`status`: answers `GET /v1/status`."""
        self._loop = loop
        self._hub = hub
        self._rows = rows
        self._status = status

    async def overview(self, request: Request) -> Json:
        """`GET /v1/overview`."""
        after = number_of(request.query_params.get("after", "0"), "after")
        status = await self._status(request)
        rows = await self._rows.now(queued=True)
        last = rows.world.seq
        # An `after` that the ledger has not reached is of another ledger: it is told everything anew.
        after = after if after <= last else 0
        records = await self._recorded(after, last, rows.now)
        beats = self._hub.heartbeats()  # in this thread, in which agents come and go
        return await asyncio.to_thread(self._answer, rows, status, after, records, beats)

    async def _recorded(self, after: int, last: int, now: float) -> list[Recorded]:
        """What is drawn of the events after `after`, oldest first; of old ones without `after` no more than BACK_S."""
        found: deque[list[Recorded]] = deque()
        end = last
        while end > max(after, last - MOST_EVENTS):
            begin = max(after, end - LOOK, last - MOST_EVENTS, 0)
            some = await asyncio.wrap_future(self._loop.call(_read(begin, end - begin)))
            found.appendleft([each for each in some if _is_drawn(each.event)])
            end = begin
            if not some or some[0].at < now - BACK_S:
                break
        return [each for some in found for each in some]

    def _answer(self, rows: RowBuilder, status: Json, after: int, records: list[Recorded], beats: Beats) -> Json:
        world, now = rows.world, rows.now
        running = sorted(
            (world.jobs[number] for number in world.live if world.jobs[number].running is not None), key=_size
        )
        waiting = sorted(
            (job for number in world.active if (job := world.jobs[number]).running is None),
            key=lambda job: (job.held, rows.queue.position(job) or sys.maxsize, -job.spec.priority),
        )
        failed = self._failed(world)
        named = {each.event.job for each in records if isinstance(each.event, ev.JobEvent)}
        named |= {job.id for job in running}
        return {
            "at": now,
            "status": _trimmed(status),
            "nodes": _nodes(world, beats),
            "nodes_more": max(0, len(world.nodes) - MOST_NODES),
            "running": self._drawn(rows, running[:MOST_JOBS]),
            "running_more": max(0, len(running) - MOST_JOBS),
            "waiting": self._drawn(rows, waiting[:MOST_JOBS]),
            "waiting_more": max(0, len(waiting) - MOST_JOBS),
            "failed": [_only(rows.job(job, ()), _FAILED_KEYS) for job in failed],
            "notices": [
                notice_row(world, each, now)
                for _, each in zip(range(MOST_NOTICES), world.notices.values(), strict=False)
            ],
            "notices_more": max(0, len(world.notices) - MOST_NOTICES),
            "names": {str(number): world.jobs[number].spec.name for number in sorted(named) if number in world.jobs},
            "events": [event_row(each) for each in records],
            "after": after,
            "last": world.seq,
        }

    @staticmethod
    def _failed(world: World) -> list[Job]:
        """Those that failed last, the newest first, of the newest jobs."""
        newest = zip(range(NEWEST), reversed(world.jobs.values()), strict=False)
        found = [job for _, job in newest if job.outcome is JobState.FAILED]
        return sorted(found, key=lambda job: -(job.finished_at or 0.0))[:MOST_FAILED]

    def _drawn(self, rows: RowBuilder, jobs: Iterable[Job]) -> list[Json]:
        """Rows with the nodes, the rate, and a band of when it starts and is done while there is time for that."""
        found = []
        end = time.monotonic() + BANDS_S
        for job in jobs:
            row = _only(rows.job(job, _KEYS), _KEYS)
            running = job.running
            row["on"] = list(running.placement.nodes) if running is not None and running.placement is not None else []
            row["rate"] = measured_rate(job, rows.now)
            if time.monotonic() < end:
                band = when_json(when(rows.world, job, rows.profiles, rows.now, self._rows.queues.views))
                row |= {key: value for key, value in band.items() if value is not None}
            found.append(row)
        return found


def _nodes(world: World, beats: Beats) -> list[Json]:
    since = {(number, each.number): each.granted_at for number in world.live for each in world.jobs[number].live}
    found = []
    for _, name in zip(range(MOST_NODES), sorted(world.nodes), strict=False):
        node = world.nodes[name]
        lines = {line.index: line for line in beats[name].gpus} if name in beats else {}
        gpus = []
        for gpu in node.gpus:
            holder, line = world.holders.get(GpuRef(name, gpu.index)), lines.get(gpu.index)
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
                ]
            )
        found.append(
            {
                "name": name,
                "connected": node.connected,
                "lost": node.lost,
                "leaving": node.leaving,
                "until": node.until,
                "reason": node.reason,
                "kind": node.gpus[0].name if node.gpus else "",
                "gpus": gpus,
            }
        )
    return found


def _read(after: int, limit: int) -> Callable[[Controller], list[Recorded]]:
    return lambda controller: controller.journal.read(after, limit)


def _is_drawn(event: ev.Event) -> bool:
    return isinstance(event, _DRAWN) and not isinstance(event, _NOT_DRAWN)


def _only(row: Json, keys: Iterable[str]) -> Json:
    """Those that are not null."""
    return {key: row[key] for key in keys if row[key] is not None}


def _trimmed(status: Json) -> Json:
    """Of the status what does not grow with agents and trainers."""
    return {key: value for key, value in status.items() if key not in ("agents", "trainers")}


def _size(job: Job) -> tuple[int, int]:
    """The largest first."""
    running = job.running
    return (0 if running is None or running.placement is None else -len(running.placement.gpus), job.id)
