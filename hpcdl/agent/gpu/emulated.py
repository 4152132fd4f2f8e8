"""Emulated GPUs for machines that have none: the memory of one is the record lock on a file.

A trainer holds the lock (hpcdl/trainer/emulated.py) and has a JSON note in the file: {"pid", "util", "memory_mib"}.
The kernel frees the lock when the process is gone, however it went, as a driver frees a GPU's memory; and it says who
holds it without the asker taking it, so that a sample is never in a trainer's way. A deleted file is a lost GPU. Two
jobs that share a GPU hold a part of the file each (hpcdl/trainer/emulated.py), and a note in it.

UUID.health beside it, if there is one, is what a driver would say: a JSON object with the fields of `Health`; `xids`
is the list of all so far, to which new ones are appended.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import struct
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hpcdl.agent.gpu.device import Gpu, GpuSample
from hpcdl.core.model.frozen import from_json
from hpcdl.core.model.health import Health

FLOCK = "@hhqqi0q"  # struct flock of 64-bit Linux: type, whence, start, length, pid
NOTE_LIMIT = 4096
PARTS = (0, NOTE_LIMIT // 2)
"""Where the parts of the file begin: the one of a foreground, and the one of a background."""


class EmulatedSource:
    """A source of `count` emulated GPUs, with their files in `folder` (made if need be, 0700).

    Their UUIDs come from the folder's path: the same after a restart, and others in another folder. Not to be asked
    from a process that holds one of them: POSIX drops a process's record locks when it closes the file anywhere.
    """

    name = "emulated"

    def __init__(self, folder: Path, count: int, name: str = "Emulated V100", memory_mib: int = 16384) -> None:
        """OSError if the folder cannot be made."""
        if count < 0:
            raise ValueError(f"the number of emulated GPUs is 0 or more, not {count}")
        self.folder = folder.resolve()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        prefix = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:8]
        self._gpus = tuple(Gpu(index, f"EMU-{prefix}-{index}", name, memory_mib) for index in range(count))
        self._xids: dict[str, int] = {}
        for gpu in self._gpus:
            said = self._said(gpu)
            self._xids[gpu.uuid] = 0 if said is None else len(said.xids)
            os.close(os.open(self._path(gpu), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))

    @property
    def detail(self) -> str:
        return f"{len(self._gpus)} emulated GPUs in {self.folder}"

    def list(self) -> tuple[Gpu, ...]:
        return self._gpus

    def sample(self) -> tuple[GpuSample, ...]:
        return tuple(self._with_health(gpu, self._sample(gpu)) for gpu in self._gpus)

    def _with_health(self, gpu: Gpu, sample: GpuSample) -> GpuSample:
        said, known = self._said(gpu), self._xids[gpu.uuid]
        self._xids[gpu.uuid] = 0 if said is None else len(said.xids)
        return sample if said is None else replace(sample, health=replace(said, xids=()), xids=said.xids[known:])

    def _said(self, gpu: Gpu) -> Health | None:
        """What its file says; `xids` are all so far. None where there is none, or it is not understood."""
        try:
            with (self.folder / f"{gpu.uuid}.health").open("rb") as file:
                return from_json(Health, json.loads(file.read(NOTE_LIMIT)))
        except (OSError, ValueError, RecursionError):
            return None

    def close(self) -> None:
        return None

    def _path(self, gpu: Gpu) -> Path:
        return self.folder / f"{gpu.uuid}.lock"

    def _sample(self, gpu: Gpu) -> GpuSample:
        try:
            descriptor = os.open(self._path(gpu), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return GpuSample(gpu.uuid, state="lost", detail=f"{self._path(gpu)} was deleted")
        except OSError as error:
            return GpuSample(gpu.uuid, state="unknown", detail=str(error))
        try:
            holders = _holders(descriptor)
            notes = [os.pread(descriptor, NOTE_LIMIT // 2, start).rstrip(b"\0") for start in PARTS]
        except OSError as error:
            return GpuSample(gpu.uuid, state="unknown", detail=str(error))
        finally:
            os.close(descriptor)
        if any(pid <= 0 for pid in holders):
            return GpuSample(
                gpu.uuid, memory_total_mib=gpu.memory_mib, detail="held by a process that this one cannot see"
            )
        said = [next((each for note in notes if (each := _noted(note, pid)) != NOTHING), NOTHING) for pid in holders]
        util, memory = _sum(util for util, _ in said), _sum(memory for _, memory in said)
        return GpuSample(gpu.uuid, None if util is None else min(100, util), memory, gpu.memory_mib, pids=holders)


NOTHING: tuple[int | None, int | None] = (None, None)


def _sum(values: Iterable[int | None]) -> int | None:
    """Of what holders note together; None while one of them is still writing."""
    known = list(values)
    return None if None in known else sum(each or 0 for each in known)


def _holders(descriptor: int) -> tuple[int, ...]:
    """The pids that hold locks on parts of the file, 0 or less if in another pid namespace."""
    found = []
    for start, length in ((PARTS[0], PARTS[1]), (PARTS[1], 0)):
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        # The question of an open file description, so that a lock of this very process is answered too.
        kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked))
        if kind != fcntl.F_UNLCK:
            found.append(int(pid))
    return tuple(dict.fromkeys(found))


def _noted(note: bytes, pid: int) -> tuple[int | None, int | None]:
    """util and memory_mib; None while the holder is still writing, or if what is there is another holder's."""
    try:
        said = json.loads(note)
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(said, dict) or said.get("pid") != pid:
        return None, None
    util, memory = said.get("util"), said.get("memory_mib")
    return util if type(util) is int else None, memory if type(memory) is int else None
