"""Digests of the files of a checkpoint: what a disk gives back that it was not given is seen before it is loaded.

A file is cut into pieces, which threads read and digest at once (hashlib lets go of the GIL); its digest is the SHA-256
of the pieces' digests one after the other, as hexadecimal digits.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

PIECE = 16 << 20  # bytes; part of what a digest means
READ = 1 << 20  # bytes at a time
THREADS = 8  # at most


def digests(root: Path, names: Sequence[str]) -> dict[str, str]:
    """Of files below root, by their names. Raises OSError."""
    pieces = [(name, start) for name in names for start in range(0, max(1, os.stat(root / name).st_size), PIECE)]
    found: dict[tuple[str, int], bytes] = {}

    def work(piece: tuple[str, int]) -> None:
        found[piece] = _piece(root / piece[0], piece[1])

    _each(work, pieces)
    whole = {name: hashlib.sha256() for name in names}
    for piece in pieces:
        whole[piece[0]].update(found[piece])
    return {name: each.hexdigest() for name, each in whole.items()}


def _piece(path: Path, start: int) -> bytes:
    found, left, buffer = hashlib.sha256(), PIECE, bytearray(READ)
    view = memoryview(buffer)
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while left > 0 and (size := file.readinto(view[: min(READ, left)]) or 0):
            found.update(view[:size])
            left -= size
    return found.digest()


def _each(work: Callable[[tuple[str, int]], None], items: Sequence[tuple[str, int]]) -> None:
    """`work` on every item, in several threads where there are some to be had. Raises what the first failure was."""
    threads = min(THREADS, len(os.sched_getaffinity(0)), len(items))
    if threads > 1:
        try:
            from concurrent.futures import ThreadPoolExecutor  # here, so that a script attaches fast

            with ThreadPoolExecutor(threads, "hpcdl digest") as pool:
                for _ in pool.map(work, items):
                    continue
            return
        except RuntimeError:
            pass  # no more threads, or the interpreter is on its way down
    for item in items:
        work(item)
