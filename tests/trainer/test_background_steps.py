"""What keeps a background's launches out of the way; the GPU is one that only counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpcdl.trainer import background_steps
from hpcdl.trainer.background_steps import Bans, Launcher, collective, micro_batches
from hpcdl.trainer.session import Session
from hpcdl.trainer.step_gate import BAN, SharePage
from tests.support.waiting import until


class Cuda:
    """torch.cuda's names; what is launched is done when somebody waits for it."""

    def __init__(self) -> None:
        self.waiting = self.most = self.captured = 0

    def Stream(self, priority: int) -> Cuda:
        self.priority = priority
        return self

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        yield

    @contextmanager
    def graph(self, graph: Any, pool: Any, stream: Any) -> Iterator[None]:
        self.captured += 1
        yield

    def CUDAGraph(self) -> Cuda:
        return self

    def replay(self) -> None:
        self.captured += 100

    def graph_pool_handle(self) -> int:
        return 1

    def current_stream(self) -> None:
        return None

    def wait_stream(self, stream: Any) -> None:
        return None

    def Event(self) -> Cuda:
        return self

    def record(self, stream: Any) -> None:
        self.waiting += 1
        self.most = max(self.most, self.waiting)

    def synchronize(self) -> None:
        self.waiting -= 1


def session(folder: Path, share: str) -> Session:
    folder.mkdir(parents=True, exist_ok=True)
    return Session({"HPCDL_SOCKET": str(folder / "s"), "HPCDL_SHARE": share}, 0, None)


@pytest.mark.parametrize("outstanding", [1, 2, 5])
def test_launches_are_bounded(outstanding: int, tmp_path: Path) -> None:
    cuda, ran = Cuda(), []
    launcher = Launcher(outstanding, cuda)
    for number in range(20):
        launcher.launch(lambda number=number: ran.append(number))  # type: ignore[misc]
    assert (cuda.most, ran) == (outstanding, list(range(20)))
    launcher.finish()
    assert cuda.waiting == 0
    with pytest.raises(ValueError, match="outstanding"):
        Launcher(0, cuda)


def test_pieces_are_captured_after_a_warm_up() -> None:
    cuda, ran = Cuda(), []
    pieces = Launcher(2, cuda).graphs([lambda: ran.append("a"), lambda: ran.append("b")], warm_up=2)
    assert (ran, cuda.captured) == (["a", "b"] * 3, 2)
    for piece in pieces:
        piece()
    assert cuda.captured == 202


def test_nothing_is_launched_in_a_foregrounds_collective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    front, back = session(tmp_path / "3.1", "foreground"), session(tmp_path / "4.2", "background")
    assert back.page is not None
    bans = Bans(back)
    assert not bans.banned
    back.page.control(1.0, (3, 1))
    monkeypatch.setattr(background_steps, "attach", lambda: front)
    monkeypatch.setattr(background_steps, "BAN_S", 600.0)
    with collective():
        assert bans.banned
        waits = threading.Thread(target=bans.wait, daemon=True)
        waits.start()
        waits.join(0.1)
        assert waits.is_alive()
    until(lambda: not waits.is_alive(), "the end of the ban")
    back.page.control(1.0, (9, 9))  # one whose folder is gone
    assert not bans.banned


def test_a_ban_of_a_dead_foreground_is_over_by_itself(tmp_path: Path) -> None:
    back = session(tmp_path / "4.2", "background")
    assert back.page is not None
    back.page.control(1.0, (3, 1))
    session(tmp_path / "3.1", "foreground")
    SharePage(tmp_path / "3.1").words[BAN] = time.monotonic_ns()
    Bans(back).wait()
    assert not Bans(back).banned


def test_who_shares_nothing_bans_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Session({}, 0, None)
    monkeypatch.setattr(background_steps, "attach", lambda: alone)
    with collective():
        assert not Bans(alone).banned


@pytest.mark.parametrize(("samples", "most"), [(32, 8), (33, 8), (7, 8), (1, 1), (10, 3)])
def test_micro_batches_cover_a_batch(samples: int, most: int) -> None:
    parts = micro_batches(samples, most)
    sizes = [part.stop - part.start for part in parts]
    assert [each for part in parts for each in range(samples)[part]] == list(range(samples))
    assert max(sizes) <= most
    assert max(sizes) - min(sizes) <= 1
