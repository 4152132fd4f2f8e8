"""grants.jsonl in the agent's folder: which incarnation had which GPU, and when. For people and tests: no
program reads it.

Lines are written before a supervisor is given its GPUs, and when they were seen free. Not synced: what a crash of the
machine costs is no loss. The file is put aside as grants.jsonl.1 when it is large.
"""

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from hpcdl.agent.processes import boot_id
from hpcdl.agent.reports import Key, boottime
from hpcdl.wire.private import NotPrivate, open_private

log = logging.getLogger("hpcdl.agent")

NAME = "grants.jsonl"
LIMIT, WAITING_LIMIT = 1 << 20, 1 << 16
GRANTED, FREED = "granted", "freed"


class Grants:
    """Appends. While the disk is full, or the file is not ours, lines wait in memory; too many of them are dropped."""

    def __init__(self, run: Path) -> None:
        self._path = run / NAME
        self._waiting = b""

    def granted(self, key: Key, uuids: Sequence[str]) -> None:
        """The incarnation is about to be told that these are its own; again and again for the same is one grant."""
        self._write(GRANTED, key, uuids)

    def freed(self, key: Key, uuids: Sequence[str | None] = (None,)) -> None:
        """Nothing of the incarnation is left, and these were seen without it; None: whatever it had."""
        self._write(FREED, key, uuids)

    def _write(self, what: str, key: Key, uuids: Sequence[str | None]) -> None:
        moment = {"boot": round(boottime(), 3), "boot_id": boot_id()}
        lines = [
            json.dumps({**moment, "uuid": uuid, "job": key[0], "incarnation": key[1], "what": what}) for uuid in uuids
        ]
        self._waiting += "".join(f"{line}\n" for line in lines).encode()
        try:
            self._append()
        except (OSError, NotPrivate) as error:
            log.warning("%s: %s", self._path, error)
            if len(self._waiting) > WAITING_LIMIT:
                self._waiting = b"\n"

    def _append(self) -> None:
        if not self._waiting:
            return
        file = open_private(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            if os.fstat(file).st_size > LIMIT:
                os.replace(self._path, self._path.with_name(f"{NAME}.1"))
                os.close(file)
                file = open_private(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            while self._waiting:
                self._waiting = self._waiting[os.write(file, self._waiting) :]
        finally:
            os.close(file)
