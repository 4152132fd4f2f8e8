"""The ends of steps of a framework's loop: when checkpoints are written there."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from hpcdl.trainer import checkpoints, session
from hpcdl.trainer.boundaries import Boundaries, require
from hpcdl.trainer.group.peers import RankAgreement
from hpcdl.trainer.session import Session


class Disk:
    """What saves go to; `full`: it refuses them."""

    def __init__(self) -> None:
        self.full = False
        self.saves = 0

    def save(self, folder: Path) -> None:
        self.saves += 1
        if self.full:
            raise OSError(errno.ENOSPC, "full")
        (folder / "state").write_text("state")


def saved_at(boundaries: Boundaries, disk: Disk, start: int, end: int) -> list[int]:
    """The steps after which a save was tried."""
    found = []
    for step in range(start + 1, end + 1):
        before = disk.saves
        boundaries.at(step, end, disk.save)
        if disk.saves > before:
            found.append(step)
    return found


def test_a_disk_that_is_full_is_tried_once_an_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at each step: a save that fails takes as long as another."""
    mine, disk = Session({}, 0, tmp_path), Disk()
    monkeypatch.setattr(session, "_session", mine)
    boundaries = Boundaries(10)
    assert boundaries.resume() is None
    boundaries.begin(RankAgreement(), 0)
    disk.full = True
    assert saved_at(boundaries, disk, 0, 35) == [10, 20, 30]
    disk.full = False
    assert saved_at(boundaries, disk, 35, 47) == [40]
    mine._asked = True
    with pytest.raises(SystemExit) as ended:
        boundaries.at(48, 50, disk.save)
    assert ended.value.code == 0
    assert [each.step for each in checkpoints.complete(tmp_path)] == [48, 40]

    mine._asked = False
    resumed = Boundaries(10)
    found = resumed.resume()
    assert found is not None
    assert found.step == 48
    resumed.begin(RankAgreement(), found.step)
    assert saved_at(resumed, disk, 48, 65) == [50, 60]


def test_a_framework_that_lacks_what_is_needed_is_refused_by_name() -> None:
    require("its", Disk(), ("save", "full"))
    with pytest.raises(RuntimeError, match=r"its of this version has no load, close in its Disk, without which"):
        require("its", Disk(), ("save", "load", "close"))
