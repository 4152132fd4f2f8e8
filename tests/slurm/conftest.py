"""Fixtures of the tests on a real Slurm: one cluster a process, put back between tests; others where a test asks."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.slurm.cluster import SlurmCluster, missing
from tests.slurm.configuration import Options


@pytest.fixture(scope="session")
def slurm_packages() -> None:
    """What asks for this is skipped where Slurm is not installed, and fails with HPCDL_REQUIRE_SLURM=1, as in CI."""
    if said := missing():
        pytest.fail(f"no real Slurm to test on: {said}", pytrace=False)


@pytest.fixture(scope="session")
def _shared(slurm_packages: None) -> Iterator[SlurmCluster]:
    cluster = SlurmCluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def slurm(_shared: SlurmCluster) -> Iterator[SlurmCluster]:
    """The cluster of this process with Options(): all idle, no jobs. Whatever a test leaves running fails it."""
    yield _shared
    _shared.reset()


@pytest.fixture
def make_slurm(slurm_packages: None) -> Iterator[Callable[..., SlurmCluster]]:
    """Starts clusters of other Options, `user=` whose; each is ended and checked after the test."""
    made: list[SlurmCluster] = []

    def make(user: str | None = None, **options: Any) -> SlurmCluster:
        made.append(SlurmCluster(Options(**options), user))
        return made[-1].start()

    yield make
    for cluster in made:
        cluster.stop()
