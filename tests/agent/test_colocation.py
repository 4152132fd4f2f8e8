"""The step gates of a node: what fails for one part closes no other part's gate."""

import logging
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcdl.agent.colocation import Colocation
from hpcdl.agent.context import Stage
from hpcdl.agent.gpus import Side
from hpcdl.core.model.job import Sharing
from hpcdl.trainer.step_gate import SharePage


@dataclass
class Part:
    """A part, as far as its gate needs it."""

    key: tuple[int, int]
    folder: Path
    side: Side
    stage: Stage = Stage.FOLLOWED
    step: int | None = None
    helds: int = 0
    reports: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.share = Sharing("background" if self.side is Side.BACKGROUND else "foreground")

    def held(self) -> None:
        self.helds += 1

    def report_throttle(self, *what: Any) -> None:
        self.reports.append(what)


@pytest.mark.parametrize("broken", ["background", "foreground"])
def test_a_part_whose_folder_is_gone_closes_no_other_gate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    parts = {
        (job, 1): Part((job, 1), tmp_path / str(job), Side.BACKGROUND if job > 2 else Side.FOREGROUND)
        for job in (1, 2, 3, 4)
    }
    pairs = (("gpu0", (1, 1), (3, 1)), ("gpu1", (2, 1), (4, 1)))
    site = SimpleNamespace(gpus=SimpleNamespace(pairs=pairs))
    shutil.rmtree(parts[1 if broken == "foreground" else 3, 1].folder)
    node = Colocation(cast(Any, site), cast(Any, parts))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            node.tick(time.monotonic())
    assert parts[4, 1].reports
    assert SharePage(parts[4, 1].folder).duty is not None
    assert not parts[3, 1].reports
    assert parts[3, 1].helds >= 3
    assert [each.getMessage().partition(":")[0] for each in caplog.records] == [
        f"job {1 if broken == 'foreground' else 3}.1"
    ]
