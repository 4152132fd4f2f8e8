"""Checkpoints that a program writes by itself, found by its user's pattern (`--resumes 'out/checkpoint-*'`)."""

from __future__ import annotations

import glob
import os

SLACK_S = 2.0  # of file systems that round times


def newest(pattern: str, cwd: str, since: float) -> str:
    """The name of the match that was changed last, "" where none was since then (seconds, of the file system)."""
    found: tuple[float, str] | None = None
    for path in glob.iglob(os.path.join(cwd, os.path.expanduser(pattern))):
        try:
            changed = os.stat(path).st_mtime
        except OSError:
            continue
        if changed >= since - SLACK_S and (found is None or (changed, path) > found):
            found = (changed, path)
    return "" if found is None else os.path.basename(found[1].rstrip("/"))
