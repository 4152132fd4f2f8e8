"""The checkpoint folder alone."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from hpcdl.trainer import checkpoints, digest, loop
from hpcdl.trainer.checkpoints import StaleIncarnation, claim
from hpcdl.trainer.group.peers import RankAgreement
from hpcdl.trainer.session import Session
from tests.support.power import Syncs


def put(directory: Path, step: int, incarnation: int, text: str = "weights") -> checkpoints.Checkpoint:
    with checkpoints.write(directory, step, incarnation) as temporary:
        (temporary / "deep" / "er").mkdir(parents=True)
        (temporary / "deep" / "er" / "w").write_text(text)
    return checkpoints.at(directory, step, incarnation)


def steps(directory: Path) -> list[tuple[int, int]]:
    return [each.order for each in checkpoints.complete(directory)]


def test_two_are_kept_and_ordered_by_incarnation_first(tmp_path: Path) -> None:
    assert checkpoints.complete(tmp_path / "none") == []
    for step, incarnation in [(10, 1), (20, 1), (30, 1), (12, 2)]:
        put(tmp_path, step, incarnation)
    assert steps(tmp_path) == [(2, 12), (1, 30)]
    marker = json.loads((tmp_path / "step-000000000012.i2" / "COMPLETE").read_text())
    assert len(marker.pop("digests")["deep/er/w"]) == 64
    assert marker == {"v": 1, "step": 12, "incarnation": 2, "files": {"deep/er/w": 7}}


@pytest.mark.parametrize("damage", ["truncate", "unlink file", "unlink marker", "garbage marker", "other step"])
def test_torn_does_not_count(tmp_path: Path, damage: str) -> None:
    put(tmp_path, 1, 1)
    torn = put(tmp_path, 2, 1).path
    marker = torn / "COMPLETE"
    match damage:
        case "truncate":
            os.truncate(torn / "deep/er/w", 3)
        case "unlink file":
            (torn / "deep/er/w").unlink()
        case "unlink marker":
            marker.unlink()
        case "garbage marker":
            marker.write_text('{"v":1')
        case "other step":
            marker.write_text(marker.read_text().replace('"step":2', '"step":3'))
    assert steps(tmp_path) == [(1, 1)]
    put(tmp_path, 2, 1)  # and is replaced when its step comes again
    assert steps(tmp_path) == [(1, 2), (1, 1)]


def test_all_of_a_checkpoint_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch)
    made = put(tmp_path, 1, 1)
    assert sorted(path.name for path in made.path.rglob("*") if path.is_file()) == ["COMPLETE", "w"]
    assert [path for path in (tmp_path, made.path, *made.path.rglob("*")) if not syncs.holds(path)] == []
    assert syncs.torn == []


@pytest.mark.parametrize("call", range(6))
def test_a_disk_full_at_any_fsync_leaves_the_previous(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    put(tmp_path, 1, 1)
    calls = 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > call:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        put(tmp_path, 2, 1)
    monkeypatch.undo()
    # With the last fsync, of the marker's folder, the checkpoint is there already: it may count, the first must.
    assert (1, 1) in steps(tmp_path)
    assert not list(tmp_path.glob(".tmp-*"))
    put(tmp_path, 3, 1)
    assert steps(tmp_path)[0] == (1, 3)


def test_failing_block_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), checkpoints.write(tmp_path, 1, 1):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="COMPLETE"), checkpoints.write(tmp_path, 1, 1) as temporary:
        (temporary / "COMPLETE").write_text("")
    assert list(tmp_path.iterdir()) == []


def test_left_overs_of_killed_saves_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".tmp-step-000000000004.i1-123").mkdir()
    (tmp_path / ".tmp-step-000000000004.i3-123").mkdir()
    (tmp_path / "mine").mkdir()
    put(tmp_path, 5, 2)
    assert sorted(os.listdir(tmp_path)) == [".tmp-step-000000000004.i3-123", "mine", "step-000000000005.i2"]


@pytest.mark.parametrize("when", ["before", "within"])
def test_newer_claim(tmp_path: Path, when: str) -> None:
    put(tmp_path, 1, 1)

    def claim(incarnation: int) -> None:
        (tmp_path / "claim.json").write_text(json.dumps({"v": 1, "job": 1, "incarnation": incarnation, "tag": ""}))

    claim(2 if when == "before" else 1)
    with pytest.raises(StaleIncarnation) as caught, checkpoints.write(tmp_path, 2, 1):
        claim(2)
    assert caught.value.code == 75
    assert steps(tmp_path) == [(1, 1)]
    assert sorted(os.listdir(tmp_path)) == ["claim.json", "step-000000000001.i1"]


@pytest.mark.parametrize(
    ("found", "stale"),
    [
        (("i", 7, 2), False),
        (("i", 7, 3), True),
        (("i", 7, 1), True),
        (("i", 8, 2), True),
        (("j", 7, 2), True),
        (("j", 7, 1), True),
        (("i", 8, 9), True),
    ],
)
def test_only_its_own_claim_lets_a_trainer_write(tmp_path: Path, found: tuple[str, int, int], stale: bool) -> None:
    instance, job, incarnation = found
    claim = {"v": 1, "job": job, "incarnation": incarnation, "tag": f"{instance}:{job}:{incarnation}:n2"}
    (tmp_path / "claim.json").write_text(json.dumps(claim))
    if not stale:
        with checkpoints.write(tmp_path, 5, 2, tag="i:7:2:n1"):
            pass
        assert steps(tmp_path) == [(2, 5)]
        return
    with pytest.raises(StaleIncarnation, match=f"attempt 2 is stale: attempt {incarnation} of") as caught:
        checkpoints.check_claim(tmp_path, 2, "i:7:2:n1")
    assert (str(claim["tag"]) in str(caught.value)) is ((instance, job) != ("i", 7))
    with pytest.raises(StaleIncarnation), checkpoints.write(tmp_path, 5, 2, tag="i:7:2:n1"):
        pass
    assert os.listdir(tmp_path) == ["claim.json"]


def test_unreadable_claim_is_no_licence(tmp_path: Path) -> None:
    (tmp_path / "claim.json").write_text("{")
    with pytest.raises(OSError, match="claim"):
        put(tmp_path, 1, 1)
    assert os.listdir(tmp_path) == ["claim.json"]


def test_same_step_again_keeps_the_first(tmp_path: Path) -> None:
    put(tmp_path, 1, 1, "first")
    path = put(tmp_path, 1, 1, "second").path
    assert (path / "deep/er/w").read_text() == "first"


ONE, OTHER = f"i:7:2:n1:{'a' * 32}:{'1' * 16}", f"i:7:2:n1:{'a' * 32}:{'2' * 16}"
"""Tags of two starts of one number: those of a home, and of a copy of it."""


def test_another_start_of_the_same_number_has_the_folder(tmp_path: Path) -> None:
    claim(tmp_path, 7, 2, 1, ONE)
    assert json.loads((tmp_path / "claim.json").read_text())["nonce"] == "1" * 16
    checkpoints.check_claim(tmp_path, 2, ONE.replace("n1", "n2"), 1)
    checkpoints.check_claim(tmp_path, 2, "i:7:2:n1", 1)  # of an earlier version
    with (
        pytest.raises(StaleIncarnation, match="another start with that number, of a copied home, has the folder"),
        checkpoints.write(tmp_path, 5, 2, tag=OTHER, membership=1),
    ):
        pass
    assert steps(tmp_path) == []
    with pytest.raises(StaleIncarnation):
        claim(tmp_path, 7, 2, 2, OTHER)


def test_a_step_that_another_start_of_that_number_wrote_is_written_again(tmp_path: Path) -> None:
    for tag, text in ((ONE, "one"), (ONE, "again"), (OTHER, "other")):
        with checkpoints.write(tmp_path, 5, 2, tag=tag) as temporary:
            (temporary / "w").write_text(text)
        found = checkpoints.complete(tmp_path)[0].path
        assert (found / "w").read_text() == ("other" if tag == OTHER else "one")
        assert json.loads((found / "COMPLETE").read_text())["nonce"] == tag[-16:]


def test_a_copy_names_the_start_that_wrote_it(tmp_path: Path) -> None:
    local, shared = tmp_path / "local", tmp_path / "shared"
    with checkpoints.write(local, 5, 1, tag=ONE.replace(":2:", ":1:")) as temporary:
        (temporary / "w").write_text("w")
    later = checkpoints.Tier(shared, 2, OTHER)
    copy = checkpoints.drain(checkpoints.complete(local)[0], shared, later)
    assert copy is not None
    assert json.loads((copy.path / "COMPLETE").read_text())["nonce"] == "1" * 16


def test_the_last_checkpoint_replaces_one_of_its_step_in_both_tiers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is there before anything of that one is removed: a kill on the way costs no checkpoint."""
    local, shared = tmp_path / "local", tmp_path / "shared"
    tier, remove, seen = checkpoints.Tier(shared, 1, ONE), shutil.rmtree, []

    def watched(path: Path, **more: Any) -> None:
        if "-old-" in str(path):
            seen.append([(each.path / "w").read_text() for each in checkpoints.complete(Path(path).parent)])
        remove(path, **more)

    monkeypatch.setattr(shutil, "rmtree", watched)
    for text in ("one", "last"):
        with checkpoints.write(local, 5, 1, replace=True, tag=ONE) as temporary:
            (temporary / "w").write_text(text)
        for _ in range(2):
            copy = checkpoints.drain(checkpoints.complete(local)[0], shared, tier)
            assert copy is not None
            assert (copy.path / "w").read_text() == text
    assert seen == [["last"], ["last"]]


def test_a_claim_of_memberships(tmp_path: Path) -> None:
    """The newest membership of the newest incarnation of the job has the folder; nobody older gets it back."""
    directory = tmp_path / "new"
    claim(directory, 7, 2, 1, "i:7:2:n1")
    claim(directory, 7, 2, 3, "i:7:2:n2")
    found = json.loads((directory / "claim.json").read_text())
    assert found == {"v": 1, "job": 7, "incarnation": 2, "membership": 3, "tag": "i:7:2:n2"}
    claim(directory, 7, 2, 3, "i:7:2:n2")
    for incarnation, membership, tag in [
        (2, 2, "i:7:2:n1"),
        (1, 9, "i:7:1:n1"),
        (2, 4, "i:8:2:n1"),
        (2, 4, "x:7:2:n1"),
    ]:
        with pytest.raises(StaleIncarnation):
            claim(directory, int(tag.split(":")[1]), incarnation, membership, tag)
    assert json.loads((directory / "claim.json").read_text()) == found
    assert os.listdir(directory) == ["claim.json"]
    with (
        pytest.raises(StaleIncarnation, match="membership 3 has claimed the folder"),
        checkpoints.write(directory, 5, 2, tag="i:7:2:n1", membership=2) as temporary,
    ):
        (temporary / "w").write_text("w")
    assert checkpoints.complete(directory) == []
    with checkpoints.write(directory, 5, 2, tag="i:7:2:n2", membership=3) as temporary:
        (temporary / "w").write_text("w")
    assert steps(directory) == [(2, 5)]
    checkpoints.check_claim(directory, 2, "i:7:2:n2", 4)
    (directory / "claim.json").write_text(json.dumps({"v": 1, "job": 7, "incarnation": 2, "tag": "i:7:2:n1"}))
    checkpoints.check_claim(directory, 2, "i:7:2:n2")  # none named: membership 0


def test_a_claim_waits_for_whoever_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcdl.trainer.checkpoints.LOCK_WAIT_S", 0.05)
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        claim(tmp_path, 7, 1, 1, "i:7:1:n1")  # but not for ever
    finally:
        os.close(held)
    assert json.loads((tmp_path / "claim.json").read_text())["membership"] == 1


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def session(directory: Path) -> Session:
    return Session({}, None, directory)


@pytest.mark.parametrize("how", ["flipped", "cut", "missing", "garbage marker", "flipped digest", "size", "name"])
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(tmp_path: Path, how: str) -> None:
    for step in (1, 2):
        put(tmp_path, step, 1)
    newest = checkpoints.at(tmp_path, 2, 1).path
    match how:
        case "flipped":
            flip(newest / "deep/er/w")
        case "cut":
            os.truncate(newest / "deep/er/w", 3)
        case "missing":
            (newest / "deep/er/w").unlink()
        case "garbage marker":
            (newest / "COMPLETE").write_text("{")
        case "size" | "name":
            marker = json.loads((newest / "COMPLETE").read_text())
            marker["files"] |= {"deep/er/w": float("inf")} if how == "size" else {"deep/er/\0": 1}
            (newest / "COMPLETE").write_text(json.dumps(marker))
        case _:
            marker = json.loads((newest / "COMPLETE").read_text())
            marker["digests"]["deep/er/w"] = "00" * 32
            (newest / "COMPLETE").write_text(json.dumps(marker))
    found = session(tmp_path).resume()
    assert found is not None
    assert found.step == 1
    assert checkpoints.aside(tmp_path) == ["damaged-step-000000000002.i1"]
    for step in (3, 4, 5):
        put(tmp_path, step, 1)
    assert steps(tmp_path) == [(1, 5), (1, 4)]
    assert checkpoints.aside(tmp_path) == ["damaged-step-000000000002.i1"], "it is kept"


def test_where_all_are_damaged_nothing_begins_anew_in_silence(tmp_path: Path) -> None:
    for step in (1, 2):
        flip(put(tmp_path, step, 1).path / "deep/er/w")
    for _ in range(2):  # the second time they are aside already
        with pytest.raises(
            checkpoints.DamagedCheckpoints, match="no checkpoint is left that is whole: damaged-step"
        ) as told:
            session(tmp_path).resume()
        assert told.value.code == os.EX_DATAERR
    os.rename(tmp_path / "damaged-step-000000000001.i1", tmp_path / "step-000000000001.i1")
    flip(tmp_path / "step-000000000001.i1/deep/er/w")  # as it was
    found = session(tmp_path).resume()
    assert found is not None
    assert found.step == 1


def test_a_checkpoint_of_an_earlier_version_has_no_digests(tmp_path: Path) -> None:
    path = put(tmp_path, 1, 1).path
    marker = json.loads((path / "COMPLETE").read_text())
    del marker["digests"]
    (path / "COMPLETE").write_text(json.dumps(marker))
    flip(path / "deep/er/w")
    found = session(tmp_path).resume()
    assert found is not None
    assert found.step == 1


def test_a_digest_is_of_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "PIECE", 10)
    (tmp_path / "a").write_bytes(b"0123456789" * 3 + b"end")
    (tmp_path / "empty").touch()
    whole = hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in (*[b"0123456789"] * 3, b"end")))
    empty = hashlib.sha256(hashlib.sha256().digest())
    wanted = {"a": whole.hexdigest(), "empty": empty.hexdigest()}
    assert digest.digests(tmp_path, ["a", "empty"]) == wanted
    monkeypatch.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("no more threads")))
    assert digest.digests(tmp_path, ["a", "empty"]) == wanted


class Two(RankAgreement):
    """Two ranks that are threads: what rank 0 found is what both load."""

    def __init__(self, number: int, meet: threading.Barrier, board: list[Any]) -> None:
        self._number, self._meet, self._board = number, meet, board

    def _all(self, value: Any) -> list[Any]:
        self._board[self._number] = value
        self._meet.wait(60)
        found = list(self._board)
        self._meet.wait(60)
        return found

    def any(self, flag: bool) -> bool:
        return any(self._all(flag))

    agree = any

    def choose(self, found: checkpoints.Checkpoint | None) -> checkpoints.Checkpoint | None:
        first: checkpoints.Checkpoint | None = self._all(found)[0]
        return first

    def barrier(self) -> None:
        self._all(None)


def test_all_ranks_load_what_rank_0_found_whole(tmp_path: Path) -> None:
    for step in (1, 2):
        put(tmp_path, step, 1)
    flip(checkpoints.at(tmp_path, 2, 1).path / "deep/er/w")
    meet, board, loaded = threading.Barrier(2), [None, None], list[tuple[int, str]]()

    def rank(number: int) -> None:
        mine = Session({"RANK": str(number)}, None, tmp_path)
        loop.resume(mine, lambda path: loaded.append((number, path.name)), Two(number, meet, board))

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert sorted(loaded) == [(0, "step-000000000001.i1"), (1, "step-000000000001.i1")]
    assert checkpoints.aside(tmp_path) == ["damaged-step-000000000002.i1"]


def test_of_other_jobs_nothing_counts_and_nothing_is_removed(tmp_path: Path) -> None:
    for step, whose in [(10, "theirs"), (20, "theirs"), (1, ""), (2, "mine"), (3, "mine"), (4, "mine")]:
        with checkpoints.write(tmp_path, step, 1, identity=whose, tag="i:7:1:n" if whose else "") as temporary:
            (temporary / "w").write_text("x")
    assert [each.step for each in checkpoints.complete(tmp_path, "mine")] == [4, 3]
    assert [each.step for each in checkpoints.complete(tmp_path)] == [20, 10, 4, 3], "whoever may go on from any"
