"""Trainers of frameworks, whose imports are too slow for `make test`: `make test-frameworks` runs these.

Keras and Lightning are those of an environment of their own, PyTorch that of the extra `test`.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frameworks.held import Held
from tests.frameworks.trained import PYTHON, Trained
from tests.system.cluster import Cluster
from tests.system.conftest import cluster, make_cluster

__all__ = ["cluster", "make_cluster"]  # fixtures

collect_ignore_glob = [] if PYTHON else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "holds(framework, claim...): a line of the table at the end")
    config.addinivalue_line("markers", "smoke: the one test of its framework that `make smoke-frameworks` runs")
    if PYTHON:
        config.pluginmanager.register(Held(Path(PYTHON).parents[1]), "hpcdl-held")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(900))
    # Of the smoke tests each of two workers begins with a half, and so these take about the same time.
    items.sort(key=lambda item: item.path != Path(__file__).with_name("test_torch.py"))


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
