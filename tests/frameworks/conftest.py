"""Trainers of frameworks that are too large for `make test`: `make test-frameworks` runs these."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frameworks.trained import PYTHON, Trained
from tests.system.cluster import Cluster

collect_ignore_glob = [] if PYTHON else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """A daemon with GPUs that are emulated, and what runs scripts on it."""
    folder = tmp_path_factory.mktemp("frameworks")
    os.environ.pop("HPCDL_CHECKPOINT_DIR", None)
    cluster = Cluster(folder / "home", gpus=1)
    cluster.start()
    try:
        yield Trained(cluster, folder)
    finally:
        cluster.stop()
