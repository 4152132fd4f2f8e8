"""When a file was made, which a chmod or a touch leaves as it is, and nothing that copies can set."""

import ctypes
import os
from pathlib import Path

_statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
_AT_FDCWD, _BIRTH = -100, 0x800
_SIZE, _MASK_AT, _SECONDS_AT, _NS_AT = 256, 0, 80, 88  # of struct statx: the same everywhere


def birth_time_ns(path: Path) -> int | None:
    """None where the file system does not tell (NFS), or the C library cannot ask. Raises OSError."""
    if _statx is None:
        return None
    found = ctypes.create_string_buffer(_SIZE)
    if _statx(_AT_FDCWD, os.fsencode(path), 0, _BIRTH, found) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), str(path))
    if not ctypes.c_uint32.from_buffer(found, _MASK_AT).value & _BIRTH:
        return None
    seconds, ns = ctypes.c_int64.from_buffer(found, _SECONDS_AT), ctypes.c_uint32.from_buffer(found, _NS_AT)
    return seconds.value * 10**9 + ns.value
