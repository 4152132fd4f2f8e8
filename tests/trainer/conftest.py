"""Fixtures of the trainer library's tests."""

import importlib.util
from collections.abc import Iterator

import pytest

from tests.trainer.preloaded import Preloaded, preloaded


@pytest.fixture(scope="module")
def origin() -> Iterator[Preloaded]:
    """A process with PyTorch, from which ranks are forked."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    with preloaded() as made:
        yield made
