"""grants.jsonl in the agent's folder: which incarnation had which GPU, and when. For people and tests: no
program reads it.

Lines are written before a supervisor is given its GPUs, and when they were seen free. Not synced: what a crash of the
machine costs is no loss. The file is put aside as grants.jsonl.1 when it is large.
"""

import json
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from hpcdl.agent.reports import Key, boottime
from hpcdl.wire.private import NotPrivate, open_private

log = logging.getLogger("hpcdl.agent")

NAME = "grants.jsonl"
LIMIT = 1 << 20
GRANTED, FREED = "granted", "freed"


class Grants:
    """Appends. A disk that is full, or a file that is not ours, costs lines and nothing else."""

    def __init__(self, run: Path) -> None:
        self._path = run / NAME

    def granted(self, key: Key, uuids: Sequence[str]) -> None:
        """The incarnation is about to be told that these are its own; again and again for the same is one grant."""
        self._write(GRANTED, key, uuids)

    def freed(self, key: Key, uuids: Sequence[str]) -> None:
        """Nothing of the incarnation is left, and these were seen without it."""
        self._write(FREED, key, uuids)

    def _write(self, what: str, key: Key, uuids: Sequence[str]) -> None:
        moment = {"boot": round(boottime(), 3), "time": round(time.time(), 3)}
        lines = [
            json.dumps({**moment, "uuid": uuid, "job": key[0], "incarnation": key[1], "what": what}) for uuid in uuids
        ]
        try:
            self._append("".join(f"{line}\n" for line in lines).encode())
        except (OSError, NotPrivate) as error:
            log.warning("%s: %s", self._path, error)

    def _append(self, content: bytes) -> None:
        if not content:
            return
        file = open_private(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            if os.fstat(file).st_size > LIMIT:
                os.replace(self._path, self._path.with_name(f"{NAME}.1"))
                os.close(file)
                file = open_private(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(file, content)
        finally:
            os.close(file)
