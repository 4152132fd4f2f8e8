"""Holding emulated GPUs: a record lock on each one's file, for as long as this process lives.

Standard library only. It stands for the memory that CUDA would allocate: the agent sees the GPU held, and by whom,
until the process is gone (or releases it), whatever ended it.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
from collections.abc import Sequence
from types import TracebackType

OFD_GETLK: int = getattr(fcntl, "F_OFD_GETLK", 36)  # Python 3.8 has no name for it
PART = 2048  # bytes; a foreground and a background hold one part each of a GPU that they share, and note there
PARTS = {"foreground": (0, PART), "background": (PART, 0)}  # start and length of what is locked, by HPCDL_SHARE
FLOCK = "@hhqqi0q"  # struct flock of 64-bit Linux: type, whence, start, length, pid

# Files that this process holds, with its pid: a process is never refused its own record lock, and a forked child has
# none of its parent's.
_held: dict[str, int] = {}


class GpuBusy(Exception):
    """An emulated GPU is held by process `pid` already (0: by one that this process cannot see)."""

    def __init__(self, uuid: str, pid: int) -> None:
        who = f"process {pid}" if pid else "a process that cannot be seen from here"
        super().__init__(f"emulated GPU {uuid} is held by {who}; nobody may be given a GPU before it is free")
        self.uuid = uuid
        self.pid = pid


class EmulatedGpuLocks:
    """Emulated GPUs in this process's hands, until `release` or the end of the process."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}
        self._start, self._length = PARTS.get(os.environ.get("HPCDL_SHARE", ""), (0, 0))

    @property
    def held(self) -> bool:
        return bool(self._descriptors)

    def release(self) -> None:
        """Frees the GPUs; again is no error."""
        while self._descriptors:
            path, descriptor = self._descriptors.popitem()
            if _held.get(path) == os.getpid():
                del _held[path]
                self._note(descriptor, b"")
            os.close(descriptor)

    def __enter__(self) -> EmulatedGpuLocks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def _take(self, path: str, uuid: str, note: bytes) -> None:
        path = os.path.realpath(path)
        # Looked at before the file is opened: closing it again would drop the lock that this process has.
        if _held.get(path) == os.getpid():
            raise GpuBusy(uuid, os.getpid())
        # Not made here: a UUID without a file is a GPU that its agent does not have.
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, self._length, self._start)
        except (BlockingIOError, PermissionError):
            pid = _holder(descriptor)
            os.close(descriptor)
            raise GpuBusy(uuid, pid) from None
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptors[path] = descriptor
        _held[path] = os.getpid()
        self._note(descriptor, note)

    def _note(self, descriptor: int, note: bytes) -> None:
        if self._length or self._start:
            os.pwrite(descriptor, note.ljust(PART, b"\0"), self._start)
        else:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, note, 0)


def hold(folder: str, uuids: Sequence[str], util: int, memory_mib: int) -> EmulatedGpuLocks:
    """Takes emulated GPUs of `folder` (HPCDL_EMULATED): all of them or none. Never waits.

    util (per cent) and memory_mib are what the agent shows while the trainer trains (hpcdl/agent/emulation.py). GpuBusy
    names who holds one; ValueError if a UUID is none; FileNotFoundError if there is no such GPU. They stay held even if
    the result is dropped.
    """
    note = json.dumps({"pid": os.getpid(), "util": util, "memory_mib": memory_mib}).encode()
    held = EmulatedGpuLocks()
    try:
        for uuid in uuids:
            if not uuid.startswith("EMU-") or "/" in uuid:
                raise ValueError(f"{uuid!r} is not the UUID of an emulated GPU")
            held._take(os.path.join(folder, f"{uuid}.lock"), uuid, note)
    except BaseException:
        held.release()
        raise
    return held


def _holder(descriptor: int) -> int:
    asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(descriptor, OFD_GETLK, asked))
    return 0 if kind == fcntl.F_UNLCK else max(0, int(pid))
