"""Early initialisation: what happens before and at the opening of the gate, in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdl.trainer import gate, gpus
from tests.support.compiler import compile_library
from tests.trainer.supervisor import Supervisor, supervisor

ROOT = Path(__file__).parents[2]
GATE = ["-m", "hpcdl.trainer.gate"]
CLOSED = {"HPCDL_GPU_COUNT": "0", "HPCDL_GPUS": "", "CUDA_VISIBLE_DEVICES": ""}
ONE = "GPU-11111111-2222-3333-4444-555555555555"
TWO = "GPU-66666666-7777-8888-9999-aaaaaaaaaaaa"

SCRIPT = """
import json, os, random, sys
import beside
import hpcdl.trainer as hpcdl
names = ("CUDA_VISIBLE_DEVICES", "HPCDL_GPUS", "HPCDL_GPU_COUNT", "HPCDL_GATE_COLD")
print(json.dumps({
    "env": [os.environ.get(name) for name in names], "argv": sys.argv, "name": __name__, "pid": os.getpid(),
    "warmed": beside.warmed, "random": random.random(), "main": sys.modules["__main__"].__file__,
}), flush=True)
hpcdl.ready(0)
hpcdl.done(0)
"""
BESIDE = """
import random
random.seed(5)
warmed = False
def warm():
    global warmed
    random.random()
    warmed = True
def look():
    import ctypes
    ctypes.CDLL("libcuda.so.1").cuInit(0)
    warm()
def touch():
    import sys, types
    sys.modules["torch"] = types.SimpleNamespace(
        cuda=types.SimpleNamespace(is_initialized=lambda: True, get_rng_state_all=list),
        get_rng_state=lambda: types.SimpleNamespace(tolist=list), set_rng_state=lambda state: None,
        tensor=lambda values, dtype: values, uint8=None,
    )
    warm()
def fail():
    raise ValueError("no such warm-up data")
def hang():
    import time
    while True:
        time.sleep(0.01)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    folder = tmp_path / "user code"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "beside.py").write_text(BESIDE)
    return folder / "train.py"


def opening(*uuids: str) -> dict[str, str]:
    shown = ",".join(uuids)
    return {"CUDA_VISIBLE_DEVICES": shown, "HPCDL_GPUS": shown, "HPCDL_GPU_COUNT": str(len(uuids))}


def output(child: subprocess.Popen[str]) -> dict:
    assert child.stdout is not None
    return json.loads(child.stdout.read().splitlines()[-1])


def through(parent: Supervisor, argv: list, *uuids: str, **env: str) -> subprocess.Popen[str]:
    child = parent.start([*GATE, *argv], **(CLOSED | env))
    parent.wait("gate")
    assert parent.kinds() == ["attach", "gate"]
    parent.send("open", env=opening(*uuids))
    return child


def test_outside_a_gate_it_just_runs(tmp_path: Path, script: Path) -> None:
    with supervisor(tmp_path / "run", None) as parent:
        child = parent.start([*GATE, "--warmup", "beside:warm", script, "--steps", "5"], HPCDL_GPU_COUNT="2")
        assert parent.end(child) == 0
        assert parent.kinds() == ["attach", "ready", "done", "left"]
        said = output(child)
        assert said["argv"] == [str(script), "--steps", "5"]
        assert said["warmed"] is False


@pytest.mark.parametrize("warmup", ["beside:warm", "file", None])
def test_open(tmp_path: Path, script: Path, warmup: str | None) -> None:
    with supervisor(tmp_path / "run", None) as parent:
        if warmup == "file":
            warmup = f"{script.parent / 'beside.py'}:warm"
        more = ["--warmup", warmup, "--import", "json", "--import", "no_such_module"] if warmup else []
        child = through(parent, [*more, script, "--warmup", "x"], ONE, TWO, HPCDL_EMULATED=str(tmp_path))
        assert parent.end(child) == 0
        assert parent.kinds() == ["attach", "gate", "opened", "ready", "done", "left"]
        assert {each["peer"] for each in parent.packets} == {child.pid}
        assert parent.of("gate")[0]["cuda"] is False
        assert parent.of("gate")[0]["warm_s"] >= 0
        assert (parent.of("opened")[0]["gpus"], parent.of("opened")[0]["ok"]) == (None, None)
        said = output(child)
        assert said["env"] == [f"{ONE},{TWO}", f"{ONE},{TWO}", "2", None]
        assert said["argv"] == [str(script), "--warmup", "x"]
        assert (said["name"], said["main"], said["pid"]) == ("__main__", str(script), child.pid)
        assert said["warmed"] is (warmup == "beside:warm")


@pytest.mark.parametrize("module", ["train", "package"])
def test_a_module_is_started_as_python_would(tmp_path: Path, script: Path, module: str) -> None:
    package = script.parent / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    source = package / "__main__.py" if module == "package" else script
    source.write_text(SCRIPT.replace("import beside", "import torch_not, beside"))
    (script.parent / "torch_not.py").write_text("")
    path = os.pathsep.join(map(str, (ROOT, script.parent)))
    with supervisor(tmp_path / "run", None) as parent:
        child = through(parent, ["-m", module, "-m", "x"], ONE, HPCDL_EMULATED=str(tmp_path), PYTHONPATH=path)
        assert parent.end(child) == 0
        said = output(child)
        assert said["argv"] == [str(source), "-m", "x"]
        assert (said["name"], said["main"], said["pid"]) == ("__main__", str(source), child.pid)


def test_frameworks_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gate_package").mkdir()
    for name in ("gate_package/__init__.py", "gate_package/__main__.py", "gate_module.py"):
        (tmp_path / name).write_text("import torch\n" if "__init__" not in name else "")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("gate_package", "gate_package.__main__", "gate_module"):
        assert gate.frameworks(gate._source(name)) == ["torch"]
    for name in ("no_such_module", "gate_module.below", "", "sys"):
        assert gate.frameworks(gate._source(name)) == []
    for name in [name for name in sys.modules if name.startswith("gate_")]:
        del sys.modules[name]


def test_a_warm_up_leaves_the_random_state(tmp_path: Path, script: Path) -> None:
    drawn = []
    for warmup in ("beside:warm", "beside:fail"):
        with supervisor(tmp_path / warmup, None) as parent:
            child = through(parent, ["--warmup", warmup, script], ONE, HPCDL_EMULATED="x")
            assert parent.end(child) == 0
            drawn.append(output(child)["random"])
    assert drawn[0] == drawn[1]


def test_cuda_initialised_starts_cold(tmp_path: Path, script: Path) -> None:
    with supervisor(tmp_path / "run", None) as parent:
        child = through(parent, ["--warmup", "beside:touch", script, "a b"], ONE, HPCDL_EMULATED="x")
        assert parent.end(child) == 0
        assert parent.kinds() == ["attach", "gate", "attach", "opened", "ready", "done", "left"]
        assert parent.of("gate")[0]["cuda"] is True
        assert {each["peer"] for each in parent.packets} == {child.pid}
        said = output(child)
        assert said["warmed"] is False
        assert said["env"] == [ONE, ONE, "1", None]
        assert (said["argv"], said["pid"]) == ([str(script), "a b"], child.pid)


@pytest.mark.parametrize("how", ["packet", "signal", "gone", "terminate"])
def test_suspend_at_the_gate(tmp_path: Path, script: Path, how: str) -> None:
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        child = parent.start([*GATE, script], **CLOSED)
        parent.wait("gate")
        if how == "packet":
            parent.send("suspend", grace_s=5)
        elif how == "gone":
            parent.hang_up()
        else:
            child.send_signal(signal.SIGTSTP if how == "signal" else signal.SIGTERM)
        assert parent.end(child) == (-signal.SIGTERM if how == "terminate" else 0)
        assert parent.kinds() == ["attach", "gate"]
        assert not (tmp_path / "ckpt").exists()


def test_end_while_warming_up(tmp_path: Path, script: Path) -> None:
    with supervisor(tmp_path / "run", None) as parent:
        child = parent.start([*GATE, "--warmup", "beside:hang", script], **CLOSED)
        parent.wait("attach")
        child.terminate()
        assert parent.end(child) == -signal.SIGTERM


@pytest.fixture
def driver(tmp_path: Path) -> dict[str, str]:
    """The environment in which a driver of ours is found, with two GPUs."""
    folder = tmp_path / "lib"
    folder.mkdir()
    compile_library(Path(__file__).with_name("fake_libcuda.c"), folder / "libcuda.so.1")
    both = ",".join(each.removeprefix("GPU-") for each in (ONE, TWO))
    return {"LD_LIBRARY_PATH": str(folder), "FAKE_CUDA_GPUS": both}


def test_the_gpus_granted_are_seen(tmp_path: Path, script: Path, driver: dict[str, str]) -> None:
    with supervisor(tmp_path / "run", None) as parent:
        child = through(parent, ["--warmup", "beside:warm", script], TWO, **driver)
        assert parent.end(child) == 0
        assert (parent.of("opened")[0]["gpus"], parent.of("opened")[0]["ok"]) == ([TWO], True)
        assert output(child)["warmed"] is True


def test_other_gpus_than_granted(tmp_path: Path, script: Path, driver: dict[str, str]) -> None:
    with supervisor(tmp_path / "run", None) as parent:
        child = through(parent, [script], ONE, TWO, **(driver | {"FAKE_CUDA_GPUS": TWO.removeprefix("GPU-")}))
        assert parent.end(child) == os.EX_CONFIG
        assert parent.kinds() == ["attach", "gate", "opened"]
        assert (parent.of("opened")[0]["gpus"], parent.of("opened")[0]["ok"]) == ([TWO], False)


def test_a_warm_up_that_looked_for_gpus_starts_cold(tmp_path: Path, script: Path, driver: dict[str, str]) -> None:
    with supervisor(tmp_path / "run", None) as parent:
        child = through(parent, ["--warmup", "beside:look", script], ONE, **driver)
        assert parent.end(child) == 0
        assert parent.kinds() == ["attach", "gate", "attach", "opened", "ready", "done", "left"]
        assert (parent.of("opened")[0]["gpus"], parent.of("opened")[0]["ok"]) == ([ONE], True)
        assert output(child)["warmed"] is False


def test_frameworks_of_a_script(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.write_text("import os, numpy as np\ndef f():\n    from torch.nn import Linear\nfrom .keras import x\n")
    assert gate.frameworks(source) == ["torch", "numpy"]
    source.write_text("this is not Python")
    assert gate.frameworks(source) == []
    assert gate.frameworks(tmp_path / "none.py") == []


def test_same_gpus() -> None:
    assert gpus.same([ONE, TWO], [TWO, ONE.upper().replace("GPU", "GPU")])
    assert gpus.same([ONE], [ONE.replace("GPU", "MIG")])
    assert not gpus.same([ONE], [ONE, TWO])
    assert not gpus.touched()


def test_spawned_processes_find_the_script(tmp_path: Path) -> None:
    script = tmp_path / "spawns.py"
    script.write_text(
        "import multiprocessing, hpcdl.trainer as hpcdl\n"
        "def rank(number):\n"
        "    hpcdl.attach(rank=number)\n"
        "    hpcdl.ready(0)\n"
        "if __name__ == '__main__':\n"
        "    spawn = multiprocessing.get_context('spawn')\n"
        "    ranks = [spawn.Process(target=rank, args=(number,)) for number in (0, 1)]\n"
        "    [each.start() for each in ranks]\n"
        "    [each.join() for each in ranks]\n"
        "    raise SystemExit(max(each.exitcode for each in ranks))\n"
    )
    with supervisor(tmp_path / "run", None) as parent:
        child = through(parent, [script], ONE, HPCDL_EMULATED="x")
        assert parent.end(child) == 0
        ready = {each["peer"] for each in parent.of("ready")}
        assert len(ready - {child.pid}) == 2
        assert sorted(each["rank"] for each in parent.of("attach") if each["peer"] in ready) == [0, 1]
        assert len(parent.of("gate")) == 1


def test_usage(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as caught:
        gate.main(["--warmup", "nothing", "x.py"])
    assert caught.value.code == 2
    assert "MODULE_OR_FILE:FUNC" in capsys.readouterr().err
