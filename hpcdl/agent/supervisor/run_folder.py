"""The run folder as its supervisor has it: the lock, and record.jsonl, the durable facts of one attempt.

A record that cannot be written (disk full, I/O error) stays in memory, is delivered to the agent all the same, and is
written as soon as that works: the job does not end because a disk is full. A folder that has records is never started
again. The agent's side is agent/run_folder.py.
"""

from __future__ import annotations

import fcntl
import json
import os
import time

from hpcdl.wire.private_files import write_all

# record.jsonl: the durable facts of one incarnation.
#
# A record that cannot be written (disk full, I/O error) stays in memory, is delivered to the agent all the same, and
# is
# written as soon as that works: the job does not end because a disk is full.

RECORD_FILE = "record.jsonl"

TEMPORARY = ".record.jsonl.tmp"

_CREATE = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class AlreadyStarted(Exception):
    """This run folder has a record: its incarnation was started before, and must not be again."""


class Records:
    """All records of this supervisor; `packets[n - 1]` is record n as it goes over the side channel."""

    def __init__(self, folder: int) -> None:
        """`folder`: a descriptor of the run folder. Raises AlreadyStarted."""
        self.folder = folder
        self._began = time.monotonic()
        self._file = -1
        self._whole = True  # what the file holds is what was written to it
        self.packets: list[bytes] = []
        self.written = 0
        self.error: OSError | None = None
        try:
            self._file = os.open(RECORD_FILE, _CREATE | os.O_EXCL, 0o600, dir_fd=folder)
            os.fsync(folder)
        except FileExistsError:
            raise AlreadyStarted(f"{RECORD_FILE} is there already") from None
        except OSError as error:
            self.error = error

    @property
    def durable(self) -> bool:
        return self.written == len(self.packets)

    @property
    def changed_at(self) -> float | None:
        """When a record was written last, by the clock of the file system; None: it was not."""
        try:
            return os.fstat(self._file).st_mtime if self._file >= 0 else None
        except OSError:
            return None

    def append(self, kind: str, **body: object) -> None:
        """Add a record, and write it with fsync if that can be done; never raises OSError."""
        head = {"v": 1, "n": len(self.packets) + 1, "type": kind, "t": round(time.monotonic() - self._began, 6)}
        boot = round(time.clock_gettime(time.CLOCK_BOOTTIME), 6)
        self.packets.append(json.dumps({**head, "boot": boot, **body}, separators=(",", ":")).encode())
        self.flush()

    def flush(self) -> bool:
        """Try to write what is not written yet; True if all is durable now."""
        if self.durable:
            return True
        try:
            if self._file >= 0 and self._whole:
                self._append()
            else:
                self._rewrite()
        except OSError as error:
            # Half a line may have been written, or pages lost after a failed fsync: only a new file is sure.
            self._whole = False
            self.error = error
            return False
        self.written = len(self.packets)
        self.error = None
        return True

    def _append(self) -> None:
        write_all(self._file, b"".join(packet + b"\n" for packet in self.packets[self.written :]))
        os.fsync(self._file)

    def _rewrite(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(TEMPORARY, flags, 0o600, dir_fd=self.folder)
        try:
            write_all(file, b"".join(packet + b"\n" for packet in self.packets))
            os.fsync(file)
            os.replace(TEMPORARY, RECORD_FILE, src_dir_fd=self.folder, dst_dir_fd=self.folder)
            os.fsync(self.folder)
        except BaseException:
            os.close(file)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file = file
        self._whole = True

    def abandoned(self) -> bool:
        """True once the run folder was removed: nobody will read what is written there."""
        try:
            return os.fstat(self.folder).st_nlink == 0
        except OSError:
            return False


LOCK = "lock"


class RunFolderTaken(Exception):
    """Another supervisor, or an agent, has the lock of the folder."""


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


def hold_lock(folder: int, inherited: int | None) -> int:
    """The locked descriptor, which from now on no child inherits. Raises RunFolderTaken and OSError."""
    if inherited is None:
        lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    else:
        lock = inherited
        os.set_inheritable(lock, False)
    if not os.path.samestat(os.fstat(lock), os.stat(LOCK, dir_fd=folder, follow_symlinks=False)):
        raise RunFolderTaken(f"descriptor {lock} is not the {LOCK} of this run folder")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunFolderTaken("another supervisor, or an agent, holds the lock") from None
    return lock
