"""What the file system of HPCDL_HOME means for the ledger in it: what it may lose, what it costs, and the next step.

The ledger is open in one process, which locks the whole file and needs no shared memory; who that is, a lease says that
is made of link(2) and not of locks. So what counts is whether fsync means what it says, and whether links are made.
"""

from dataclasses import dataclass
from pathlib import Path

from hpcdl.agent.folder import Mount, mount_of

_COSTS = "each submit waits until the file server has it"


@dataclass(frozen=True, slots=True)
class FileSystemAdvice:
    """What a file system means for the ledger. `fine`: no acknowledged submit is lost; `step`: what to do, or ""."""

    fine: bool
    text: str
    step: str = ""


_ELSEWHERE = "set HPCDL_HOME to a folder on NFS, Lustre, GPFS or a local disk"
_UNSAFE = {
    "fuse.sshfs": "sshfs does not say when a write is durable, and makes no hard links, of which the lease is made",
    "fuse.s3fs": "it is an object store: files are written whole, and late",
    "fuse.gcsfuse": "it is an object store: files are written whole, and late",
    "fuse.rclone": "it is a remote store: files are written whole, and late",
    "cifs": "its server may acknowledge a write before it is on a disk",
    "smb": "its server may acknowledge a write before it is on a disk",
    "afs": "what is written is sent when the file is closed, and the ledger stays open",
}
_SAFE = {
    "nfs": "NFS: commits are sent to the server and synced there",
    "lustre": "Lustre: fsync means what it says",
    "gpfs": "GPFS: fsync means what it says",
    "beegfs": "BeeGFS: fsync means what it says, unless its admins have turned that off (tuneRemoteFSync)",
    "ceph": "CephFS: fsync means what it says",
    "wekafs": "WekaFS: fsync means what it says",
    "panfs": "PanFS: fsync means what it says",
}


def meaning_of(mount: Mount) -> FileSystemAdvice | None:
    """The advice for a shared file system; None for one of this machine alone."""
    if not mount.shared:
        return None
    for kind, why in _UNSAFE.items():
        if mount.kind.startswith(kind):
            return FileSystemAdvice(False, f"{why}: submits that were acknowledged may be lost", _ELSEWHERE)
    if "soft" in mount.options:
        step = f"have it mounted hard, or {_ELSEWHERE}"
        return FileSystemAdvice(False, "mounted soft: what was written may be lost when its server is slow", step)
    for kind, text in _SAFE.items():
        if mount.kind.startswith(kind):
            return FileSystemAdvice(
                True,
                f"shared, and fine for the ledger ({text}); only the daemon opens it, under a lease that needs no "
                f"locks; {_COSTS}",
            )
    text = f"shared, and hpcdl does not know whether its fsync means what it says; {_COSTS}"
    return FileSystemAdvice(False, text, f"ask its admins, or {_ELSEWHERE}")


def told_at_start(home: Path) -> str:
    """A line for whoever starts a daemon in this folder; "" where there is nothing to say."""
    mount = mount_of(home)
    found = meaning_of(mount)
    if found is None:
        return ""
    step = f": {found.step}" if found.step else ""
    return f"{home} is on {mount.kind} ({mount.point}): {found.text}{step}"
