"""The last checkpoint of a training says that it is complete, by a file beside what the training wrote into it.

So it is where the training ended before its last step, too: by an early stop, say. Another job, or one with higher
limits, trains on from it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Optional, Tuple

FILE = "training-complete.json"

Limits = Tuple[Optional[float], ...]  # Python 3.8 has no tuple[...]
"""How long a training may become, in the units of its loop (steps, epochs); None: without a limit."""


def mark(folder: Path, identity: str, limits: Limits) -> None:
    """What is written into this folder is the last of the training of this job, which had these limits."""
    (folder / FILE).write_text(json.dumps({"identity": identity, "limits": list(limits)}))


def is_last(folder: Path) -> bool:
    """Whether a checkpoint is the last of a training, of whichever job: it had made all that belongs to its steps."""
    return (folder / FILE).exists()


def is_complete(folder: Path, identity: str, limits: Limits) -> bool:
    """Whether a checkpoint is the last of a training of this job, which has no higher limits now."""
    try:
        found = json.loads((folder / FILE).read_text())
        before = [None if each is None else float(each) for each in found["limits"]]
        whose = found["identity"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if whose != identity or len(before) != len(limits):
        return False
    return all(was is None or (now is not None and now <= was) for was, now in zip(before, limits))
