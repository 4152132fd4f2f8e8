"""What a supervisor concludes from the ranks that torchrun starts: when a membership has formed, when one has lost a
node, and for how long nothing was trained."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcdl.agent.supervisor import memberships
from hpcdl.agent.supervisor.memberships import Memberships
from hpcdl.agent.supervisor.packets import ReadyPacket, RescalePacket
from hpcdl.agent.supervisor.ranks import Rank, TrainerProcesses
from hpcdl.agent.supervisor.start_file import Start

START = Start("i:7:2:n1", 7, 2, 1, "n1", ("train",), "/", {}, "/log", rescale="torchrun")


class Node:
    """The first one, at moments that the test names. `said`: its records."""

    def __init__(self, start: Start = START) -> None:
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.ranks: list[Any] = []
        self.trainer = SimpleNamespace(attached=True, living_ranks=self.ranks, below=lambda: self.ranks)
        self._pid = 100
        self.memberships = Memberships(start, cast(TrainerProcesses, self.trainer), self._record, lambda *_, **__: None)

    def _record(self, kind: str, **body: object) -> None:
        self.said.append((kind, body))

    def order(self, number: int, *nodes: str, at: float, each: int = 1) -> None:
        packet = RescalePacket(number, nodes, (each,) * len(nodes), "127.0.0.1:7000")
        self.memberships.order(packet, at)

    def begin(self, world: int, at: float, each: int = 1, ready: bool = True) -> None:
        """Ranks in the place of those that ran."""
        self.ranks.clear()
        for number in range(each):
            self._pid += 1
            rank = SimpleNamespace(pid=self._pid, number=number, world=world, ready_step=None)
            self.ranks.append(rank)
            if ready:
                self.memberships.on_rank(cast(Rank, rank), ReadyPacket(world), at)

    def look(self, at: float, until: float | None = None, ends: bool = False) -> list[tuple[str, dict[str, Any]]]:
        """What it says from `at` on, looking ten times a second."""
        before = len(self.said)
        for tenth in range(int(10 * ((at if until is None else until) - at)) + 1):
            self.memberships.look(at + tenth / 10, 5, ends)
        return self.said[before:]


def formed(node: Node, *nodes: str, each: int = 1) -> None:
    """In a membership 1 that has trained up to the 100th second."""
    node.order(1, *nodes, at=0.0, each=each)
    node.begin(len(nodes) * each, at=9.0, each=each)
    kind, body = node.look(10.0)[0]
    assert (kind, body["membership"], body["seconds"]) == ("reformed", 1, 9.0)
    node.memberships.trained(100.0)


def test_a_lost_node_is_told_and_what_is_left_has_formed_at_once() -> None:
    node = Node()
    formed(node, "n1", "n2", "n3")
    assert not node.look(100.0, 101.0)
    node.begin(2, at=108.0)
    said = node.look(108.0, 130.0)
    assert said == [("broken", {"membership": 1, "step": 5, "why": "torchrun goes on with 2 of 3 ranks"})]
    node.order(2, "n1", "n3", at=131.0)
    assert node.look(131.0)[-1] == ("reformed", {"membership": 2, "step": 2, "seconds": 8.0})
    assert not node.look(132.0, 300.0)


def test_a_world_that_is_smaller_for_a_moment_is_no_loss() -> None:
    node = Node()
    formed(node, "n1", "n2", each=2)
    node.begin(2, at=108.0, each=2, ready=False)
    assert not node.look(108.0, 108.0 + memberships.SMALLER_S - 0.5)
    node.begin(4, at=110.0, each=2)  # the other came
    assert not node.look(110.0, 120.0)
    node.begin(2, at=120.0, each=2, ready=False)
    assert not node.look(120.0, 120.0 + memberships.SMALLER_S - 0.5)
    node.begin(4, at=122.0, each=2)
    assert not node.look(122.0, 200.0)


def test_what_is_asked_for_is_no_loss() -> None:
    node = Node()
    formed(node, "n1", "n2")
    node.order(2, "n1", at=110.0)
    node.begin(1, at=118.0)
    assert node.look(118.0, 140.0) == [("reformed", {"membership": 2, "step": 1, "seconds": 18.0})]
    node.memberships.trained(150.0)
    node.order(3, "n1", "n2", "n3", at=151.0)
    assert not node.look(151.0, 160.0)  # those of before train on
    node.memberships.trained(160.0)
    node.begin(2, at=165.0)  # one of the two came first
    node.memberships.trained(166.0)
    node.begin(3, at=171.0)
    assert node.look(171.0, 300.0) == [("reformed", {"membership": 3, "step": 3, "seconds": 5.0})]
    node.begin(4, at=310.0)  # one that was left out comes back, and is still to be told to leave
    assert not node.look(310.0, 400.0)


def test_a_membership_that_does_not_form_has_lost_a_node() -> None:
    node = Node()
    formed(node, "n1")
    node.order(2, "n1", "n2", at=110.0)
    late = 110.0 + memberships.FORMING_S + memberships.SMALLER_S
    assert not node.look(110.0, late - 0.5)
    assert [kind for kind, _ in node.look(late - 0.5, late + 1.0)] == ["broken"]


@pytest.mark.parametrize("ends", [False, True])
def test_ranks_that_ended_and_are_not_started_again(ends: bool) -> None:
    node = Node()
    formed(node, "n1", "n2")
    node.ranks.clear()
    assert not node.look(110.0, 110.0 + memberships.GONE_S - 0.5, ends)
    said = node.look(110.0 + memberships.GONE_S, 180.0, ends)
    assert said == ([] if ends else [("broken", {"membership": 1, "step": 5, "why": WAITS})])


WAITS = "its ranks ended, and torchrun starts no others without 2"


def test_ranks_that_live_on_lost_nothing() -> None:
    """Where the same nodes are asked for again, torchrun has nothing to do."""
    node = Node()
    formed(node, "n1", "n2")
    node.order(2, "n1", "n2", at=110.0)
    same = 110.0 + memberships.UNCHANGED_S
    assert not node.look(110.0, same - 0.5)
    assert node.look(same, same + 1.0) == [("reformed", {"membership": 2, "step": 2, "seconds": 0.0})]


def test_only_the_first_node_says_so() -> None:
    node = Node()
    node.order(1, "n2", "n1", at=0.0)
    node.begin(2, at=9.0)
    node.look(10.0, 20.0)
    node.begin(1, at=30.0)
    node.look(30.0, 100.0)
    assert [kind for kind, _ in node.said] == ["rescaling"]
