"""Ranks of MPI among a step's tasks that have no PMI to connect to: each would be rank 0 of 1, and nothing say so.

Known by the library that a process has mapped. What another launcher has started within a task is its own affair: a
real mpirun gives its ranks a PMI, torchrun and horovodrun theirs a rendezvous.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from hpcdl.agent.supervisor.processes import tree

LIBRARY = re.compile(rb"/libmpi\w*\.so[.\d]*$", re.MULTILINE)
LAUNCHED = re.compile(
    rb"^(PMI_FD|PMI_PORT|PMI_CONTROL_PORT|PMIX_SERVER_\w+|OMPI_MCA_\w*(hnp_uri|num_procs)"
    rb"|TORCHELASTIC_RUN_ID|HOROVOD_RANK)=",
    re.MULTILINE,
)
"""Variables of ranks that a launcher has started which they connect to."""
SHARE = 20
"""The next look comes so many times later than the last one took: all cost a twentieth of a processor at most."""
SOON_S, LATER_S, BEGINNING_S = 0.02, 5.0, 60.0
"""Between two looks, in the beginning of a step and after that: most load their libraries at once."""


class MpiWatch:
    """Looks for such ranks on this node, as often as it is asked to but for what that costs."""

    def __init__(self) -> None:
        self._began = self._next = time.monotonic()

    @property
    def wait_s(self) -> float:
        """How long to wait for the next look."""
        return SOON_S if time.monotonic() - self._began < BEGINNING_S else LATER_S

    def library(self, roots: Iterable[int]) -> str:
        """The library of MPI of the first such rank in the trees of these processes; "": none is seen."""
        now = time.monotonic()
        if now < self._next:
            return ""
        found = next((name for root in roots for each in tree(root, tags=False) if (name := _library(each.pid))), "")
        self._next = now + max(self.wait_s, SHARE * (time.monotonic() - now))
        return found


def _library(pid: int) -> str:
    """The library of MPI that a process has mapped; "": none, or it has a launcher."""
    match = LIBRARY.search(_read(pid, "maps"))
    if match is None or LAUNCHED.search(_read(pid, "environ").replace(b"\0", b"\n")):
        return ""
    return match[0][1:].decode()


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""
