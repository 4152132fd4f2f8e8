"""What handlers of requests answer from, and the table of routes that they join.

A handler takes the context and a request, and returns one JSON object or raises. `@route` puts it into ROUTES; `app`
checks the token in front of each, and answers errors. A new route is a handler in a module beside this one, and a line
in docs/api.md.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request

from hpcdl.core.controller.controller import Controller
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.world import World
from hpcdl.core.rules.retention import is_retired
from hpcdl.daemon.agents import Hub
from hpcdl.daemon.api.job_list import JobList
from hpcdl.daemon.api.rows import Json, RowBuilder
from hpcdl.daemon.api.wait import Changes
from hpcdl.daemon.api.why import NOBODY
from hpcdl.daemon.batch import BatchThread
from hpcdl.daemon.delivery import Ways
from hpcdl.daemon.idle_gpus import IdleGpus
from hpcdl.daemon.loop import ControllerLoop
from hpcdl.daemon.meter import Meter
from hpcdl.daemon.queue import Queues
from hpcdl.daemon.series import SeriesKeeper

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """What `GET /v1/status` says of the daemon itself."""

    pid: int
    host: str
    started_at: float  # seconds since the epoch
    version: str
    home: str
    policies: tuple[str, ...]
    pilots_max: int = 0
    leave_margin_s: float = 30.0
    settings: Mapping[str, tuple[Any, str]] = field(default_factory=dict)  # value and where it comes from


@dataclass(slots=True, eq=False)
class ApiContext:
    """The parts of one daemon. Everything here belongs to the thread of the event loop."""

    loop: ControllerLoop
    hub: Hub
    changes: Changes
    profiles: Profiles
    about: DaemonStatus
    batching: BatchThread | None = None  # None without a batch system
    meter: Meter = field(default_factory=Meter)  # counts each event in the Controller's thread
    on_stop: Callable[[bool], float] = lambda now: 0.0  # called once a stop is recorded; the seconds that it may take
    idle: IdleGpus = field(default_factory=IdleGpus)
    series: SeriesKeeper | None = None
    ways: Ways | None = None  # how notifications are delivered
    queues: Queues = field(init=False)
    listed: JobList = field(default_factory=JobList)

    def __post_init__(self) -> None:
        self.queues = Queues(self.profiles)

    @property
    def world(self) -> World:
        """The world as committed last."""
        return self.loop.world

    async def send(self, command: cmd.Command) -> Any:
        """The answer to a command, once it is committed. Raises CommandRefused and JournalError."""
        return await asyncio.wrap_future(self.loop.send(command))

    async def call(self, function: Callable[[Controller], T]) -> T:
        """What the function returns, which runs in the Controller's thread."""
        return await asyncio.wrap_future(self.loop.call(function))

    async def rows(self, numbers: Iterable[int] = (), queued: bool = False) -> RowBuilder:
        """What makes rows now. `numbers`: jobs that may have left the world; `queued`: rows say places in the queue."""
        world, now = self.world, self.loop.now()
        gone = [number for number in numbers if is_retired(world, number)]
        past = await asyncio.to_thread(self.loop.retired, gone) if gone else ()
        queue = await asyncio.to_thread(self.queues.look, world, now) if queued else NOBODY
        not_finite = {} if self.series is None else self.series.not_finite.copy()
        retired = {job.id: job for job in past}
        return RowBuilder(
            world, self.profiles, self.loop.reasons, now, retired, queue, self.idle.notes, not_finite=not_finite
        )

    async def rows_of(self, numbers: Collection[int]) -> list[Json]:
        """The finished rows of these jobs, in this order."""
        rows = await self.rows(numbers)
        return [rows.job(rows.known(number)) for number in numbers]


Handler = Callable[[ApiContext, Request], Coroutine[Any, Any, Json]]
View = Callable[[Json], Json]
"""What of an answer a viewer sees."""


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """A path, and who answers it. `seen`: None where the route is the owner's alone."""

    method: str
    path: str
    answer: Handler
    seen: View | None


ROUTES: list[ApiRoute] = []
"""All routes but those of WebSockets; they may stand in any order."""


def route(method: str, path: str, seen: View | None = None) -> Callable[[Handler], Handler]:
    """Adds a handler to ROUTES."""

    def added(handler: Handler) -> Handler:
        ROUTES.append(ApiRoute(method, path, handler, seen))
        return handler

    return added
