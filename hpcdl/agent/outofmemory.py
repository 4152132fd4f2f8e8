"""Did an incarnation run out of memory, of the node or of a GPU? From the cgroup's counter and the last output."""

from __future__ import annotations

import os
import re

TEXTS = (b"CUDA out of memory", b"OutOfMemoryError", b"RESOURCE_EXHAUSTED")
LAST_LINES = 40
_COUNTER = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def kills(cgroup: str | None) -> int | None:
    """How many processes the kernel has killed for want of memory in this cgroup (a folder; None: our own), or None
    where nothing says so."""
    for path in [os.path.join(cgroup, "memory.events")] if cgroup else _own():
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                found = _COUNTER.search(file.read(65536))
        except OSError:
            continue
        if found:
            return int(found[1])
    return None


def _own() -> list[str]:
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    unified = [f"/sys/fs/cgroup{path}/memory.events" for _, names, path in lines if not names]
    older = [f"/sys/fs/cgroup/memory{path}/memory.oom_control" for _, names, path in lines if names == "memory"]
    return unified + older


def in_output(tail: bytes) -> bool:
    """The last lines of the output say that a GPU's memory was not enough."""
    last = b"\n".join(tail.rstrip().split(b"\n")[-LAST_LINES:])
    return any(text in last for text in TEXTS)
