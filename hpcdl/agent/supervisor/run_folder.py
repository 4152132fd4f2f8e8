"""The run folder as its supervisor takes it over: whose it is, the lock, what is to be started."""

from __future__ import annotations

import fcntl
import os
import stat

from hpcdl.agent.records import Records
from hpcdl.agent.startfile import LIMIT, NAME, BadStart

LOCK = "lock"
NOT_STARTED = 126


class NotOurs(Exception):
    """The folder is open to others, or another supervisor has it."""


def arguments(argv: list[str]) -> tuple[str, int | None]:
    """The absolute path of the run folder, and the number of the locked descriptor if one is inherited.

    Raises ValueError.
    """
    match argv:
        case [path]:
            return os.path.abspath(path), None
        case [path, "--lock-fd", number] if number.isdigit():
            return os.path.abspath(path), int(number)
    raise ValueError(f"cannot understand the arguments {argv}")


def open_folder(path: str) -> int:
    """A descriptor of the folder, which only we can enter. Raises NotOurs and OSError."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    info = os.fstat(folder)
    if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o077:
        os.close(folder)
        raise NotOurs("the run folder must be ours, with mode 0700")
    return folder


def hold_lock(folder: int, inherited: int | None) -> int:
    """The locked descriptor, which from now on no child inherits. Raises NotOurs and OSError."""
    if inherited is None:
        lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    else:
        lock = inherited
        os.set_inheritable(lock, False)
    here, there = os.fstat(lock), os.stat(LOCK, dir_fd=folder, follow_symlinks=False)
    if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
        raise NotOurs(f"descriptor {lock} is not the {LOCK} of this run folder")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise NotOurs("another supervisor, or an agent, holds the lock") from None
    return lock


def read_start(folder: int) -> bytes:
    """The content of start.json. Raises BadStart and OSError."""
    file = os.open(NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        info = os.fstat(file)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_size > LIMIT:
            raise BadStart(f"{NAME} must be a regular file of ours with at most {LIMIT} bytes")
        content = b""
        while len(content) <= LIMIT and (piece := os.read(file, LIMIT + 1 - len(content))):
            content += piece
        return content
    finally:
        os.close(file)


def record_unstarted(records: Records, why: str) -> None:
    """The record of an incarnation that was never started, because the run folder does not allow it."""
    records.append(
        "exit",
        code=NOT_STARTED,
        signal=None,
        attached=False,
        ended_by=None,
        oom=False,
        stale=False,
        save_failed=False,
        done=False,
        detail=f"the supervisor could not start it: {why}"[:300],
        step=None,
    )
