"""How many generated cases a test looks at: all that it names in `make test-all`, every third in `make test`; and
HPCDL_TEST_SEEDS times as many, and others each time (tests/conftest.py)."""

import os

from tests.support.extent import ALL

TIMES = float(os.environ.get("HPCDL_TEST_SEEDS", "1")) * (1 if ALL else 1 / 3)


def seeds(many: int) -> int:
    """At least one."""
    return max(1, round(many * TIMES))
