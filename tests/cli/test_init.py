"""`hpcdl init`: what it writes trains, and can be submitted as it is."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from hpcdl.cli.init.command import FRAMEWORKS
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon
from tests.guides.session import File, steps
from tests.support.extent import one_of

ROOT = Path(__file__).parents[2]
ABSENT = "hpcdl is not installed here: plain training, without checkpoints"


def test_it_writes_a_script_and_jobs_and_says_what_comes_next(hpcdl: Run, tmp_path: Path) -> None:
    done = hpcdl("init", "pytorch", "--dir", tmp_path / "new")
    assert done.code == 0
    assert done.out.splitlines()[0] == (f"wrote {tmp_path}/new/train.py (PyTorch) and {tmp_path}/new/jobs.yaml; next:")
    commands = [line.strip().split("  ")[0] for line in done.out.splitlines()[1:]]
    assert commands == [
        f"cd {tmp_path}/new", "python train.py --steps 20", "hpcdl daemon start", "hpcdl submit --file jobs.yaml",
        "hpcdl ls",
    ]  # fmt: skip
    assert hpcdl("init", "--dir", tmp_path / "two", "--json").value["framework"] == "pytorch"
    assert hpcdl("init", "jax", "--dir", tmp_path / "three", "--quiet").out.split() == [
        f"{tmp_path}/three/train.py",
        f"{tmp_path}/three/jobs.yaml",
    ]


@pytest.mark.parametrize("name", ["train.py", "jobs.yaml"])
def test_nothing_is_overwritten(hpcdl: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    done = hpcdl("init", "--dir", tmp_path)
    assert done.code == 1
    assert f"{tmp_path / name} is there already: nothing was written; name another folder with --dir" in done.err
    assert (tmp_path / name).read_text() == "mine"
    assert not (tmp_path / ({"train.py", "jobs.yaml"} - {name}).pop()).exists()


def test_a_framework_that_there_is_not(hpcdl: Run, tmp_path: Path) -> None:
    done = hpcdl("init", "caffe", "--dir", tmp_path)
    assert done.code == 2
    assert "'pytorch', 'hf', 'lightning'" in done.err


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_script_is_python_that_attaches_first(hpcdl: Run, tmp_path: Path, framework: str) -> None:
    assert hpcdl("init", framework, "--dir", tmp_path).code == 0
    text = (tmp_path / "train.py").read_text()
    compile(text, "train.py", "exec")
    assert text.index("hpcdl.attach()") < min(
        text.find(f"\nimport {name}") % len(text) for name in ("torch", "keras", "tensorflow", "jax", "lightning")
    )
    assert "--lr" in text
    assert max(map(len, text.splitlines())) <= 120


def test_the_jobs_are_what_submit_takes(fake: FakeDaemon, hpcdl: Run, tmp_path: Path) -> None:
    assert hpcdl("init", "python", "--dir", tmp_path).code == 0
    done = hpcdl("submit", "--file", tmp_path / "jobs.yaml")
    assert done.code == 0, done.err
    (body,) = [body for method, path, body in fake.requests if (method, path) == ("POST", "/v1/jobs")]
    sweep, last = body["jobs"]
    assert sweep["array"] == {"sweep": {"lr": ["0.1", "0.01"]}}
    assert (sweep["gpus_min"], sweep["tags"], last["after_entries"]) == (1, ["first"], [0])
    assert len(yaml.safe_load((tmp_path / "jobs.yaml").read_text())["jobs"]) == 2


@pytest.mark.parametrize("there", [True, False], ids=["with hpcdl", "without hpcdl"])
@pytest.mark.parametrize(
    ("framework", "words", "env"),
    [
        ("python", ("--steps", "40"), {}),
        *one_of(("pytorch", ("--steps", "40"), {}), ("keras", ("--epochs", "1"), {"KERAS_BACKEND": "torch"})),
    ],
)
def test_the_script_trains_by_hand(
    hpcdl: Run, tmp_path: Path, framework: str, words: tuple[str, ...], env: dict[str, str], there: bool
) -> None:
    assert hpcdl("init", framework, "--dir", tmp_path).code == 0
    printed = by_hand(tmp_path, *words, there=there, env={"KERAS_HOME": str(tmp_path / "keras"), **env})
    assert printed[-1] == "trained"
    assert (printed[0] == ABSENT) is not there
    assert framework == "python" or list(tmp_path.glob("model-lr0.01.*"))


def test_the_readmes_script_runs_without_hpcdl(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (script,) = (step.text for step in steps(readme) if isinstance(step, File))
    (tmp_path / "train.py").write_text(script + "print(state)\n")
    assert by_hand(tmp_path, there=False) == ["{'step': 1000}"]


def by_hand(folder: Path, *words: str, there: bool, env: Mapping[str, str] | None = None) -> list[str]:
    """The lines that `python train.py` prints, where hpcdl can be imported or not."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HPCDL_")}
    environ |= {"PYTHONPATH": str(ROOT), "HOME": str(folder), **(env or {})}
    hidden = "import runpy, sys; sys.modules['hpcdl'] = None; runpy.run_path('train.py', run_name='__main__')"
    program = ("train.py",) if there else ("-c", hidden)
    done = subprocess.run(
        [sys.executable, *program, *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
