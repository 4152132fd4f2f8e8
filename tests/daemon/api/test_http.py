"""Values of a request's body: within their limits, or refused with what they must be."""

import math

import pytest

from hpcdl.daemon.api.http import ApiProblem, number_in


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 10**400, -(10**400), True, "7", None, [7]])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(ApiProblem, match=r"^for_s must be a number of seconds$"):
        number_in({"for_s": value}, "for_s", 3600.0, what="a number of seconds")


def test_a_number_outside_of_its_limits_is_refused_with_them() -> None:
    assert number_in({"part": 1}, "part", 0.5, 0.0, 1.0) == 1.0
    with pytest.raises(ApiProblem, match=r"^part must be a number from 0 to 1$"):
        number_in({"part": 1.5}, "part", 0.5, 0.0, 1.0)
