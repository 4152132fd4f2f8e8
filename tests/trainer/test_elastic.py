"""Ranks that are rescaled within their process: real ones, on gloo, with a small supervisor for each node."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from hpcdl.trainer import checkpoints
from hpcdl.trainer.group.membership import Membership, from_packet
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.trainer.nodes import Nodes, curve, nodes, stop
from tests.trainer.preloaded import Preloaded

pytestmark = pytest.mark.timeout(300)

ARGV = ["--steps", "100000", "--batch", "60", "--every", "1000", "--pace", "0.03"]
STILL_S = 0.3


def same_state(cluster: Nodes, number: int, ranks: int) -> int:
    """All ranks of the membership began it with the same state; its step."""
    held = until(
        lambda: (found := [each for each in cluster.lines("holds") if each[1] == str(number)])[ranks - 1 :] and found,
        f"{ranks} ranks in membership {number}: {cluster.tail()}",
    )
    assert sorted(int(each[2]) for each in held) == list(range(ranks))
    assert len({each[3] for each in held}) == 1, held
    assert len({each[4] for each in held}) == 1, held
    return int(held[0][3])


def stands_still(cluster: Nodes) -> None:
    """Returns once no step was done for some time."""
    seen = [len(cluster.lines("step")), time.monotonic()]

    def still() -> bool:
        cluster.poll()
        if (now := len(cluster.lines("step"))) != seen[0]:
            seen[:] = [now, time.monotonic()]
        return time.monotonic() - seen[1] > STILL_S

    until(still, "ranks that wait for another")


@pytest.mark.long
def test_a_story_of_memberships(tmp_path: Path, origin: Preloaded) -> None:
    with nodes(tmp_path, origin) as cluster:
        for name in "abc":
            cluster.start(name, ARGV)
        cluster.start("d", ARGV, ranks=2)
        whole = cluster.reference("--steps", "5000", "--batch", "60")
        for name in "abcd":
            cluster.wait(name, "join")
        assert cluster["a"].of("join")[0]["address"].startswith("127.0.0.1:")
        assert cluster["a"].of("attach")[0]["rank"] == 0

        first = cluster.rescale("a", "b")
        assert (first["membership"], first["step"]) == (1, 0)
        assert cluster.wait("a", "ready")["step"] == 0
        assert same_state(cluster, 1, 2) == 0
        cluster.progressed("a", 6)

        grown = cluster.rescale("a", "b", "c", "d")
        cluster.wait("d", "join", count=2)
        assert sorted(bool(each["address"]) for each in cluster["d"].of("join")) == [False, True]
        assert same_state(cluster, 2, 5) == grown["step"]
        cluster.progressed("a", 6)

        shrunk = cluster.rescale("a", "b", "c", leave=["d"])
        assert cluster.end("d") == 0
        assert same_state(cluster, 3, 3) == shrunk["step"]
        cluster.progressed("a", 6)
        assert not any(cluster[name].of("broken") for name in "abcd")

        cluster.child("b").kill()
        at = [cluster.wait(name, "broken")["step"] for name in "ac"]
        assert max(at) - min(at) <= 1
        killed = cluster.rescale("c", "a")  # the writer is another one now
        assert same_state(cluster, 4, 2) == killed["step"] == max(at)
        cluster.progressed("c", 6)
        claim = json.loads((cluster.checkpoints / "claim.json").read_text())
        assert (claim["incarnation"], claim["membership"], claim["tag"]) == (1, 4, "test:7:1:c")

        stop(cluster.child("a"))  # gone without a word: no connection is closed
        silent = cluster.rescale("c")
        assert silent["step"] >= killed["step"] + 6
        assert len(cluster["c"].of("broken")) == 1
        cluster.child("a").kill()
        cluster.progressed("c", 5)

        waiting = cluster.ask("c", "b", to=["c"])  # b is gone
        stands_still(cluster)
        overtaking = cluster.rescale("c")
        assert overtaking["membership"] == waiting + 1
        assert not any(each["membership"] == waiting for each in cluster["c"].of("reformed"))
        cluster.progressed("c", 5)

        cluster.ask("c", "b", to=["c"])
        stands_still(cluster)
        cluster["c"].send("suspend", grace_s=30)
        assert cluster.end("c") == 0
        final = cluster["c"].of("saved")[-1]
        assert final["final"] is True
        assert final["membership"] == overtaking["membership"]
        best = checkpoints.complete(cluster.checkpoints)[0]
        assert (best.step, str(best.path)) == (final["step"], final["path"])
        assert len(cluster["a"].of("ready") + cluster["c"].of("ready")) == 1

        steps = [int(words[1]) for words in cluster.lines("step")]
        assert steps == list(range(1, final["step"] + 1))  # none lost, none twice
        assert curve(cluster.lines("step")) == pytest.approx(whole(final["step"]), abs=1e-3)
        seconds = [each["seconds"] for name in "ac" for each in cluster[name].of("reformed")]
        assert len(seconds) == 6
        assert all(each >= 0 for each in seconds)


def test_at_the_gate(tmp_path: Path, origin: Preloaded) -> None:
    """Ranks that are no members yet have nothing to save, whatever ends their waiting."""
    with nodes(tmp_path, origin) as cluster:
        for name in "ab":
            cluster.start(name, ARGV)
        for name in "ab":
            cluster.wait(name, "join")
        cluster["a"].send("suspend", grace_s=30)
        cluster["b"].send("leave")
        assert [cluster.end(name) for name in "ab"] == [0, 0]
        assert [cluster[name].kinds() for name in "ab"] == [["attach", "join"]] * 2
        assert checkpoints.complete(cluster.checkpoints) == []


def test_an_older_membership_renames_nothing(tmp_path: Path, origin: Preloaded) -> None:
    with nodes(tmp_path, origin) as cluster:
        for name in "ab":
            cluster.start(name, [*ARGV, "--every", "20"])
        for name in "ab":
            cluster.wait(name, "join")
        cluster.rescale("a")
        cluster.wait("a", "saved")
        claim = {"v": 1, "job": 7, "incarnation": 1, "membership": 2, "tag": "test:7:1:z"}
        (tmp_path / "claim").write_text(json.dumps(claim))
        os.rename(tmp_path / "claim", cluster.checkpoints / "claim.json")
        before = {each.path for each in checkpoints.complete(cluster.checkpoints)}
        assert cluster.end("a") == os.EX_TEMPFAIL
        assert "membership 2 has claimed the folder" in cluster["a"].of("save_failed")[0]["why"]
        saved = {Path(each["path"]) for each in cluster["a"].of("saved")}
        assert {each.path for each in checkpoints.complete(cluster.checkpoints)} <= before | saved
        assert json.loads((cluster.checkpoints / "claim.json").read_text()) == claim
        # Nor does it form, where it comes late: the newer one's claim is there first.
        cluster.number = 0
        cluster.ask("b")
        assert cluster.end("b") == os.EX_TEMPFAIL
        assert cluster["b"].of("reformed") == []


def test_an_error_of_the_script_ends_it(tmp_path: Path, origin: Preloaded) -> None:
    script = tmp_path / "fails.py"
    script.write_text(
        "import hpcdl.trainer as hpcdl\n"
        "hpcdl.attach()\n"
        "import torch\n"
        "from hpcdl.trainer import elastic\n"
        "model = torch.nn.Linear(1, 1)\n"
        "def train(world):\n"
        "    ddp = world.wrap(model)\n"
        "    for step in world.steps():\n"
        "        if step == 3 and world.rank == 1: raise RuntimeError('shapes do not match')\n"
        "        ddp(torch.ones(1, 1)).sum().backward()\n"
        "elastic.run(train, total=1000000, model=model)\n"
    )
    with nodes(tmp_path, origin) as cluster:
        for name in "ab":
            cluster.start(name, [], script=script)
        for name in "ab":
            cluster.wait(name, "join")
        cluster.ask("a", "b")
        assert cluster.end("b") == 1
        assert "shapes do not match" in cluster.tail()
        assert cluster["b"].of("broken") == []
        assert cluster.wait("a", "broken")["step"] == 3
        cluster["a"].send("suspend", grace_s=30)
        assert cluster.end("a") == 0
        assert cluster["a"].of("saved")[-1]["step"] == 3


def test_complete(tmp_path: Path, origin: Preloaded) -> None:
    """A training that ends does so on all ranks, and what was saved goes on as another number of them."""
    with nodes(tmp_path, origin) as cluster:
        for name in "ab":
            cluster.start(name, ["--steps", "40", "--batch", "60", "--every", "15"])
        cluster.start("c", ["--steps", "50", "--batch", "60"])
        for name in "abc":
            cluster.wait(name, "join")
        cluster.rescale("a", "b")
        assert [cluster.end(name) for name in "ab"] == [0, 0]
        assert [cluster[name].of("done")[0]["step"] for name in "ab"] == [40, 40]
        assert [each["step"] for each in cluster["a"].of("saved")] == [15, 30, 40]
        assert cluster["b"].of("saved") == []
        assert cluster.rescale("c")["step"] == 40
        assert cluster.end("c") == 0
        assert [int(words[1]) for words in cluster.lines("step")] == list(range(1, 51))


def test_under_torchrun(tmp_path: Path, origin: Preloaded) -> None:
    """The ranks are started anew for each membership: what they did is committed before, at one step of all."""
    with nodes(tmp_path, origin) as cluster:
        ranks: dict[str, Any] = {"HPCDL_RESCALE": "torchrun", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}

        def start(names: str) -> None:
            port = free_port()
            for rank, name in enumerate(names):
                cluster.start(name, ARGV, RANK=str(rank), MASTER_PORT=port, **ranks)

        start("ab")
        assert cluster.wait("a", "ready")["step"] == 0
        cluster.progressed("a", 5)
        cluster["b"].send("rescale", membership=2, nodes=["a", "b"], ranks=[1, 1], address="127.0.0.1:1")
        commit = cluster.wait("a", "saved")
        assert commit["final"] is False
        cluster.progressed("a", 5)
        cluster.child("b").send_signal(signal.SIGTERM)
        assert [cluster.end(name) for name in "ab"] == [143, 143]
        last = cluster["a"].of("saved")[-1]
        assert last["final"] is False
        assert last["step"] >= commit["step"] + 5
        assert max(curve(cluster.lines("step"))) == last["step"]
        start("cd")
        assert cluster.wait("c", "ready")["step"] == last["step"]
        cluster["d"].send("suspend", grace_s=30)
        assert [cluster.end(name) for name in "cd"] == [0, 0]
        assert cluster["c"].of("saved")[-1]["final"] is True


def test_memberships() -> None:
    asked = {"membership": 3, "nodes": ["n2", "n1"], "ranks": [2, 3], "address": "[::1]:4000"}
    wanted = from_packet(asked)
    assert wanted is not None
    assert (wanted.size, wanted.store) == (5, ("::1", 4000))
    assert [wanted.rank_of("n2", 1), wanted.rank_of("n1", 0), wanted.rank_of("n1", 2)] == [1, 2, 4]
    assert [wanted.rank_of("n1", 3), wanted.rank_of("n3", 0)] == [None, None]
    wrongs: list[dict[str, Any]] = [
        {"membership": 0},
        {"membership": True},
        {"nodes": []},
        {"nodes": ["n1", "n1"]},
        {"nodes": [1, 2]},
        {"ranks": [1]},
        {"ranks": [1, 0]},
        {"ranks": None},
        {"address": "nowhere"},
        {"address": ":1"},
        {"address": "h:70000"},
        {"address": 5},
    ]
    for wrong in wrongs:
        assert from_packet(asked | wrong) is None, wrong
    assert from_packet({}) is None
    with pytest.raises(ValueError, match="must be host:port"):
        Membership(1, ("n1",), (1,), "h:x")
