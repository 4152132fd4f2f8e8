"""The API of a daemon that does not run: its GET routes in this process, over a copy of its ledger.

The views are the daemon's own (`api/`): an answer is the daemon's at its last event, but for what only a live daemon
knows (telemetry, the words of the last plan). Nothing is decided, recorded or sent to anybody. `ledger/offline` makes
the copy, `cli/offline` decides when it is read.
"""

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from hpcdl import __version__
from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import JournalError
from hpcdl.core.model.commands import Command
from hpcdl.core.model.series import Point
from hpcdl.daemon.agents import Hub, HubSettings
from hpcdl.daemon.api.app import Api
from hpcdl.daemon.api.context import ApiContext, DaemonStatus
from hpcdl.daemon.api.profiles import ProfileNames, read_known
from hpcdl.daemon.api.wait import Changes
from hpcdl.daemon.api.why import NO_JOB
from hpcdl.daemon.clock import WallClock
from hpcdl.daemon.learner import Learner
from hpcdl.daemon.loop import ControllerLoop
from hpcdl.daemon.series import Means, SeriesKeeper
from hpcdl.ledger import SqliteJournal
from hpcdl.ledger.offline import LedgerCopy
from hpcdl.policies import all_policies

T = TypeVar("T")

_REASONS = {NO_JOB: "no daemon runs: it goes on when one starts"}


class _StillLoop(ControllerLoop):
    """A loop without a thread: the world stays as the ledger has it, at the time of its last event."""

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller, WallClock(0.0), 0.0, lambda world: None, lambda requests: None, lambda why: None)

    def now(self) -> float:
        """When the last event was recorded."""
        return self.world.at

    @property
    def reasons(self) -> Mapping[int, str]:
        """What the last plan said is not kept."""
        return _REASONS

    def call(self, function: Callable[[Controller], T]) -> "Future[T]":
        """Runs a function here and now."""
        answer: Future[T] = Future()
        answer.set_result(function(self._controller))
        return answer

    def send(self, command: Command) -> "Future[Any]":
        """Nobody takes a command."""
        raise JournalError("no daemon runs")


class OfflineApi:
    """Answers GET requests from the copy of a ledger, until `close`."""

    def __init__(self, home: Path, copy: LedgerCopy) -> None:
        """`home`: whose ledger it is. Raises JournalError where the copy cannot be read, or has lost something."""
        # Handlers log faults of ours; here the answer's line is enough, and stderr is the user's.
        logging.getLogger("hpcdl.daemon").addHandler(logging.NullHandler())
        self._home = home
        self._journal = SqliteJournal(copy.path)
        try:
            copy.check(self._journal)
            controller = Controller(
                self._journal,
                all_policies(),
                Learner(lambda: controller.world).profiles(ProfileNames([read_known(home)])),
            )
            self._loop = _StillLoop(controller)
            self._runner = asyncio.Runner()
        except BaseException:
            self._journal.close()
            raise
        self._token = secrets.token_hex()
        self._application = self._runner.run(self._made(controller))

    async def _made(self, controller: Controller) -> Any:
        changes = Changes(asyncio.get_running_loop())
        changes.close()  # nothing will change: who waits for it is answered at once
        hub = Hub(self._loop, HubSettings("", self._home, 0.0, 0.0), lambda node, beat: None)
        policies = controller.policies.names()
        about = DaemonStatus(0, socket.gethostname(), self.as_of, __version__, str(self._home), policies)
        diverged = self._journal.divergences()
        series = SeriesKeeper(
            lambda: self._loop.world,
            self._loop.now,
            lambda changes: None,
            self._read_series,
            diverged,
            self._series_means,
        )
        context = ApiContext(self._loop, hub, changes, controller.profiles, about, series=series)
        return Api(context, self._token).application()

    async def _read_series(self, job: int) -> Mapping[str, Sequence[Point]]:
        return self._journal.series(job)

    async def _series_means(self, names: Sequence[str]) -> Means:
        return self._journal.means(names)

    @property
    def as_of(self) -> float:
        """When the last event was recorded, in seconds since the epoch."""
        return self._loop.now()

    def get(self, path: str) -> tuple[int, bytes]:
        """The status and the content of the answer to `GET path`, where the path may have a query."""
        return self._runner.run(self._get(path))

    async def _get(self, path: str) -> tuple[int, bytes]:
        url = urlsplit(path)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "https",
            "path": url.path,
            "raw_path": url.path.encode(),
            "root_path": "",
            "query_string": url.query.encode(),
            "headers": [(b"authorization", b"Bearer " + self._token.encode())],
            "client": None,
            "server": None,
        }
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._application(scope, receive, send)
        content = b"".join(message.get("body", b"") for message in sent[1:])
        if sent[0]["status"] >= 400:  # an error names the file, and the user's is not the copy
            content = content.replace(str(self._journal.path.parent).encode(), str(self._home).encode())
        return sent[0]["status"], content

    def close(self) -> None:
        """Closes the copy."""
        self._runner.close()
        self._journal.close()
