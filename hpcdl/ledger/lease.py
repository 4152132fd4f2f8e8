"""The lease: at most one daemon writes the ledger of an HPCDL_HOME, on whichever node it runs.

A lease is a file `lease.<fence>` beside the ledger, put there whole by link(2), which fails where the name is taken:
of those that race for a number, one gets it. The number is the fence; agents refuse requests with a lower one than
they have seen. The file `fence` keeps the highest number in use, so that it grows even after a release. What makes it
safe:

- Whoever has linked a number looks again, and withdraws where another live holder's file is there, or a higher
  number, or where the number had been used (`fence` is at it already). Of any two, the later one finds the earlier
  one's file.
- Only a holder that is gone is succeeded, and gone is for ever: what was seen before a stall still holds after it.
- A successor removes its predecessors' files before it acts, after it wrote `fence`: `holds` of a predecessor that
  was wrongly thought gone is false, and it commits nothing more.

A SIGKILL at any line leaves files whose holder is gone, which the next one succeeds. A holder is gone when its
process is provably dead (on this boot, or because this machine has booted since), or when the batch system says that
its allocation ended. Nothing here depends on a clock: a stopped or partitioned daemon keeps its lease.
"""

import errno
import json
import os
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from hpcdl.core.model.frozen import from_json
from hpcdl.wire.private_files import (
    NotPrivate,
    atomic_write,
    make_private_folder,
    open_private,
    open_private_folder,
    read_private,
    unlink_if_there,
    write_new,
)

_FENCE = "fence"
_PREFIX = "lease."
_TEMPORARY = ".lease-"
_LIMIT = 4096  # bytes
_ATTEMPTS = 1000  # each one lost means that another went on, so this is never reached in earnest

FENCES = 10**15
"""No fence is that high but by damage: it would be recorded, and no daemon could ever be above it."""


class LeaseError(Exception):
    """No lease could be had; the message is one line with the next step."""


class LeaseHeld(LeaseError):
    """Another daemon holds the lease, or may: it cannot be proven gone. `here`: it runs on this machine; `step`: what
    the user may do."""

    def __init__(self, message: str, holder: "Holder | None", *, here: bool = False, step: str = "") -> None:
        super().__init__(message)
        self.holder = holder
        self.here = here
        self.step = step


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that a lease file names."""

    host: str
    machine: str  # /etc/machine-id, or ""
    boot: str  # the kernel's boot id
    pid_namespace: str  # a pid means nothing in another one
    pid: int
    start: int  # the process's start time in clock ticks since boot
    batch_job: str | None
    since: float  # seconds since 1970 by the holder's clock; only ever shown
    nonce: str

    def __str__(self) -> str:
        when = f"{datetime.fromtimestamp(self.since).astimezone():%Y-%m-%d %H:%M:%S}"  # local, as all times
        parts = (self.batch_job or "").split(":")  # kind, id, start, cluster: for people the id
        inside = f" in batch job {parts[1] if len(parts) > 1 else parts[0]}" if self.batch_job else ""
        return f"process {self.pid} on {self.host}{inside} since {when}"


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _start_of(pid: int) -> int | None:
    """The start time of a live process in clock ticks since boot, or None where it is provably not running any more."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        # A zombie is dead, unless threads of it still are being torn down.
        if fields[0] in (b"Z", b"X", b"x") and len(os.listdir(f"/proc/{pid}/task")) <= 1:
            return None
        return int(fields[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


def _myself(batch_job: str | None, now: float) -> Holder:
    start = _start_of(os.getpid())
    boot = _text("/proc/sys/kernel/random/boot_id")
    if start is None or not boot:
        raise LeaseError("/proc does not show this process: is /proc mounted?")
    return Holder(
        host=socket.gethostname(),
        machine=_text("/etc/machine-id"),
        boot=boot,
        pid_namespace=os.readlink("/proc/self/ns/pid"),
        pid=os.getpid(),
        start=start,
        batch_job=batch_job,
        since=now,
        nonce=os.urandom(16).hex(),
    )


def _gone(holder: Holder, me: Holder, has_ended: Callable[[str], bool]) -> bool:
    """True where the holder is provably gone; it then stays gone. `me` stands for this machine."""
    if holder.boot == me.boot and holder.pid_namespace == me.pid_namespace:
        return _start_of(holder.pid) != holder.start
    if holder.boot != me.boot and me.machine and (holder.host, holder.machine) == (me.host, me.machine):
        # This machine has booted since: none of its processes is left. Neither name alone says which machine it is:
        # two clusters may each have a login1, and nodes that start from one image may share their machine id.
        return True
    return holder.batch_job is not None and has_ended(holder.batch_job)


def _parse(content: bytes) -> Holder | None:
    """The holder that a lease file names, or None where it is not one."""
    try:
        body = json.loads(content)
        holder = from_json(Holder, body)
    except (ValueError, RecursionError):
        return None
    return holder if body.get("v") == 1 and "fence" in body and 0 <= holder.since < 1e11 else None


class Lease:
    """A lease that was acquired. It is this process's: in a child `holds` is false, and `release` does nothing."""

    def __init__(self, home: Path, fence: int, holder: Holder, content: bytes) -> None:
        self.home = home
        self.fence = fence
        self.holder = holder
        self._content = content
        self._path = home / f"{_PREFIX}{fence}"

    @staticmethod
    def acquire(
        home: Path,
        *,
        now: float,
        fence_hint: int = 0,
        batch_job: str | None = None,
        batch_ended: Callable[[str], bool] | None = None,
    ) -> "Lease":
        """Take the lease of `home`, with a fence above every earlier one and above `fence_hint`.

        `now`: seconds since 1970, shown to whoever is refused. `batch_job`: what this process runs in, if anything.
        `batch_ended(job)` is true only where the batch system says that the job has ended; it is asked about a holder
        that this machine cannot judge. Raises LeaseHeld, NotPrivate, and OSError from the file system.
        """
        make_private_folder(home)
        me = _myself(batch_job, now)
        ended: set[str] = set()

        def has_ended(job: str) -> bool:
            # Asked once: to ask is slow, and what ended stays so.
            if job not in ended and batch_ended is not None and batch_ended(job):
                ended.add(job)
            return job in ended

        for _ in range(_ATTEMPTS):
            folder = open_private_folder(home)
            try:
                lease = _attempt(home, folder, me, fence_hint, has_ended)
            finally:
                os.close(folder)
            if lease is not None:
                return lease
        raise LeaseError(f"too many daemons start on {home} at once: try again")

    def holds(self) -> bool:
        """Whether the lease is still ours, read afresh. Raises OSError where the file system cannot say (EIO, say)."""
        if os.getpid() != self.holder.pid:
            return False
        try:
            return read_private(self._path, _LIMIT) == self._content
        except NotPrivate:
            return False
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE, errno.ENOTDIR):
                return False
            raise

    def renew(self) -> bool:
        """Show who looks that the holder is alive (the file's time); false where the lease is not ours any more.

        Nobody loses a lease for not renewing it. Raises as `holds`.
        """
        if not self.holds():
            return False
        try:
            fd = open_private(self._path)
        except FileNotFoundError:
            return False
        try:
            os.utime(fd)
        finally:
            os.close(fd)
        return True

    def release(self) -> None:
        """Give the lease back, if it is ours; the fence stays used. Raises OSError."""
        if not self.holds():
            return
        folder = open_private_folder(self.home)
        try:
            unlink_if_there(self._path.name, folder)
            os.fsync(folder)
        finally:
            os.close(folder)


def _read_fence(home: Path, folder: int) -> int:
    try:
        content = read_private(home / _FENCE, _LIMIT, dir_fd=folder)
    except FileNotFoundError:
        return 0
    if not content.strip().isdigit() or int(content) >= FENCES:
        # As where it is missing: the ledger, the access file and the agents' logs know how high it was.
        raise LeaseError(f"{home / _FENCE} is damaged: remove it, and the next start makes it anew")
    return int(content)


def _lease_numbers(folder: int) -> list[int]:
    names = (name.removeprefix(_PREFIX) for name in os.listdir(folder) if name.startswith(_PREFIX))
    return sorted(int(number) for number in names if number.isascii() and number.isdigit() and int(number) < FENCES)


def free_fence(home: Path, *, batch_ended: Callable[[str], bool] | None = None) -> int:
    """The highest fence that was used in `home`, where nobody holds the lease; nothing is changed.

    Whoever takes the lease later uses a higher one. Raises as `Lease.acquire`.
    """
    me = _myself(None, 0.0)
    folder = open_private_folder(home)
    try:
        return _free_fence(home, folder, me, lambda job: batch_ended is not None and batch_ended(job))
    finally:
        os.close(folder)


def _free_fence(home: Path, folder: int, me: Holder, has_ended: Callable[[str], bool]) -> int:
    """The highest fence in use, all of whose holders are gone. Raises LeaseHeld."""
    numbers = _lease_numbers(folder)
    # After the listing: a lease file that was removed meanwhile, and so not listed, is counted in it.
    used = _read_fence(home, folder)
    for number in {*numbers, used}:
        _refuse_if_held(home / f"{_PREFIX}{number}", folder, me, has_ended)
    return max([used, *numbers])


def _attempt(home: Path, folder: int, me: Holder, fence_hint: int, has_ended: Callable[[str], bool]) -> Lease | None:
    """One try; None where another was faster at some point, so that the state must be looked at again."""
    used = _free_fence(home, folder, me, has_ended)
    if fence_hint > used:
        atomic_write(home / _FENCE, b"%d\n" % fence_hint)
        return None
    fence = used + 1
    content = json.dumps({"v": 1, "fence": fence, **asdict(me)}).encode() + b"\n"
    if not _link(home, folder, fence, content):
        return None
    try:
        if _is_mine(home, folder, fence, me, has_ended):
            atomic_write(home / _FENCE, b"%d\n" % fence)
            _clear(folder, fence)
            lease = Lease(home, fence, me, content)
            if lease.holds():
                return lease
    except BaseException:  # a full disk, say: this process lives on, and must not stand in its own way
        unlink_if_there(f"{_PREFIX}{fence}", folder)
        raise
    unlink_if_there(f"{_PREFIX}{fence}", folder)
    return None


def _clear(folder: int, fence: int) -> None:
    """Remove the files of predecessors, durably, and what killed ones left."""
    for number in _lease_numbers(folder):
        if number < fence:
            unlink_if_there(f"{_PREFIX}{number}", folder)
    for name in os.listdir(folder):
        if name.startswith(_TEMPORARY):  # or it is that of one who will be refused: it finds it missing and looks again
            unlink_if_there(name, folder)
    os.fsync(folder)


def _refuse_if_held(path: Path, folder: int, me: Holder, has_ended: Callable[[str], bool]) -> None:
    try:
        content = read_private(path, _LIMIT, dir_fd=folder)
    except FileNotFoundError:
        return
    holder = _parse(content)
    if holder is None:
        raise LeaseHeld(
            f"{path} is damaged, so who holds it is unknown: remove it if no daemon runs on {path.parent}", None
        )
    if _gone(holder, me, has_ended):
        return
    here = (holder.boot, holder.pid_namespace) == (me.boot, me.pid_namespace)
    if here:
        step = "use it, or end it with: hpcdl daemon stop"
    else:
        step = f"stop it there with: hpcdl daemon stop; if you know that it is gone, remove {path}"
    raise LeaseHeld(f"a daemon already runs on {path.parent}, {holder}: {step}", holder, here=here, step=step)


def _link(home: Path, folder: int, fence: int, content: bytes) -> bool:
    """Put the lease file in place, whole and durable, unless the number is taken."""
    name = f"{_PREFIX}{fence}"
    temporary = f"{_TEMPORARY}{os.getpid()}-{os.urandom(6).hex()}"
    write_new(home / temporary, content, dir_fd=folder)
    try:
        try:
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            # NFS may repeat a link that had succeeded and say that the name is taken: by us, then.
            try:
                linked = read_private(home / name, _LIMIT, dir_fd=folder) == content
            except FileNotFoundError:
                linked = False
            if not linked and error.errno not in (errno.EEXIST, errno.ENOENT):
                raise LeaseError(
                    f"{home} cannot hold a lease (link: {error.strerror}): set HPCDL_HOME elsewhere"
                ) from None
            if not linked:
                return False
        try:
            os.fsync(folder)
        except BaseException:
            unlink_if_there(name, folder)
            raise
        return True
    finally:
        unlink_if_there(temporary, folder)


def _is_mine(home: Path, folder: int, fence: int, me: Holder, has_ended: Callable[[str], bool]) -> bool:
    """Whether the number that we linked had never been used, and nobody else got another one meanwhile."""
    others = [number for number in _lease_numbers(folder) if number != fence]
    if _read_fence(home, folder) >= fence or any(number > fence for number in others):
        return False
    try:
        for number in others:
            _refuse_if_held(home / f"{_PREFIX}{number}", folder, me, has_ended)
    except LeaseHeld:
        return False
    return True
