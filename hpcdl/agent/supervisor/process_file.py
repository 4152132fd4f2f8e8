"""The file `processes`: what runs below a supervisor (or below an agent's shells), for whoever comes after it.

A process that left its session and emptied its environment is known only to whoever started it. When that one is
killed, this file still names it: pids with their start times, within one boot. Written without fsync: it has to outlive
processes, not the machine. Standard library only.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdl.agent import strict_json
from hpcdl.agent.supervisor import processes
from hpcdl.agent.supervisor.processes import Process
from hpcdl.wire.private_files import NotPrivate, read_private, write_all

PROCESS_FILE = "processes"
TEMPORARY = ".processes.tmp"
VERSION = 1
LIMIT = 4 << 20  # bytes
MOST = 50_000  # processes
FIRST_S, LOOK_S = 0.1, 1.0  # between looks: less at first, for most start what they start at once
SHARE = 0.01  # of a CPU that looking may cost


@dataclass(frozen=True, slots=True)
class RecordedProcesses:
    """What such a file says, if it is of this boot. `supervisor`: who wrote it."""

    supervisor: Process | None = None
    below: tuple[Process, ...] = ()


class ProcessFile:
    """Writes the file whenever the processes below `roots` are others than before. Times: any monotonic clock's."""

    def __init__(self, folder: int) -> None:
        """`folder`: a descriptor of the folder that it is in."""
        self._folder = folder
        self._boot = processes.boot_id()
        self._me = os.getpid()
        self._written: list[tuple[int, int]] | None = None
        self._pause_s = FIRST_S
        self._next_look = 0.0

    @property
    def due(self) -> float | None:
        """When `look` should be called at the latest, while it is sooner than once a second; else None."""
        return self._next_look if self._pause_s < LOOK_S else None

    def look(self, roots: Sequence[int], now: float, at_once: bool = False) -> None:
        """Once a turn: looks if it is time to, or `at_once`. Where it cannot be written, the next look tries again."""
        if now < self._next_look and not at_once:
            return
        began = time.thread_time()
        found = [process for root in roots for process in processes.tree(root, tags=False)]
        self._next_look = now + max(self._pause_s, (time.thread_time() - began) / SHARE)
        self._pause_s = min(LOOK_S, self._pause_s * 1.5)
        below = sorted({(each.pid, each.start_ticks) for each in found if each.pid != self._me})[:MOST]
        if below == self._written:
            return
        try:
            self._write(below)
        except OSError:
            self._written = None
        else:
            self._written = below

    def _write(self, below: list[tuple[int, int]]) -> None:
        me = [self._me, processes.start_ticks(self._me)]
        body = {"v": VERSION, "boot": self._boot, "supervisor": me, "processes": below}
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(TEMPORARY, flags, 0o600, dir_fd=self._folder)
        try:
            write_all(file, json.dumps(body, separators=(",", ":")).encode())
            os.replace(TEMPORARY, PROCESS_FILE, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError:
            os.unlink(TEMPORARY, dir_fd=self._folder)  # half of it is no use on a full disk
            raise
        finally:
            os.close(file)


def read_process_file(folder: Path) -> RecordedProcesses:
    """What is recorded in this folder; nothing where there is no such file, of another boot, or not what it should
    be."""
    try:
        body = strict_json.loads(read_private(folder / PROCESS_FILE, LIMIT))
    except (OSError, NotPrivate, ValueError):
        return RecordedProcesses()
    if not isinstance(body, dict) or body.get("v") != VERSION or body.get("boot") != processes.boot_id():
        return RecordedProcesses()
    listed = body.get("processes")
    below = [_process(each) for each in listed] if isinstance(listed, list) else []
    return RecordedProcesses(_process(body.get("supervisor")), tuple(each for each in below if each is not None))


def _process(value: object) -> Process | None:
    match value:
        case [int(pid), int(began)] if pid > 1 and began >= 0 and pid < 1 << 31:
            return Process(pid, began, "", "S")
    return None
