"""Fixtures of the tests with real daemons, agents and trainers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.cluster import Cluster


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Makes clusters; each is ended and checked after the test."""
    made: list[Cluster] = []

    def make(gpus: int = 4, **settings: Any) -> Cluster:
        made.append(Cluster(tmp_path / f"home{len(made)}", gpus, **settings))
        return made[-1]

    yield make
    for cluster in made:
        cluster.stop()


@pytest.fixture(scope="module")
def _kept() -> Iterator[list[Cluster]]:
    kept: list[Cluster] = []
    yield kept
    for cluster in kept:
        cluster.stop()


@pytest.fixture
def kept_cluster(_kept: list[Cluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """As `cluster`, and a file's tests share it: each finds it without a job, with its daemon, agent and GPUs in order;
    where that cannot be had any more, it is ended and checked, and the next test gets another."""
    if not _kept:
        _kept.append(Cluster(tmp_path_factory.mktemp("kept") / "home").start())
    yield _kept[0]
    if not _kept[0].tidied():
        _kept.pop().stop()


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """A running daemon with its agent and 4 emulated GPUs on node n1."""
    return make_cluster().start()
