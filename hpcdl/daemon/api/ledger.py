"""The API's route about the ledger (docs/api.md): a copy, for whoever verifies, exports or backs it up meanwhile."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

from starlette.requests import Request

from hpcdl.core.controller.journal import JournalError
from hpcdl.daemon.loop import ControllerLoop
from hpcdl.ledger import SqliteJournal
from hpcdl.ledger.trim import COPY


class LedgerRoutes:
    """Handlers of requests; each answers one JSON object."""

    def __init__(self, loop: ControllerLoop, home: Path) -> None:
        self._loop = loop
        self._home = home

    async def copy(self, request: Request) -> dict[str, Any]:
        """`POST /v1/ledger/copy`: whoever asks removes the copy; what is left behind, `hpcdl ledger vacuum` removes."""
        target = self._home / f"{COPY}{os.urandom(8).hex()}.sqlite"

        def made(journal: object) -> int:
            if not isinstance(journal, SqliteJournal):
                raise JournalError("this daemon keeps no ledger on disk")
            size, free = journal.path.stat().st_size, shutil.disk_usage(self._home).free
            if free < 2 * size:  # the daemon's own commits need room, too
                free_mib, size_mib = free / (1 << 20), size / (1 << 20)
                raise JournalError(f"{self._home} has {free_mib:.1f} MiB free, a copy takes {size_mib:.1f}: make room")
            return journal.copy(target)

        seq = await asyncio.wrap_future(self._loop.call(lambda controller: made(controller.journal)))
        return {"path": str(target), "events": seq}
