"""The agent's folder on its node: where it is, its lock (one agent at a time), and what is remembered in it.

What lies in it is of this node and closed to others. Run folders, one for each part, are in run_folder.py.
"""

import fcntl
import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from hpcdl.agent import strict_json
from hpcdl.agent.report_log import boottime
from hpcdl.agent.supervisor.processes import boot_id, start_ticks
from hpcdl.core.model.frozen import from_json, to_json
from hpcdl.wire.private_files import NotPrivate, atomic_write, make_private_folder, open_private, read_private

LOCK, ABOUT, HEARD = "agent.lock", "agent.json", "heard"
LOG, REPORTS, EMULATED = "agent.log", "reports.jsonl", "emulated"
LIMIT = 64 * 1024
_LOCK_WAIT_S = 2.0  # an agent that was just killed may hold its lock for a moment
_SHARED = (
    "nfs", "lustre", "gpfs", "fuse", "cifs", "smb", "beegfs", "ceph", "afs", "panfs", "gluster", "wekafs", "pvfs",
)  # fmt: skip
"""How the names of file systems begin on which other nodes write too, and locks and sockets cannot be relied on."""


class AnotherAgent(Exception):
    """The node has an agent already; the message names it."""


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """agent.json: the agent that has the folder, or had it last."""

    pid: int
    start: int
    node: str
    emulate_gpus: int | None = None


def run_folder(home: Path, node: str, instance: str) -> Path:
    """The node's folder, made (0700) if it is missing. Raises NotPrivate and OSError."""
    folder = home / "run" / node
    if not is_local(home):
        # One of ours by the instance: the same node may serve several homes.
        below = os.environ.get("XDG_RUNTIME_DIR") or ""
        base = Path(below) if below and os.access(below, os.W_OK) else Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108
        name = hashlib.sha256(f"{instance}:{node}".encode()).hexdigest()[:16]
        ours = base / f"hpcdl-{os.geteuid()}"
        try:
            make_private_folder(ours)  # anybody may take that name, and whoever has it could replace what is in it
        except NotPrivate as error:
            raise NotPrivate(f"{str(error).partition(': ')[0]}: name another place with XDG_RUNTIME_DIR") from None
        folder = ours / name
    make_private_folder(folder)
    return folder


@dataclass(frozen=True, slots=True)
class Mount:
    """A file system: where it is, of what kind (`nfs4`), and the options of its mount and of itself."""

    point: str = ""
    kind: str = ""
    options: frozenset[str] = frozenset()

    @property
    def shared(self) -> bool:
        """Whether other nodes write to it too."""
        return self.kind.startswith(_SHARED)


def is_local(path: Path, mounts: str | None = None) -> bool:
    """Whether the file system of `path` belongs to this node alone. `mounts`: content of /proc/self/mountinfo."""
    return not mount_of(path, mounts).shared


def mount_of(path: Path, mounts: str | None = None) -> Mount:
    """The file system of `path`, which need not exist. `mounts`: content of /proc/self/mountinfo."""
    if mounts is None:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace")
    real = os.path.realpath(path)
    best = Mount()
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = fields[4].encode().decode("unicode_escape")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best.point):  # of several on one point the last one is seen
            kind, *rest = right.split()
            options = frozenset(fields[5].split(",") if len(fields) > 5 else ()) | frozenset(
                ",".join(rest[1:]).split(",")
            )
            best = Mount(point, kind, options)
    return best


def lock(folder: Path, daemon: int | None = None) -> int:
    """A descriptor that holds the agent's lock for as long as this process lives.

    `daemon`: the process that started this one, None where that was no daemon. Raises AnotherAgent: the lock has not
    come free in time; or it has, but that daemon is gone. Its successor starts an agent of its own where it needs one,
    and knows nothing of this one: where it has stopped meanwhile, nobody would end it.
    """
    fd = open_private(folder / LOCK, os.O_RDWR | os.O_CREAT)
    until = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < until:
                time.sleep(0.05)
                continue
            os.close(fd)
            known = read_about(folder)
            who = f"process {known.pid}" if known is not None else "another process"
            raise AnotherAgent(f"this node has an agent already: {who}, in {folder}") from None
        if daemon not in (None, os.getppid()):
            os.close(fd)
            raise AnotherAgent(f"the daemon that started this agent, process {daemon}, is gone")
        # The file may have been removed and made anew while we waited.
        if _same_file(fd, folder / LOCK):
            return fd
        os.close(fd)
        fd = open_private(folder / LOCK, os.O_RDWR | os.O_CREAT)


def still_ours(folder: Path, held: int) -> bool:
    """Whether the lock that we hold is still the one in the folder: not when the folder was removed."""
    return _same_file(held, folder / LOCK)


def _same_file(fd: int, path: Path) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(os.fstat(fd), there)


def read_about(folder: Path) -> AgentRecord | None:
    """What the last agent wrote, or None."""
    try:
        return from_json(AgentRecord, strict_json.loads(read_private(folder / ABOUT, LIMIT)))
    except (OSError, NotPrivate, ValueError):
        return None


def write_about(folder: Path, node: str, emulate_gpus: int | None, said: bool = False) -> AgentRecord:
    """Says who has the folder. `emulate_gpus` None: as many as the last agent had, unless that was `said`."""
    if emulate_gpus is None and not said and (known := read_about(folder)) is not None:
        emulate_gpus = known.emulate_gpus
    pid = os.getpid()
    about = AgentRecord(pid, start_ticks(pid) or 0, node, emulate_gpus)
    atomic_write(folder / ABOUT, json.dumps(to_json(about)).encode() + b"\n")
    return about


class LastContact:
    """When the daemon was last heard of, across the agent's restarts: the lease counts from there."""

    def __init__(self, folder: Path) -> None:
        """Now, where nothing is known of this boot."""
        self._path = folder / HEARD
        self._boot = boot_id()
        self.at = boottime()
        self._written = -1.0
        try:
            boot, at = read_private(self._path, 200).decode().split()
            if boot == self._boot and float(at) >= 0.0:
                self.at = min(self.at, float(at))
        except (OSError, NotPrivate, ValueError):
            pass

    def now(self) -> None:
        """The daemon was heard just now. Written at most once a second, and not forced to the disk: after a crash of
        the machine there are no trainers whose lease could matter."""
        self.at = boottime()
        if self.at - self._written < 1.0:
            return
        self._written = self.at
        try:
            fd = open_private(self._path, os.O_WRONLY | os.O_CREAT)
            try:
                os.pwrite(fd, f"{self._boot} {self.at:020.3f}\n".encode(), 0)
            finally:
                os.close(fd)
        except (OSError, NotPrivate):
            pass  # a full disk: at worst the lease counts from the agent's own start
