"""How many generated cases a test looks at: HPCDL_TEST_SEEDS times as many as it does by itself, and others each time
(tests/conftest.py)."""

import os

TIMES = float(os.environ.get("HPCDL_TEST_SEEDS", "1"))


def seeds(many: int) -> int:
    """At least one."""
    return max(1, round(many * TIMES))
