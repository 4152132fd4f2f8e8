"""Processes of ours, by /proc: found by their tag or by their parents, and never signalled by a pid that was reused.

A process may vanish at any line here; then it is simply not in the answer. A zombie counts as gone: it holds no GPU.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pwd
import re
import resource
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

TAG_VARIABLE = "HPCDL_TAG"
PIECE = 1 << 16  # bytes; /proc/sys refuses to be read in large pieces
ENVIRONMENT_LIMIT = 8 << 20  # bytes of an environment that are looked at
GONE_STATES = "ZXx"
STOPPED = "T"  # by a signal; "t" is a debugger's and left alone


@dataclass(frozen=True, slots=True)
class Process:
    """A process that was seen in /proc. `start_ticks`: clock ticks after boot; with the pid it names one process.
    `tag`: "" where none can be seen."""

    pid: int
    start_ticks: int
    tag: str
    state: str

    @property
    def stopped(self) -> bool:
        return self.state == STOPPED


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    parent: int
    session: int
    threads: int
    start_ticks: int
    status: int  # as waitpid will give it, once it ends; 0 before, and where the kernel does not say

    @property
    def gone(self) -> bool:
        # A leader that ended before its threads is shown as a zombie, too, and may well hold a GPU.
        return self.state in GONE_STATES and self.threads <= 1


def boot_id() -> str:
    """Changes with every boot of this machine; start times compare only within one."""
    return _read("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip()


def start_ticks(pid: int) -> int | None:
    """When the process started; None if there is none, or it is a zombie."""
    stat = _stat(pid)
    return None if stat is None or stat.gone else stat.start_ticks


def start_ticks_of_child(pid: int) -> int:
    """As start_ticks, for a child that is not reaped yet: a zombie still shows it. Raises ProcessLookupError."""
    stat = _stat(pid)
    if stat is None:
        raise ProcessLookupError(f"no process {pid}")
    return stat.start_ticks


def killed(pid: int, started: int) -> bool:
    """Whether the process that began at these ticks ends by SIGKILL, or has and was not waited for yet."""
    stat = _stat(pid)
    return stat is not None and stat.start_ticks == started and stat.status & 0x7F == signal.SIGKILL


def catches(pid: int, number: signal.Signals) -> bool:
    """True if the process has a handler for the signal (ignoring it is not one)."""
    mask = _status(pid).get("SigCgt")
    return mask is not None and bool(int(mask, 16) >> (number - 1) & 1)


def process_of(pid: int) -> Process | None:
    """The process as it is now, or None when it is gone."""
    stat = _stat(pid)
    if stat is None or stat.gone:
        return None
    return Process(pid, stat.start_ticks, _variable(pid, stat, TAG_VARIABLE) or "", stat.state)


def variable(pid: int, name: str) -> str | None:
    """What the process had in this variable when its program began; None where it had none, or is gone."""
    stat = _stat(pid)
    return None if stat is None else _variable(pid, stat, name)


def tagged(wanted: str, name: str = TAG_VARIABLE) -> list[Process]:
    """Processes of our uid whose environment has this HPCDL_TAG, or one that begins with it and a colon: so an
    instance, `instance:job` and a full tag can be asked for. The caller itself is left out. `name`: of another
    variable that is made in this way."""
    if not wanted:
        raise ValueError("an empty tag would match every process")
    found = []
    for pid in _pids():
        if _owner(pid) != os.geteuid():
            continue
        process = process_of(pid)
        if process is not None:
            tag = process.tag if name == TAG_VARIABLE else variable(pid, name)
            if tag and matches(tag, wanted):
                found.append(process)
    return found


def commands() -> list[tuple[Process, list[str]]]:
    """Processes of our uid with their command lines; the caller itself is left out."""
    found = []
    for pid in _pids():
        if _owner(pid) == os.geteuid() and (process := _glance(pid)) is not None:
            found.append((process, words_of(pid)))
    return found


def words_of(pid: int) -> list[str]:
    """Its command line; empty where it is gone."""
    return _read(f"/proc/{pid}/cmdline", PIECE).decode("utf-8", "replace").split("\0")[:-1]


MARKED = resource.RLIMIT_RTTIME
"""The limit that marks the processes of an attempt: real-time processes may compute for so many microseconds without a
pause. As high as the marks are it limits nothing. Whatever a process starts has it too: a new session, an empty
environment and another program keep it, and only a process of root's can raise it."""

_LEAST, _MARKS, _MOST = 1 << 60, 1 << 48, 1 << 62


def mark_of(tag: str) -> int:
    """The limit by which processes of this tag are known; 0 where our own leaves no room for one."""
    own = resource.getrlimit(MARKED)[1]
    top = _MOST if own == resource.RLIM_INFINITY else min(own, _MOST)
    number = int.from_bytes(hashlib.blake2b(tag.encode(), digest_size=6).digest(), "big")
    return top - _MARKS + number if top - _MARKS > _LEAST else 0


def marked(mark: int) -> list[Process]:
    """Processes of our uid with this mark, whatever else they hide; neither the caller nor whoever it runs below."""
    if mark <= _LEAST:  # none that `mark_of` gives: it may be a limit of anybody's
        return []
    line, above, found = re.compile(rb"^Max realtime timeout +%d +%d " % (mark, mark), re.M), _above(os.getpid()), []
    for pid in _pids():
        if pid not in above and _owner(pid) == os.geteuid() and line.search(_read(f"/proc/{pid}/limits", PIECE)):
            found += [] if (process := _glance(pid)) is None else [process]
    return found


def matches(tag: str, wanted: str) -> bool:
    """`i:7` matches `i:7` and `i:7:2`, not `i:71`."""
    return tag == wanted or tag.startswith(wanted if wanted.endswith(":") else f"{wanted}:")


def tree(root: int, tags: bool = True) -> list[Process]:
    """The process `root`, if it lives, and all below it; `tags` as in `descendants`."""
    own = process_of(root) if tags else _glance(root)
    return [*([] if own is None else [own]), *descendants(root, tags)]


def descendants(root: int, tags: bool = True) -> list[Process]:
    """All processes below root, without it, whatever their environment. Below a subreaper that is everything that was
    ever started there and still lives. Without `tags` no environment is read, which is cheaper."""
    found: list[Process] = []
    see = process_of if tags else _glance
    seen = {root}
    front = [root]
    while front:
        below = [pid for parent in front for pid in _children(parent) if pid not in seen]
        seen.update(below)
        found += [process for pid in below if (process := see(pid)) is not None]
        front = below
    return found


def _glance(pid: int) -> Process | None:
    stat = _stat(pid)
    return None if stat is None or stat.gone else Process(pid, stat.start_ticks, "", stat.state)


def lives(process: Process) -> bool:
    """Whether it is still that very process, and no zombie."""
    return start_ticks(process.pid) == process.start_ticks


def session_of(pid: int) -> int | None:
    """The session of a process, of a zombie too; None where there is none."""
    stat = _stat(pid)
    return None if stat is None else stat.session


def children_of(pid: int) -> list[int]:
    """The pids of its children, zombies included."""
    return sorted(_children(pid))


def kin(known: Iterable[Process]) -> list[Process]:
    """Of these processes those that live, everything below them, and what shares a session with one of them.

    They must all have been started below one that made a session of its own, as every trainer and command of ours does:
    then nobody else is in their sessions. A number that was given to another process is not followed, and neither the
    caller's session nor whoever it runs below is ever among them.
    """
    roots = [process for process in known if lives(process)]
    if not roots:
        return []
    stats = {pid: stat for pid in _pids() if (stat := _stat(pid)) is not None}
    found = {each.pid for each in roots if each.pid in stats and stats[each.pid].start_ticks == each.start_ticks}
    above = _above(os.getpid())
    never = {0, os.getsid(0)}  # 0: the kernel's, or of a leader that cannot be seen
    found -= above
    sessions = {stats[pid].session for pid in found} - never
    grew = True
    while grew:
        others = ((pid, stat) for pid, stat in stats.items() if pid not in found and pid not in above)
        more = {pid for pid, stat in others if stat.parent in found or stat.session in sessions}
        found |= more
        sessions |= {stats[pid].session for pid in more} - never
        grew = bool(more)
    return [Process(pid, stats[pid].start_ticks, "", stats[pid].state) for pid in sorted(found) if not stats[pid].gone]


def _above(pid: int) -> set[int]:
    """The process, its parent, and so on."""
    found = {0, 1}
    while pid not in found and (stat := _stat(pid)) is not None:
        found.add(pid)
        pid = stat.parent
    return found


def kill_all(find: Callable[[], list[Process]], within_s: float) -> list[Process]:
    """SIGKILL to all that `find` finds, again and again until it finds nothing new, or the time is over; whom it hit.

    All are stopped before the first is killed: what is stopped starts no other in its place.
    """
    killed: dict[tuple[int, int], Process] = {}
    end = time.monotonic() + within_s
    while True:
        fresh = [each for each in find() if (each.pid, each.start_ticks) not in killed]
        if not fresh:
            return list(killed.values())
        before = len(killed)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for each in fresh:
                if signal_process(each, number):
                    killed[each.pid, each.start_ticks] = each
        if time.monotonic() > end:
            return list(killed.values())
        if len(killed) == before:  # gone by themselves, or not ours to signal
            time.sleep(0.01)


def kill_own_children(spare: Callable[[int], bool], reap: Callable[[], None], within_s: float) -> None:
    """SIGKILL to the children of this process, and to what they leave to it, as fast as can be: a chain in which each
    starts the next and ends is not caught by whoever looks twice.

    Nobody but `reap` may wait for them meanwhile: so a number that is listed is theirs. It is for a subreaper.
    """
    end = time.monotonic() + within_s
    before: set[int] = set()
    while found := {pid for pid in _children(os.getpid()) if not spare(pid)}:
        for pid in found:
            _send(lambda: os.kill(pid, signal.SIGKILL))  # noqa: B023
        reap()
        if time.monotonic() > end:
            return
        if found == before:  # they are on their way out, or hang in a driver
            time.sleep(0.001)
        before = found


def incarnation(tag: str, root: int) -> list[Process]:
    """The processes of an incarnation as its supervisor, `root`, sees them: tagged ones, and all below it, since a
    program may change its environment or overwrite it (setproctitle)."""
    found = {process.pid: process for process in [*tagged(tag), *descendants(root)]}
    return [process for pid, process in sorted(found.items()) if pid != root]


def described(pid: int) -> str:
    """A process in words: its number, its program's name and its user, as far as they can be seen."""
    name = _read(f"/proc/{pid}/comm", 64).decode("utf-8", "replace").strip()
    owner = _owner(pid)
    if owner is None or not name:
        return f"{pid} (not visible from here)"
    try:
        user = pwd.getpwuid(owner).pw_name
    except (KeyError, OSError):
        user = f"uid {owner}"
    shown = "".join(each if each.isprintable() else "?" for each in name)
    return f"{pid} ({shown} of {user})"


def signal_process(process: Process, number: signal.Signals) -> bool:
    """Send the signal to this very process; False if it is gone, is not ours, or lost its tag meanwhile."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError as error:
        # Kernels before 5.3: what is left is the check just before the signal.
        if error.errno != errno.ENOSYS or not _same(process):
            return False
        return _send(lambda: os.kill(process.pid, number))
    try:
        # The descriptor pins the process, so what is checked now is what is signalled then.
        return _same(process) and _send(lambda: signal.pidfd_send_signal(descriptor, number))
    finally:
        os.close(descriptor)


def _send(send: Callable[[], None]) -> bool:
    try:
        send()
    except OSError:
        return False
    return True


def _same(process: Process) -> bool:
    now = process_of(process.pid)
    if now is None or now.start_ticks != process.start_ticks or (process.tag and now.tag != process.tag):
        return False
    return _status(process.pid).get("Uid", "").split()[:1] == [str(os.geteuid())]


def _read(path: str, limit: int = ENVIRONMENT_LIMIT) -> bytes:
    """b"" if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            pieces = []
            while limit > 0 and (piece := file.read(min(limit, PIECE))):
                pieces.append(piece)
                limit -= len(piece)
            return b"".join(pieces)
    except OSError:
        return b""


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _owner(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def _stat(pid: int) -> _Stat | None:
    # The name of the program is in brackets and may hold brackets and blanks itself.
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if len(fields) < 20:
        return None
    status = int(fields[49]) if len(fields) > 49 else 0
    return _Stat(fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[17]), int(fields[19]), status)


def _status(pid: int) -> dict[str, str]:
    lines = _read(f"/proc/{pid}/status").decode("utf-8", "replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _variable(pid: int, stat: _Stat, wanted: str) -> str | None:
    # A leader that has ended shows no environment; its threads do.
    places = [f"/proc/{pid}/environ"] if stat.state not in GONE_STATES else _thread_environments(pid)
    name = f"{wanted}=".encode()
    for place in places:
        for each in _read(place).split(b"\0"):
            if each.startswith(name):
                return each[len(name) :].decode("utf-8", "replace")
    return None


def _thread_environments(pid: int) -> list[str]:
    try:
        return [f"/proc/{pid}/task/{thread}/environ" for thread in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _children(pid: int) -> Iterable[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        path = f"/proc/{pid}/task/{thread}/children"
        text = _read(path)
        if not text and not _KERNEL_LISTS_CHILDREN:
            return _children_by_scan(pid)
        found += map(int, text.split())
    return found


def _children_by_scan(pid: int) -> list[int]:
    stats = [(each, _stat(each)) for each in _pids()]
    return [each for each, stat in stats if stat is not None and stat.parent == pid]


_KERNEL_LISTS_CHILDREN = os.path.exists("/proc/thread-self/children")


def cpu_s(root: int) -> float:
    """CPU seconds of all processes below root, and of those that they have waited for."""
    ticks = 0
    for process in descendants(root):
        fields = _read(f"/proc/{process.pid}/stat").rpartition(b")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")
