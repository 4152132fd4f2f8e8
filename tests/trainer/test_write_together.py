"""Checkpoints that every rank of a group writes a part of. The ranks here are threads."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hpcdl.trainer import checkpoints
from hpcdl.trainer.checkpoints import StaleIncarnation
from hpcdl.trainer.session import Session

WAIT_S = 60.0


class Group:
    """Gathers by a barrier of threads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._texts = [""] * size
        self._barrier = threading.Barrier(size)

    def gather(self, rank: int, text: str) -> list[str]:
        self._texts[rank] = text
        self._barrier.wait(WAIT_S)
        texts = list(self._texts)
        self._barrier.wait(WAIT_S)
        return texts


def save(
    directory: Path, step: int, size: int = 3, act: Callable[[int, Path], None] = lambda rank, folder: None, **more: Any
) -> list[BaseException | None]:
    """What each rank of a group raised that saves together, each a file."""
    group = Group(size)

    def run(rank: int) -> BaseException | None:
        try:
            gather = lambda text: group.gather(rank, text)  # noqa: E731
            with checkpoints.write_together(directory, step, 1, gather, rank, rank % 2, **more) as folder:
                (folder / "shards").mkdir(exist_ok=True)
                (folder / "shards" / f"{rank}.bin").write_text(f"{step} of {rank}" * (rank + 1))
                act(rank, folder)
        except BaseException as error:
            return error
        return None

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def orders(directory: Path) -> list[tuple[int, int]]:
    return [each.order for each in checkpoints.complete(directory)]


def test_every_rank_writes_into_one_checkpoint(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        assert save(tmp_path, step) == [None] * 3
    assert orders(tmp_path) == [(1, 30), (1, 20)]
    newest = checkpoints.at(tmp_path, 30, 1)
    assert (newest.path / "shards" / "2.bin").read_text() == "30 of 2" * 3
    assert checkpoints.damage(newest) == ""
    marker = json.loads((newest.path / "COMPLETE").read_text())
    assert sorted(marker["digests"]) == sorted(marker["files"]) == [f"shards/{rank}.bin" for rank in range(3)]
    (newest.path / "shards" / "1.bin").write_text("30 of 9" * 2)
    assert "shards/1.bin" in checkpoints.damage(newest)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".tmp-")]


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("raised", [OSError(errno.ENOSPC, "full"), ValueError("mistake"), KeyboardInterrupt()])
def test_what_fails_on_one_rank_fails_on_all(tmp_path: Path, rank: int, raised: BaseException) -> None:
    save(tmp_path, 10)

    def fail(number: int, folder: Path) -> None:
        if number == rank:
            raise raised

    errors = save(tmp_path, 20, act=fail)
    assert errors[rank] is raised
    others = [error for number, error in enumerate(errors) if number != rank]
    expected = OSError if isinstance(raised, OSError) else RuntimeError
    for error in others:
        assert isinstance(error, expected)
        assert f"rank {rank}: {type(raised).__name__}" in str(error)
        assert getattr(error, "errno", None) == getattr(raised, "errno", None)
    assert orders(tmp_path) == [(1, 10)]
    assert os.listdir(tmp_path) == [checkpoints.at(tmp_path, 10, 1).path.name]


def test_a_disk_that_fails_any_rank_at_its_sync_marks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 10)
    real = os.fsync

    def fsync(file: int) -> None:
        if os.readlink(f"/proc/self/fd/{file}").endswith("shards/2.bin"):
            raise OSError(errno.EIO, "the disk")
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    errors = save(tmp_path, 20)
    assert [getattr(error, "errno", None) for error in errors] == [errno.EIO] * 3
    assert orders(tmp_path) == [(1, 10)]


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_where_another_incarnation_has_claimed_all_ranks_are_stale(tmp_path: Path, when: str) -> None:
    save(tmp_path, 10)

    def claim(rank: int, folder: Path) -> None:
        if rank == 0:
            checkpoints.claim(tmp_path, 7, 2, 0, "i:7:2:n1")

    if when == "before":
        claim(0, tmp_path)
    errors = save(tmp_path, 20, act=claim if when == "meanwhile" else lambda rank, folder: None, tag="i:7:1:n1")
    assert [type(error) for error in errors] == [StaleIncarnation] * 3
    assert {error.newest for error in errors if isinstance(error, StaleIncarnation)} == {2}
    assert orders(tmp_path) == [(1, 10)]


def test_a_rank_that_ends_in_the_middle_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    """Where the others do not wait for who has ended, what they have is not the whole."""
    save(tmp_path, 10)
    answers: list[int] = []

    def gather(text: str) -> list[str]:
        answers.append(1 if len(answers) >= 2 else 2)
        return [text, '{"value": ""}'][: answers[-1]]

    with (
        pytest.raises(RuntimeError, match="a rank ended"),
        checkpoints.write_together(tmp_path, 20, 1, gather, 0) as folder,
    ):
        (folder / "0").write_text("part")
    assert orders(tmp_path) == [(1, 10)]
    assert os.listdir(tmp_path) == [checkpoints.at(tmp_path, 10, 1).path.name]


def test_ranks_that_share_no_folder_are_refused(tmp_path: Path) -> None:
    group, errors = Group(2), list[BaseException]()

    def run(rank: int) -> None:
        folder = tmp_path / f"node{rank}"
        folder.mkdir()
        try:
            with checkpoints.write_together(folder, 1, 1, lambda text: group.gather(rank, text), rank):
                raise AssertionError("nothing is to be written")
        except OSError as error:
            errors.append(error)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(2)))
    assert len(errors) == 2
    assert all("all nodes share" in str(error) for error in errors)


def test_a_rank_without_a_group_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="rank 1 is in no group with rank 0"),
        checkpoints.write_together(tmp_path, 1, 1, lambda text: [text], 1),
    ):
        raise AssertionError("nothing is to be written")


def test_a_session_says_it_once_and_holds_it_on_every_rank(tmp_path: Path) -> None:
    group = Group(2)

    class Ranks:
        def __init__(self, rank: int) -> None:
            self.rank = rank

        def gather(self, text: str) -> list[str]:
            return group.gather(self.rank, text)

    sessions = [Session({}, rank, tmp_path) for rank in range(2)]

    def run(session: Session) -> int | None:
        with session.checkpoint(5, Ranks(session.rank)) as folder:
            (folder / f"{session.rank}").write_text("part")
        found = session.resume()
        return None if found is None else found.step

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, sessions)) == [5, 5]
    assert sorted(os.listdir(checkpoints.at(tmp_path, 5, 0).path)) == ["0", "1", "COMPLETE"]
