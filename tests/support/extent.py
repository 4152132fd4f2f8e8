"""How much the tests look at: `make test` at one of each kind, `make test-all` (HPCDL_TEST_ALL=1) at all of them.

A test that is marked `long` runs in `make test-all`, and where it is asked for by its name.
"""

import os
from typing import Any

import pytest

ALL = os.environ.get("HPCDL_TEST_ALL") == "1"


def one_of(first: Any, *others: Any) -> list[Any]:
    """Values for `parametrize`: the first is looked at always, the others are its repetitions. A tuple is a value for
    several names."""
    return [
        first,
        *(pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=pytest.mark.long) for each in others),
    ]
