"""Claiming a checkpoint folder for a membership: from then on an older one renames nothing into place."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcdl.trainer.folder import CLAIM, check_claim, sync_folder

LOCK_WAIT_S = 2.0
LOCK_POLL_S = 0.02


def claim(directory: Path, job: int, incarnation: int, membership: int, tag: str, identity: str = "") -> None:
    """Write the claim of this membership, durably. Raises StaleIncarnation if the folder is claimed by a newer one,
    a newer incarnation or another job, and OSError. `tag`: instance:job:incarnation:node.
    `identity`: of the job."""
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory):
        check_claim(directory, incarnation, tag, membership, identity)
        # A name that nobody else, where others may write in the folder, can have put a FIFO or a file of theirs at.
        temporary = directory / f".tmp-{CLAIM}-{os.uname().nodename}-{os.getpid()}-{os.urandom(6).hex()}"
        body = {"v": 1, "job": job, "incarnation": incarnation, "membership": membership, "tag": tag}
        if identity:
            body["identity"] = identity
        try:
            with open(temporary, "xb", opener=_private) as file:
                file.write(json.dumps(body).encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, directory / CLAIM)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(directory)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    # The supervisors that start the incarnation's other parts claim, too, under the same lock. Where the file system
    # has no such locks, or the holder hangs, we go on without: a writer reads the claim again before each rename.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + LOCK_WAIT_S
        while time.monotonic() < until:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(LOCK_POLL_S)
            except OSError:
                break
        yield
    finally:
        os.close(descriptor)
