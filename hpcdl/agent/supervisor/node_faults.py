"""Errors of the operating system that say something of the node, and not of the job: its mounts are stale, or differ.

Another node may do better, so the daemon tries one (hpcdl/core/rules/unfit_nodes.py). Standard library only.
"""

from __future__ import annotations

import errno
import re

MOUNT = frozenset({
    *(errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN, errno.EREMOTEIO, errno.ENODEV),
    errno.ENXIO,
})  # fmt: skip
"""What a mount answers whose server, daemon or disk is away. No job can cause it where we ask the mount ourselves."""

LASTING = frozenset({
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ELOOP),
    errno.ENAMETOOLONG,
})  # fmt: skip
"""Why a path cannot be used that no other attempt changes on that node: a mount that is missing there, or a mistake of
the job's user, which is one on every node. A full disk is neither: it may pass."""

_SAID = re.compile(
    rf"\[Errno (?:{errno.ESTALE}|{errno.EIO})\]|Stale (?:NFS )?file handle"
    rf"|\[Errno (?:{errno.ENOTCONN}|{errno.ESHUTDOWN}|{errno.EREMOTEIO})\] [^:]*: '"  # of a file, not of a socket
)


def is_of_node(number: int | None) -> bool:
    """Whether the error is one that another node may not have."""
    return number in MOUNT or number in LASTING


def is_lasting(number: int | None) -> bool:
    """Whether it is one of these that may be the user's, and that no other attempt on that node changes."""
    return number in LASTING


def says_mount(line: str) -> bool:
    """Whether a program's last words are that a mount of its node failed it."""
    return _SAID.search(line) is not None
