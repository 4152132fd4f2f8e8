"""How many examples hypothesis makes: few in the suite and always the same; HPCDL_FUZZ=N makes N others each time."""

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st


def fuzzed(examples: int) -> Callable[[Any], Any]:
    """Settings of a test that is shown so many cases."""
    asked = os.environ.get("HPCDL_FUZZ")
    return settings(
        max_examples=int(asked) if asked else examples,
        derandomize=not asked,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


TEXTS = st.one_of(
    st.sampled_from(
        ["", "..", "../..", "/nonexistent/x", "a\nb", "\x1b[2J", "\x00", "\ud800", "é" * 300, "n1", "1", "-1"]
    ),
    st.sampled_from(["nan", "inf", "1e400", "9" * 5000, "null", "${HOME}", "`id`", "%s%n", "{}", "\u202e", "true"]),
    st.text(max_size=20),
)
NUMBERS = st.one_of(
    st.integers(-3, 5),
    st.integers(),
    st.floats(),
    st.sampled_from([1 << 31, 1 << 53, 1 << 63, 1 << 64, -(1 << 63), 10**400]),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=12
)
