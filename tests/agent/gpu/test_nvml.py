"""NVML in a process of its own, with a library of ours loaded in the driver's place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiler import compile_library

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SONAME = "libnvidia-ml.so.1"

ZERO = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
ONE = "GPU-bbbbbbbb-0000-4000-8000-000000000001"
GOOD_0 = f"gpu uuid={ZERO} name=Tesla_V100-SXM2-16GB total=16160 used=593 util=97 mw=250400 temp=61 pids=4711,815"
GOOD_1 = f"gpu uuid={ONE} name=Tesla_V100-SXM2-16GB total=16160 used=3 util=0 mw=40000 temp=30"


def compile_fake(folder: Path, *flags: str) -> Path:
    folder.mkdir()
    compile_library(HERE / "fake_nvml.c", folder / SONAME, *flags)
    return folder


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_fake(tmp_path_factory.mktemp("nvml") / "lib")


def ask(library: Path, folder: Path, *phases: str) -> dict[str, Any]:
    """What the child says of each phase; `inits` is how often it initialised NVML."""
    files = []
    for number, phase in enumerate(phases):
        files.append(folder / f"{number}.txt")
        files[-1].write_text(phase + "\n")
    log = folder / "log"
    log.write_text("")
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(library),
        "FAKE_NVML": str(folder / "state"),
        "FAKE_NVML_LOG": str(log),
        "PYTHONPATH": str(ROOT),
    }
    argv = [sys.executable, "-W", "error", str(HERE / "nvml_child.py"), str(folder / "state"), *map(str, files)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return {**said, "inits": len(log.read_text().split())}


def states(phase: dict[str, Any]) -> list[str]:
    return [sample["state"] for sample in phase["samples"]]


def test_where_gpus_are(library: Path, tmp_path: Path) -> None:
    """0 and 2 are joined by NVLink, 1 is below another PCIe switch."""
    zero, one = f"{GOOD_0} cpus=0f links=2 level=10", f"{GOOD_1} cpus=f0 level=10"
    two = GOOD_1.replace(ONE, "GPU-2") + " links=0 level=10"
    (phase,) = ask(library, tmp_path, f"{zero}\n{one}\n{two}")["phases"]
    assert [gpu["cpus"] for gpu in phase["gpus"]] == [[0, 1, 2, 3], [4, 5, 6, 7], []]
    assert [dict(gpu["distances"]) for gpu in phase["gpus"]] == [
        {ONE: 3, "GPU-2": 1},
        {ZERO: 3, "GPU-2": 3},
        {ZERO: 1, ONE: 3},
    ]


def test_two_good_gpus(library: Path, tmp_path: Path) -> None:
    said = ask(library, tmp_path, f"{GOOD_0}\n{GOOD_1}")
    (phase,) = said["phases"]
    assert phase["gpus"] == [
        {"index": 0, "uuid": ZERO, "name": "Tesla V100-SXM2-16GB", "memory_mib": 16160, "cpus": [], "distances": []},
        {"index": 1, "uuid": ONE, "name": "Tesla V100-SXM2-16GB", "memory_mib": 16160, "cpus": [], "distances": []},
    ]
    busy, free = phase["samples"]
    assert busy.pop("health")["ecc_uncorrected"] == 0
    assert busy == {
        "uuid": ZERO,
        "util": 97,
        "memory_used_mib": 593,
        "memory_total_mib": 16160,
        "power_w": 250.4,
        "temperature_c": 61,
        "pids": [815, 4711],
        "state": "ok",
        "detail": "",
        "xids": [],
        "process_mib": [[815, 1], [4711, 1]],
    }
    assert (free["pids"], free["process_mib"]) == ([], [])
    assert free["state"] == "ok"
    assert said["inits"] == 1


def test_what_the_driver_keeps_is_used_by_nobody(library: Path, tmp_path: Path) -> None:
    """An idle H200: the first version of the call says 615 MiB, nvidia-smi 0."""
    idle = f"gpu uuid={ZERO} name=NVIDIA_H200 total=143771 used=0 reserved=615"
    (sample,) = ask(library, tmp_path, idle)["phases"][0]["samples"]
    assert (sample["memory_used_mib"], sample["memory_total_mib"]) == (0, 143771)
    old = ask(compile_fake(tmp_path / "lib", "-DOLD"), tmp_path, idle)["phases"][0]["samples"]
    assert [each["memory_used_mib"] for each in old] == [615]


def test_fields_that_a_gpu_does_not_have_are_none(library: Path, tmp_path: Path) -> None:
    said = ask(library, tmp_path, f"{GOOD_0} deny=util,mem,mw,temp,pids\n{GOOD_1}")
    poor, good = said["phases"][0]["samples"]
    assert poor["state"] == "ok"
    fields = ("util", "memory_used_mib", "memory_total_mib", "power_w", "temperature_c", "pids")
    assert [poor[each] for each in fields] == [None] * 6
    assert good["memory_used_mib"] == 3
    assert said["phases"][0]["gpus"][0]["memory_mib"] == 0


def test_processes_on_a_driver_before_510(tmp_path: Path) -> None:
    said = ask(compile_fake(tmp_path / "lib", "-DOLD"), tmp_path, f"{GOOD_0}\n{GOOD_1}")
    assert [sample["pids"] for sample in said["phases"][0]["samples"]] == [[815, 4711], []]
    assert [len(sample["process_mib"]) for sample in said["phases"][0]["samples"]] == [2, 0]


@pytest.mark.parametrize("how", ["call=15", "open=15", "call=16"])
def test_a_lost_gpu_keeps_its_identity_and_the_others_are_read(library: Path, tmp_path: Path, how: str) -> None:
    both = f"{GOOD_0}\n{GOOD_1}"
    said = ask(library, tmp_path, both, f"{GOOD_0} {how}\n{GOOD_1}", both)
    before, lost, after = said["phases"]
    assert states(before) == ["ok", "ok"]
    assert states(lost) == ["lost", "ok"]
    assert lost["gpus"] == before["gpus"]
    assert lost["samples"][0]["pids"] is None
    assert "NVML" in lost["samples"][0]["detail"]
    assert lost["samples"][1]["memory_used_mib"] == 3
    assert states(after) == ["ok", "ok"]
    assert said["inits"] == 1


def test_a_gpu_that_nvml_no_longer_lists_is_lost_and_the_others_keep_their_index(library: Path, tmp_path: Path) -> None:
    said = ask(library, tmp_path, f"{GOOD_0}\n{GOOD_1}", GOOD_1)
    phase = said["phases"][1]
    assert [(gpu["index"], gpu["uuid"]) for gpu in phase["gpus"]] == [(0, ZERO), (1, ONE)]
    assert states(phase) == ["lost", "ok"]
    assert phase["samples"][1]["temperature_c"] == 30


def test_a_gpu_that_was_lost_before_is_left_out_and_said(library: Path, tmp_path: Path) -> None:
    (phase,) = ask(library, tmp_path, f"{GOOD_0} open=15\n{GOOD_1}")["phases"]
    assert [(gpu["index"], gpu["uuid"]) for gpu in phase["gpus"]] == [(1, ONE)]
    assert phase["detail"].startswith("GPU 0 has no name")


@pytest.mark.parametrize("code", [1, 999])
def test_nvml_that_dies_is_initialised_again(library: Path, tmp_path: Path, code: int) -> None:
    both = f"{GOOD_0}\n{GOOD_1}"
    said = ask(library, tmp_path, both, f"{both}\ndead rc={code}")
    assert states(said["phases"][1]) == ["ok", "ok"]
    assert said["inits"] == 2


def test_nvml_that_stays_dead_is_unknown_until_it_is_back(library: Path, tmp_path: Path) -> None:
    both = f"{GOOD_0}\n{GOOD_1}"
    gone = f"{both}\ninit rc=9\ndead rc=1 sticky=1"
    said = ask(library, tmp_path, both, gone, gone, both)
    assert [states(phase) for phase in said["phases"]] == [
        ["ok", "ok"],
        ["unknown", "unknown"],
        ["unknown", "unknown"],
        ["ok", "ok"],
    ]
    assert said["phases"][2]["gpus"] == said["phases"][0]["gpus"]
    assert said["inits"] == 4  # one at the start, and one a sample while it was away


def test_one_gpu_that_stays_broken_does_not_restart_nvml_for_ever(library: Path, tmp_path: Path) -> None:
    both, broken = f"{GOOD_0}\n{GOOD_1}", f"{GOOD_0} call=999\n{GOOD_1}"
    said = ask(library, tmp_path, both, broken, broken, broken)
    assert [states(phase) for phase in said["phases"][1:]] == [["unknown", "ok"]] * 3
    assert said["inits"] == 2


def test_mig_devices_stand_for_their_gpu(library: Path, tmp_path: Path) -> None:
    parts = [
        f"mig parent=1 uuid=MIG-{part}{part} name=NVIDIA_A100_MIG_3g.40gb total=40448 used={part} pids={part}"
        for part in (5, 6)
    ]
    (phase,) = ask(library, tmp_path, "\n".join([GOOD_0, GOOD_1, *parts]))["phases"]
    assert [(gpu["index"], gpu["uuid"], gpu["memory_mib"]) for gpu in phase["gpus"]] == [
        (0, ZERO, 16160),
        (200, "MIG-55", 40448),
        (201, "MIG-66", 40448),
    ]
    assert [(each["state"], each["util"], each["pids"]) for each in phase["samples"][1:]] == [
        ("ok", None, [5]),
        ("ok", None, [6]),
    ]


def test_a_node_without_gpus_and_one_whose_driver_is_not_loaded(library: Path, tmp_path: Path) -> None:
    said = ask(library, tmp_path, "")
    assert said["phases"][0]["gpus"] == []
    assert said["phases"][0]["detail"] == "NVML sees no GPU"
    assert "error" in ask(library, tmp_path, "init rc=9")


def test_no_nvml_at_all(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    # A library that is none hides a real one, should this machine have a driver.
    (tmp_path / "lib" / SONAME).write_text("not a library")
    said = ask(tmp_path / "lib", tmp_path, "")
    assert said["error"].startswith("NVML: ")
