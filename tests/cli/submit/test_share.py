"""`hpcdl submit --share` and `--gpu-memory`: what a job agrees to on its GPUs."""

from typing import Any

import pytest

from hpcdl.core.model.job import Sharing
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", {"share": None, "gpu_memory_mib": None}),
        ("--share foreground", {"share": {"role": "foreground", "slowdown": 0.1}}),
        ("--share foreground:5", {"share": {"role": "foreground", "slowdown": 0.05}}),
        ("--share foreground:2.5%", {"share": {"role": "foreground", "slowdown": 0.025}}),
        ("--share Background --gpu-memory 6G", {"share": {"role": "background", "slowdown": None},
                                                "gpu_memory_mib": 6144}),
    ],
)  # fmt: skip
def test_what_a_job_agrees_to_is_sent(fake: FakeDaemon, hpcdl: Run, options: str, expected: dict[str, Any]) -> None:
    assert hpcdl("submit", *options.split(), "--", "x.py").code == 0
    spec = fake.requests[-1][2]["jobs"][0]
    assert {key: spec[key] for key in expected} == expected


@pytest.mark.parametrize(
    "wrong", ["both", "foreground:", "foreground:0", "foreground:101", "foreground:x", "background:5", ""]
)
def test_what_is_no_agreement_is_refused(fake: FakeDaemon, hpcdl: Run, wrong: str) -> None:
    before = len(fake.requests)
    result = hpcdl("submit", "--share", wrong, "--", "x.py")
    assert result.code == 2
    assert "--share" in result.err
    assert len(fake.requests) == before


def test_an_agreement_is_checked_wherever_it_comes_from() -> None:
    assert Sharing("foreground").slowdown == 0.1
    for role, slowdown in (("secondary", None), ("background", 0.1), ("foreground", 0.0), ("foreground", 1.01)):
        with pytest.raises(ValueError, match=r"foreground|slowdown"):
            Sharing(role, slowdown)
