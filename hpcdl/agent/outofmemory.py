"""Did an incarnation run out of memory, of the node or of a GPU? From the cgroup's counter and the last output."""

from __future__ import annotations

import os
import re

from hpcdl.agent.output import last_line

TEXTS = (b"CUDA out of memory", b"OutOfMemoryError", b"RESOURCE_EXHAUSTED")
LAST_LINES = 40
ROOT = "/sys/fs/cgroup"
_COUNTER = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class Counter:
    """How many processes the kernel has killed for want of memory in the cgroups of an incarnation."""

    def __init__(self, cgroup: str | None) -> None:
        """`cgroup`: the folder whose memory.events counts; None: those of the processes that `watch` names."""
        self._fixed = cgroup is not None
        self._before: dict[str, int] = {}
        if cgroup is not None:
            self._note(os.path.join(cgroup, "memory.events"))

    def watch(self, pid: int) -> None:
        """From now on the cgroup of this process counts, too."""
        if not self._fixed:
            for path in _of(pid):
                self._note(path)

    def grew(self) -> bool:
        """Whether one of them counts more than when it was seen first."""
        return any((now := _kills(path)) is not None and now > before for path, before in self._before.items())

    def verdict(self, tail: bytes, counts: bool) -> tuple[bool, str]:
        """Whether it ran out of memory, and the line of its last output that says so, if one does. `counts`: what the
        kernel says does."""
        if _in_output(tail):
            return True, last_line(tail, TEXTS)
        return counts and self.grew(), ""

    def _note(self, path: str) -> None:
        count = _kills(path) if path not in self._before else None
        if count is not None:
            self._before[path] = count


def _kills(path: str) -> int | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            found = _COUNTER.search(file.read(65536))
    except OSError:
        return None
    return int(found[1]) if found else None


def _of(pid: int) -> list[str]:
    """The files of its cgroup that count, of version 2 and of version 1."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    unified = [f"{ROOT}{path}/memory.events" for _, names, path in lines if not names]
    older = [f"{ROOT}/memory{path}/memory.oom_control" for _, names, path in lines if names == "memory"]
    return unified + older


def _in_output(tail: bytes) -> bool:
    """The last lines of the output say that a GPU's memory was not enough."""
    last = b"\n".join(tail.rstrip().split(b"\n")[-LAST_LINES:])
    return any(text in last for text in TEXTS)
