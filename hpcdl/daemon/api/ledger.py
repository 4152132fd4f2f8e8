"""The API's routes about the ledger (docs/api.md): its events, and a copy for who verifies, exports or backs it up."""

import os
import shutil
from pathlib import Path

from starlette.requests import Request

from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import JournalError
from hpcdl.daemon.api.context import ApiContext, route
from hpcdl.daemon.api.http import number_of, seconds_of
from hpcdl.daemon.api.rows import Json, event_row, events_of
from hpcdl.ledger import SqliteJournal
from hpcdl.ledger.trim import COPY

MAX_EVENTS = 10_000


@route("GET", "/v1/events")
async def events(api: ApiContext, request: Request) -> Json:
    """Events after a seq, maybe of one job; `wait`: so long the answer waits for the first one."""
    query = request.query_params
    after = number_of(query.get("after", "0"), "after")
    limit = min(MAX_EVENTS, max(1, number_of(query.get("limit", "1000"), "limit")))
    job = number_of(query["job"], "job") if "job" in query else None
    if "wait" in query:
        await api.changes.until(lambda: api.world.seq > after, seconds_of(request, "wait", 0.0))
    last = api.world.seq
    records = await api.call(lambda controller: events_of(controller.journal, controller.world, after, limit, job))
    return {"events": [event_row(record) for record in records], "last": last}


@route("POST", "/v1/ledger/copy")
async def copy(api: ApiContext, request: Request) -> Json:
    """A copy in the home. Whoever asks removes it; what is left behind, `hpcdl ledger vacuum` removes."""
    home = Path(api.about.home)
    target = home / f"{COPY}{os.urandom(8).hex()}.sqlite"

    def made(controller: Controller) -> int:
        journal = controller.journal
        if not isinstance(journal, SqliteJournal):
            raise JournalError("this daemon keeps no ledger on disk")
        size, free = journal.path.stat().st_size, shutil.disk_usage(home).free
        if free < 2 * size:  # the daemon's own commits need room, too
            free_mib, size_mib = free / (1 << 20), size / (1 << 20)
            raise JournalError(f"{home} has {free_mib:.1f} MiB free, a copy takes {size_mib:.1f}: make room")
        return journal.copy(target)

    return {"path": str(target), "events": await api.call(made)}
