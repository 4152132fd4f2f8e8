"""Burst-parallel plans on four real ranks, on gloo: against one process, suspended, and rescaled in place."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from hpcdl.trainer import checkpoints
from hpcdl.trainer.burst import widths
from hpcdl.trainer.stages import overlaps, rows
from tests.support.waiting import until
from tests.trainer.nodes import Nodes, nodes
from tests.trainer.preloaded import PLAIN, ROOT, Forked, Preloaded, ended
from tests.trainer.supervisor import Supervisor, supervisor

pytestmark = pytest.mark.timeout(300)

RANKS = Path(__file__).with_name("burst_ranks.py")
FIT = Path(__file__).with_name("burst_fit.py")


def start(origin: Preloaded, argv: list[list[str]], folder: Path, **env: str) -> list[Forked]:
    """A rank for each of these command lines, as `hpcdl.trainer.ranks` starts them; outputs in `folder`/0, 1, ..."""
    folder.mkdir(exist_ok=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HPCDL_")}
    clean |= {**PLAIN, "PYTHONPATH": str(ROOT), "HPCDL_LOCAL_RANKS": str(len(argv))}
    clean |= {"HPCDL_LOCAL_STORE": str(folder / "store"), **env}
    children = []
    for rank, each in enumerate(argv):
        with (folder / str(rank)).open("wb") as output:
            own = {"HPCDL_LOCAL_RANK": str(rank), "HPCDL_RANK": str(rank)}
            children.append(origin.start(each, clean | own, output))
    return children


def lines(path: Path, first: str) -> list[list[str]]:
    """Those that begin with this word and are whole, in words."""
    found = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [line.split() for line in found if line.startswith(first + " ") and line.endswith("\n")]


def losses(path: Path) -> dict[int, str]:
    return {int(words[1]): words[2] for words in lines(path, "step")}


def test_gradients_are_those_of_one_process(tmp_path: Path, origin: Preloaded) -> None:
    argv = [[str(RANKS), str(rank), "4", str(tmp_path / "meet")] for rank in range(4)]
    codes = ended(start(origin, argv, tmp_path / "ranks"))
    said = [(tmp_path / "ranks" / str(rank)).read_text() for rank in range(4)]
    assert codes == [0] * 4, "\n".join(each[-2000:] for each in said)
    cases = [json.loads(line) for line in said[0].splitlines() if line.startswith("{")]
    assert {(each["model"], tuple(each["plan"]), each["batch"]) for each in cases} >= {
        ("residual", plan, batch)
        for plan in ((4, 4, 2, 1), (1, 2, 4, 4), (4, 1, 4, 2), (3, 4, 2, 3))
        for batch in range(3, 14)
    }
    for case in cases:
        if case["dtype"] == "float64":
            assert case["relative"] < 1e-14, case
        assert max(case["absolute"], case["buffers"], case["loss"]) < 1e-6, case
    for each in said:
        mixed = [json.loads(line.partition(" ")[2]) for line in each.splitlines() if line.startswith("amp ")]
        assert [case["dtype"] for case in mixed] == ["bfloat16", "float16"]
        assert max(case["off"] for case in mixed) < 0.1, mixed
        assert 2 < mixed[1]["skips"] < 18, mixed
        assert mixed[1]["scales"] == 1, mixed  # all ranks skipped the same steps
        assert each.count("is in two stages") == 3, each[-2000:]
        assert "refused the loss must give the mean over its samples, not (2,) numbers\n" in each


def test_suspended_at_any_step(tmp_path: Path, origin: Preloaded) -> None:
    """Every loss and the last state are those of a run that nothing happened to, bit by bit."""
    chance = random.Random(5)
    found: dict[int, str] = {}
    for turn in range(3):
        folder = tmp_path / f"turn{turn}"
        with supervisor(tmp_path / f"run{turn}", tmp_path / "checkpoints") as parent:
            env = {"HPCDL_SOCKET": str(parent.run / "s"), "HPCDL_JOB": "7", "HPCDL_INCARNATION": str(turn + 1)}
            env |= {"HPCDL_SIGNAL": "hpcdl", "HPCDL_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
            children = start(origin, [[str(FIT), "--steps", "1000000", "--pace", "0.02"]] * 4, folder, **env)
            try:
                hear(parent, children, len(found) + chance.randrange(1, 12), folder / "0")
                parent.send("suspend", grace_s=60)
                assert [parent.end(cast("subprocess.Popen[str]", child)) for child in children] == [0] * 4
            finally:
                for child in children:
                    child.kill()
                    child.wait()
            done = losses(folder / "0")
            assert not found.keys() & done.keys()
            found |= done
            assert parent.of("saved")[-1]["step"] == len(found) == max(found)
    assert losses(reference(origin, tmp_path / "whole", len(found), "0:4")) == found
    assert state(tmp_path / "checkpoints") == state(tmp_path / "whole")


def hear(parent: Supervisor, children: list[Forked], step: int, path: Path) -> None:
    """Returns once the step is done, and reads what the ranks say meanwhile."""

    def reached() -> bool:
        parent.poll()
        assert all(child.poll() is None for child in children), path.read_text()
        return max(losses(path), default=0) >= step

    until(reached, f"step {step}")


def state(folder: Path) -> list[bytes]:
    """Model (with BatchNorm's statistics), optimizer and schedule, as they were written in a checkpoint or a folder."""
    best = checkpoints.complete(folder)
    place = best[0].path if best else folder
    return [(place / f"{name}.pt").read_bytes() for name in ("model", "optimizer", "scheduler")]


def reference(origin: Preloaded, folder: Path, steps: int, changes: str) -> Path:
    """What rank 0 said of a run with these plans to which nothing happened; its last state is in `folder`."""
    command = [str(FIT), "--steps", str(steps), "--changes", changes, "--out", str(folder)]
    children = start(origin, [command] * 4, folder)
    assert ended(children) == [0] * 4, (folder / "0").read_text()
    return folder / "0"


def same_state(cluster: Nodes, number: int, ranks: int) -> int:
    """All ranks of the membership began it with the same state; its step."""
    held = until(
        lambda: (found := [each for each in cluster.lines("holds") if each[1] == str(number)])[ranks - 1 :] and found,
        f"{ranks} ranks in membership {number}: {cluster.tail()}",
    )
    assert len({(each[3], each[4]) for each in held}) == 1, held
    return int(held[0][3])


def test_a_new_plan_in_place(tmp_path: Path, origin: Preloaded) -> None:
    """4 ranks, 2, and 4 again: bit by bit as a run whose plan changed at these steps, and whose ranks stayed."""
    argv = ["--steps", "1000000", "--pace", "0.02"]
    with nodes(tmp_path, origin) as cluster:
        for name in "abcd":
            cluster.start(name, argv, script=FIT)
        for name in "abcd":
            cluster.wait(name, "join")
        assert cluster.rescale("a", "b", "c", "d")["step"] == 0
        cluster.progressed("a", 5)
        for name in "ef":
            cluster.start(name, argv, script=FIT)
        for name in "ef":
            cluster.wait(name, "join")
        # Rank 0, which alone had a part in everything, is one of those that go.
        shrunk = cluster.rescale("b", "c", leave=["a", "d"])
        assert [cluster.end(name) for name in "ad"] == [0, 0]
        assert same_state(cluster, 2, 2) == shrunk["step"]
        cluster.progressed("b", 5)
        grown = cluster.rescale("e", "b", "c", "f")
        assert same_state(cluster, 3, 4) == grown["step"]
        cluster.progressed("e", 5)
        # A rank is lost without a word: the step that was under way is done again.
        cluster.child("f").kill()
        broken = [cluster.wait(name, "broken")["step"] for name in "ebc"]
        lost = cluster.rescale("e", "b", "c")
        assert lost["step"] in broken
        assert same_state(cluster, 4, 3) == lost["step"]
        cluster.progressed("e", 5)
        cluster["e"].send("suspend", grace_s=60)
        assert [cluster.end(name) for name in "ebc"] == [0, 0, 0]
        steps = cluster["e"].of("saved")[-1]["step"]
        changes = f"0:4,{shrunk['step']}:2,{grown['step']}:4,{lost['step']}:3"
        whole = losses(reference(origin, tmp_path / "reference", steps, changes))
        assert sorted(whole) == list(range(1, steps + 1))
        assert losses(cluster.log) == whole
        assert state(cluster.checkpoints) == state(tmp_path / "reference")


def test_blocks() -> None:
    for batch in range(1, 14):
        for width in range(1, 6):
            blocks = [rows(batch, width, rank) for rank in range(width)]
            assert [each for first, end in blocks for each in range(first, end)] == list(range(batch))
            assert max(end - first for first, end in blocks) == -(-batch // width)
            assert rows(batch, width, width) == (batch, batch)
            for other in range(1, 6):
                moved = {
                    (rank, peer): end - first
                    for rank in range(width)
                    for peer, first, end in overlaps(batch, width, other, rank)
                }
                back = {
                    (rank, peer): end - first
                    for rank in range(other)
                    for peer, first, end in overlaps(batch, other, width, rank)
                }
                assert moved == {(one, two): size for (two, one), size in back.items()}
                assert sum(moved.values()) == batch


def test_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    by_size: Mapping[int, list[int]] = {2: [2, 1]}
    assert widths(None, 3, 4) == [4, 4, 4]
    monkeypatch.setenv("HPCDL_BURST_PLANS", '{"1":[1,1],"2":[2,1],"4":[4,2]}')
    assert [widths(None, 2, size) for size in (1, 2, 3, 5)] == [[1, 1], [2, 1], [2, 1], [4, 2]]
    with pytest.raises(ValueError, match="for each of 3 stages"):
        widths(None, 3, 4)
    assert widths([4, 2, 1], 3, 2) == [2, 2, 1]
    assert widths(by_size, 2, 2) == [2, 1]
    assert widths(lambda size: [size, 1], 2, 3) == [3, 1]
    with pytest.raises(ValueError, match="no plan for 3 ranks, only for 2"):
        widths(by_size, 2, 3)
    for wrong in ([1], [0, 1], [1, 1, 1]):
        with pytest.raises(ValueError, match="for each of 2 stages"):
            widths(wrong, 2, 4)
    with pytest.raises(ValueError, match="from 1 to 2"):
        widths(lambda size: [4, 1], 2, 2)
