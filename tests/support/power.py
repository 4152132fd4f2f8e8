"""What a power failure may take: what was written and not synced since."""

import os
from pathlib import Path
from typing import Any

import pytest


class Syncs:
    """Records what is synced from now on, by this process and through `os`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.torn: list[Path] = []
        """Files that were renamed into place before all of them was on the disk."""
        self._synced: dict[tuple[int, int], tuple[int, int]] = {}
        fsync, replace = os.fsync, os.replace

        def synced(descriptor: int) -> None:
            fsync(descriptor)
            found = os.fstat(descriptor)
            self._synced[found.st_dev, found.st_ino] = found.st_size, found.st_mtime_ns

        def renamed(old: Any, new: Any, **more: Any) -> None:
            if os.path.isfile(old) and not self.holds(Path(old)):
                self.torn.append(Path(new))
            replace(old, new, **more)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "replace", renamed)

    def holds(self, path: Path) -> bool:
        """Whether the file, or the names in the folder, are on the disk as they are now."""
        found = path.stat()
        return self._synced.get((found.st_dev, found.st_ino)) == (found.st_size, found.st_mtime_ns)
