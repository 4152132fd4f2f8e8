"""The spool: submits that were made while no daemon ran, for the next daemon of that HPCDL_HOME to take in.

Each is one private file in `HPCDL_HOME/spool`, named after its request id, with the body of the API's `POST /v1/jobs`
and a version. It is put there whole and durably. The folder and every file are checked when they are read: whoever
could write there could have commands run. Standard library only.
"""

import json
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcdl.wire.private_files import (
    NotPrivate,
    atomic_write,
    check_private,
    make_private_folder,
    open_private,
    open_private_folder,
    unlink_if_there,
)

FOLDER = "spool"
REFUSED = "refused"
VERSION = 1
LIMIT = 8 << 20  # bytes, as for a body of the API
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_LONGEST = 200  # bytes of a name, so that an ending still fits


class SpoolError(Exception):
    """Nothing was spooled; the message is one line with the next step."""


class StillChanging(Exception):
    """The file changed while it was read: it is nobody's finished work yet."""


def put(home: Path, request_id: str, jobs: Sequence[Any], *, strict: bool = False) -> Path:
    """Spool a submit of these specs; the file that holds it. One of that id that is there already stays as it is.

    Makes `home`, too. Raises SpoolError (too large), NotPrivate (a folder that is not ours alone) and OSError.
    """
    body = {"version": VERSION, "request_id": request_id, "jobs": list(jobs)} | ({"strict": True} if strict else {})
    content = json.dumps(body).encode() + b"\n"
    if len(content) > LIMIT:
        raise SpoolError(
            f"a submit of {len(content) / 2**20:.1f} MiB is over {LIMIT >> 20} MiB: submit fewer jobs at once"
        )
    make_private_folder(home)
    folder = home / FOLDER
    make_private_folder(folder)
    plain = _PLAIN.fullmatch(request_id) is not None and not request_id.endswith(".json")
    name = request_id if plain else _digest(request_id.encode("utf-8", "surrogatepass"))
    path = folder / f"{name}.json"
    try:
        check_private(path.lstat(), path, folder=False)
    except FileNotFoundError:
        atomic_write(path, content)
    return path


def _digest(text: bytes) -> str:
    import hashlib  # most names need none

    return hashlib.sha256(text).hexdigest()


def waiting(home: Path) -> int:
    """How many submits are spooled; 0 where the folder is not there, or cannot be trusted or read."""
    try:
        with Spool(home) as spool:
            return len(spool.names())
    except (OSError, NotPrivate):
        return 0


class Spool:
    """The folder, opened and checked; a context manager."""

    def __init__(self, home: Path) -> None:
        """Raises FileNotFoundError where nothing was ever spooled, NotPrivate and OSError."""
        self.path = home / FOLDER
        os.close(open_private_folder(home))
        self._folder = open_private_folder(self.path)

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *args: object) -> None:
        os.close(self._folder)

    def names(self) -> list[str]:
        """What waits, the oldest first; whether it is a submit is only known when it is read. Raises OSError."""
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name == REFUSED or entry.name.startswith("."):
                    continue
                try:
                    found.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.name))
                except FileNotFoundError:
                    continue
        return [name for _, name in sorted(found)]

    def read(self, name: str) -> bytes:
        """The content. Raises NotPrivate where it is no private file of at most LIMIT bytes, StillChanging, OSError."""
        path = self.path / name
        if not name.endswith(".json"):
            raise NotPrivate(f"{path} is no spooled submit: its name does not end in .json")
        descriptor = open_private(path, dir_fd=self._folder)
        try:
            before = os.fstat(descriptor)
            content = b""
            while len(content) <= LIMIT and (piece := os.read(descriptor, LIMIT + 1 - len(content))):
                content += piece
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if len(content) > LIMIT:
            raise NotPrivate(f"{path} is larger than {LIMIT >> 20} MiB")
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or len(content) != after.st_size:
            raise StillChanging(f"{path} changed while it was read")
        return content

    def remove(self, name: str) -> None:
        """It was taken in. Raises OSError."""
        unlink_if_there(name, self._folder)

    def refuse(self, name: str, reason: str) -> Path:
        """Put it aside, into `refused/`, with the reason in a file beside it; where it is now.

        Raises NotPrivate and OSError; then it is still where it was.
        """
        aside = self.path / REFUSED
        make_private_folder(aside)
        short = name if len(os.fsencode(name)) <= _LONGEST else _digest(os.fsencode(name))
        target = aside / short
        number = 1
        while os.path.lexists(target):
            number += 1
            target = aside / f"{short}.{number}"
        atomic_write(target.with_name(f"{target.name}.reason"), f"{reason}\n".encode("utf-8", "backslashreplace"))
        os.rename(name, target, src_dir_fd=self._folder)
        if stat.S_ISREG(target.lstat().st_mode):
            target.chmod(0o600)
        return target
