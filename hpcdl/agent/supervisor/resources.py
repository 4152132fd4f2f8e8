"""An attempt's share of its node: the processors it runs on, and the memory it may take.

Processors are an affinity, which children inherit. Memory is limited by a cgroup where one may be made here, and is
watched besides: then the supervisor ends the trainer. Never limits anything but the processes below this supervisor.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Collection, Mapping
from pathlib import Path

from hpcdl.agent.supervisor import processes
from hpcdl.agent.supervisor.exit_cause import ROOT
from hpcdl.core.model.units import memory_text

CPUS_VARIABLE = "HPCDL_CPUS"
"""Of the grant: the numbers of the processors, `0,1,2,3`."""

LOOK_S = 1.0
PREFIX = "hpcdl-"


def processors(gpu_env: Mapping[str, str] | None) -> frozenset[int]:
    """The processors of a grant; none where the attempt is not bound to any."""
    return frozenset(int(each) for each in (gpu_env or {}).get(CPUS_VARIABLE, "").split(",") if each.isdecimal())


def bind(cpus: Collection[int], thread: int = 0) -> None:
    """Has this thread, or the one of that number, run on these processors; where that cannot be, as before."""
    if cpus:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(thread, cpus)


def mark(limit: int) -> None:
    """Has this process, and whatever it starts, be known by that limit (`processes.mark_of`); 0: it has none."""
    if limit:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(processes.MARKED, (limit, limit))


def enter(entrance: int) -> None:
    """Has this process in the cgroup of that `entrance`; where that cannot be, it is only watched."""
    with contextlib.suppress(OSError):
        os.write(entrance, b"0")


def bind_all(root: int, cpus: Collection[int]) -> None:
    """The same for every thread of every process below `root`: those at the gate run already."""
    for process in processes.descendants(root, tags=False):
        try:
            threads = os.listdir(f"/proc/{process.pid}/task")
        except OSError:
            continue
        for each in threads:
            bind(cpus, int(each))


class MemoryLimit:
    """The most memory that the processes of an attempt may take together."""

    def __init__(self, limit_mib: int | None, name: str) -> None:
        """`limit_mib`: None is without limit. `name`: of the cgroup, which ends in `.` and our pid."""
        self._limit_mib = limit_mib
        self._next_look = 0.0
        self._before = False  # it was above the limit at the last look
        self._cgroup = None if limit_mib is None else _make_cgroup(limit_mib, f"{PREFIX}{name}")

    @property
    def enforced(self) -> bool:
        """Whether the kernel ends who takes more; else it is only watched."""
        return self._cgroup is not None

    @property
    def entrance(self) -> int | None:
        """A descriptor that a process writes `0` to, and is in the cgroup then; None where there is no cgroup. The
        caller closes it."""
        if self._cgroup is None:
            return None
        try:
            return os.open(self._cgroup / "cgroup.procs", os.O_WRONLY)
        except OSError:
            return None

    def exceeded(self, root: int, now: float) -> str:
        """Why the attempt is to be ended: what is below `root` is above the limit, and was a look ago; else ""."""
        if self._limit_mib is None or now < self._next_look:
            return ""
        self._next_look = now + LOOK_S
        taken = taken_mib(root, self._limit_mib)
        above, before = taken > self._limit_mib, self._before
        self._before = above
        return self.words(taken) if above and before else ""

    def words(self, taken: float | None = None) -> str:
        """What is said of an attempt that was ended for it; "" where there is no limit."""
        if self._limit_mib is None:
            return ""
        limit = memory_text(self._limit_mib)
        much = f"more than {limit}" if taken is None else f"{memory_text(round(taken))}, more than its {limit},"
        return f"its processes took {much} of memory: give it more with --mem"

    def close(self) -> None:
        """Removes the cgroup, in which no process is left."""
        if self._cgroup is not None:
            with contextlib.suppress(OSError):
                self._cgroup.rmdir()


def taken_mib(root: int, enough: float) -> float:
    """MiB that the processes below `root` take together. What they share counts once, where the plain sum of what each
    has, which is cheaper to read, is above `enough`."""
    below = processes.descendants(root, tags=False)
    page_mib = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    each_mib = {process.pid: _resident_pages(process.pid) * page_mib for process in below}
    if sum(each_mib.values()) <= enough:
        return sum(each_mib.values())
    shares = ((_proportional_mib(pid), mib) for pid, mib in each_mib.items())
    return sum(mib if share is None else share for share, mib in shares)


def _resident_pages(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0  # it has ended


def _proportional_mib(pid: int) -> float | None:
    """Its memory, of which what n processes share counts as an n-th; None where the kernel does not say."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    kib = [int(line.split()[1]) for line in lines if line.startswith("Pss:")]
    return kib[0] / 1024 if kib else None


def _make_cgroup(limit_mib: int, name: str) -> Path | None:
    """A cgroup with this limit beside or below our own, where this user may make one; else None."""
    try:
        lines = [line.rstrip("\n").split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return None
    for _, controllers, path in lines:
        limits: tuple[str, ...]
        if controllers == "memory":  # version 1: a child of the one that we are in
            parent, limits = Path(f"{ROOT}/memory{path}"), ("memory.limit_in_bytes",)
        elif not controllers:  # version 2: processes are in leaves alone, so a sibling of ours
            parent, limits = Path(f"{ROOT}{path}").parent, ("memory.max", "memory.swap.max")
        else:
            continue
        if os.access(parent / "cgroup.procs", os.W_OK) and (made := _limited(parent, name, limits, limit_mib)):
            return made
    return None


def _limited(parent: Path, name: str, limits: tuple[str, ...], limit_mib: int) -> Path | None:
    for old in parent.glob(f"{PREFIX}*"):  # of supervisors that were killed; one without processes can be removed
        owner = old.name.rpartition(".")[2]
        if not owner.isdecimal() or processes.start_ticks(int(owner)) is None:
            with contextlib.suppress(OSError):
                old.rmdir()
    made = parent / name
    try:
        made.mkdir(mode=0o700)
    except OSError:
        return None
    try:
        (made / limits[0]).write_text(str(limit_mib << 20))
        for other in limits[1:]:
            with contextlib.suppress(OSError):  # where swap is not counted
                (made / other).write_text("0")
    except OSError:  # the memory controller is not delegated
        made.rmdir()
        return None
    return made
