"""The processes of commands beside trainers, by a tag of their own: of one command, and what an agent left."""

import contextlib
import os
from pathlib import Path

from hpcdl.agent import processes, processfile
from hpcdl.agent.processes import Process, matches

VARIABLE = "HPCDL_SHELL"
SWEEP_S = 2.0
"""Seconds of one attempt to end what an earlier agent left."""


def beside(wanted: str, root: int | None = None) -> list[Process]:
    """Processes of our uid whose HPCDL_SHELL is that, or begins with it and a colon; and what is at or below `root`."""
    found: dict[int, Process] = {}
    for name in os.listdir("/proc"):
        pid = int(name) if name.isdigit() else 0
        if not pid or pid == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
                continue
            tag = processes.variable(pid, VARIABLE)
            if tag and matches(tag, wanted) and (process := processes.look(pid)) is not None:
                found[pid] = process
    if root is not None:
        own = processes.look(root)
        for process in [*([own] if own is not None else []), *processes.descendants(root)]:
            found[process.pid] = process
    return list(found.values())


def sweep(instance: str, node: str, run: Path) -> int:
    """SIGKILL to what an earlier agent of this node left of such commands; how many processes there were. `run`: the
    agent's folder."""

    def left() -> list[Process]:
        found = [each for each in beside(instance) if _node(each) == node]
        return processes.kin([*found, *processfile.read(run).below])

    return len(processes.kill_all(left, SWEEP_S))


def _node(process: Process) -> str:
    tag = (processes.variable(process.pid, VARIABLE) or "").split(":")
    return ":".join(tag[3:-1])  # a node's name may hold colons
