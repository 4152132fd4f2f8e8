"""What none of the nodes that are known could run: those that are here, that were, and that pilots could hold."""

import pytest

from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.world import GpuInfo, Node, World
from hpcdl.core.rules.jobs import doubts_of


def node(name: str, gpus: int, *, cpus: int = 0, lost: bool = False) -> Node:
    return Node(name, tuple(GpuInfo(n, f"GPU-{name}-{n}") for n in range(gpus)), cpus=cpus, lost=lost)


def world(*nodes: Node) -> World:
    return World(nodes={each.name: each for each in nodes})


def job(gpus: int, nodes: int = 1, counts: tuple[int, ...] = (), cpus: int | None = None) -> JobSpec:
    return JobSpec(("x",), "x", "u", gpus_min=gpus, gpus_max=gpus if not counts else counts[-1], nodes=nodes,
                   gpus_counts=counts, cpus=cpus)  # fmt: skip


@pytest.mark.parametrize(
    "found, spec, elsewhere, said",
    [
        (world(), job(99), 0, ""),  # nothing is known
        (world(node("n1", 4)), job(4), 0, ""),
        (world(node("n1", 4)), job(99), 0, "it needs 99 GPUs on a node, and the largest has 4"),
        (world(node("n1", 4), node("n2", 8, lost=True)), job(8), 0, "the largest has 4"),
        (world(node("n1", 4, lost=True), node("n2", 8, lost=True)), job(8), 0, ""),
        (world(node("n1", 4, lost=True)), job(5), 0, "the largest has 4"),  # between two allocations
        (world(node("n1", 4)), job(8), 8, ""),
        (world(), job(99), 8, "the largest has 8"),
        (world(node("n1", 4)), job(2, nodes=2), 0, "it needs 2 nodes with 2 GPUs each, and 1 has so many"),
        (world(node("n1", 4)), job(2, nodes=2), 4, ""),
        (world(node("n1", 4)), job(2, counts=(2, 8)), 0, ""),
        (world(node("n1", 0)), job(99), 0, ""),
        (world(node("n1", 1, cpus=2)), job(1, cpus=2), 0, ""),
        (
            world(node("n1", 1, cpus=2)),
            job(1, cpus=64),
            0,
            "64 processors on a node, and the largest has 2: it runs wi",
        ),
        (world(node("n1", 1, cpus=64), node("n2", 4, cpus=2)), job(4, cpus=8), 0, "8 processors on a node, and the la"),
        (world(node("n1", 4, cpus=64), node("n2", 4, cpus=2)), job(4, cpus=8), 0, ""),
        (world(node("n1", 4, cpus=64, lost=True), node("n2", 4, cpus=2)), job(4, cpus=8), 0, "the largest has 2"),
        (world(node("n1", 1)), job(1, cpus=64), 0, ""),  # its agent did not say
        (world(node("n1", 1, cpus=2)), job(1, cpus=64), 1, ""),  # of nodes that pilots could hold nobody knows
    ],
)
def test_doubts(found: World, spec: JobSpec, elsewhere: int, said: str) -> None:
    doubts = doubts_of(found, spec, elsewhere)
    assert len(doubts) == bool(said)
    assert all(said in each for each in doubts)
