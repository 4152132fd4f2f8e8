"""At which of its lines a process is killed or stopped by a test that could do so at each of them."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from tests.support.extent import ALL


def content(folder: Path) -> bytes:
    """A digest of all names and files below the folder: a kill leaves nothing else."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*")):
        digest.update(repr((str(path.relative_to(folder)), path.is_file() and path.read_bytes())).encode())
    return digest.digest()


def chosen(contents: Sequence[bytes], every: int) -> list[int]:
    """Lines, the first is 1. `contents`: that of the folder at each of them.

    The first and the last one, those at which the folder is another than at the line before, and every so manyth; in
    `make test-all` each.
    """
    lines = range(1, len(contents) + 1)
    return [
        line
        for line in lines
        if ALL or line in (1, lines[-1]) or line % every == 0 or contents[line - 1] != contents[line - 2]
    ]
