"""Fixtures of the tests on the emulated LSF."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lsf.cluster import LsfCluster

MakeLsf = Callable[..., LsfCluster]


@pytest.fixture
def make_lsf(tmp_path: Path) -> Iterator[MakeLsf]:
    """Makes emulated clusters; each is ended after the test."""
    made: list[LsfCluster] = []

    def make(**settings: Any) -> LsfCluster:
        made.append(LsfCluster(tmp_path / f"lsf{len(made)}", **settings).start())
        return made[-1]

    yield make
    for cluster in made:
        cluster.stop()


@pytest.fixture
def lsf_cluster(make_lsf: MakeLsf) -> LsfCluster:
    """Hosts h1 to h4 with 4 slots and 4 GPUs each."""
    return make_lsf()
