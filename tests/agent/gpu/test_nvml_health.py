"""What NVML tells of a GPU's health, from a library of ours in the driver's place."""

from pathlib import Path
from typing import Any

import pytest

from tests.agent.gpu.test_nvml import GOOD_0, GOOD_1, ask, compile_fake

NOTHING: dict[str, Any] = {
    "ecc_uncorrected": None,
    "remap_pending": None,
    "remap_failed": None,
    "retired_pending": None,
    "slowdown": [],
    "xids": [],
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_fake(tmp_path_factory.mktemp("nvml") / "lib")


def of(phase: dict[str, Any], index: int = 0) -> tuple[dict[str, Any], list[int]]:
    sample = phase["samples"][index]
    return sample["health"], sample["xids"]


def test_what_a_driver_tells(library: Path, tmp_path: Path) -> None:
    bad = f"{GOOD_0} ecc=3 retired=1 remap=1,1 reasons=96"
    said = ask(library, tmp_path, f"{bad}\n{GOOD_1}")
    health, xids = of(said["phases"][0])
    assert health == {
        "ecc_uncorrected": 3,
        "remap_pending": True,
        "remap_failed": True,
        "retired_pending": True,
        "slowdown": ["software thermal", "hardware thermal"],
        "xids": [],
    }
    assert xids == []
    well, _ = of(said["phases"][0], 1)
    assert well == NOTHING | dict.fromkeys(("remap_pending", "remap_failed", "retired_pending"), False) | {
        "ecc_uncorrected": 0
    }


def test_xids_are_told_once_each_to_the_right_gpu(library: Path, tmp_path: Path) -> None:
    said = ask(
        library,
        tmp_path,
        f"{GOOD_0} xids=13\n{GOOD_1}",
        f"{GOOD_0} xids=13\n{GOOD_1} xids=79,48",
        f"{GOOD_0} xids=13,94\n{GOOD_1} xids=79,48",
        f"{GOOD_0} xids=13,94\n{GOOD_1} xids=79,48",
    )
    told = [[of(phase, index)[1] for index in (0, 1)] for phase in said["phases"]]
    assert told == [[[], []], [[], [79, 48]], [[94], []], [[], []]]
    assert said["inits"] == 1


def test_a_lost_gpu_still_tells_its_xid(library: Path, tmp_path: Path) -> None:
    said = ask(library, tmp_path, GOOD_0, f"{GOOD_0} call=15 xids=79")
    sample = said["phases"][1]["samples"][0]
    assert (sample["state"], sample["health"], sample["xids"]) == ("lost", None, [79])


def test_a_driver_that_does_not_tell_costs_nothing(library: Path, tmp_path: Path) -> None:
    said = ask(library, tmp_path, f"{GOOD_0} deny=health xids=48")
    assert of(said["phases"][0]) == (NOTHING, [])
    assert said["phases"][0]["samples"][0]["state"] == "ok"
    old = ask(compile_fake(tmp_path / "old", "-DOLD"), tmp_path, f"{GOOD_0} ecc=3 xids=48")
    assert of(old["phases"][0]) == (NOTHING, [])
