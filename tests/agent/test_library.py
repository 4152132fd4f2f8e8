"""The trainer library alone on a job's PYTHONPATH. `-S` stands for a Python in which nothing is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdl.agent.library import NAME, with_library
from tests.agent.daemon import Agents, Daemon
from tests.agent.start_requests import begin

ALONE = (sys.executable, "-S", "-c")


def said(path: str, script: str, cwd: Path) -> str:
    """What a Python without site-packages prints, errors too."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HPCDL_", "PYTHON"))}
    argv = [*ALONE, script]
    done = subprocess.run(
        argv, env=environ | {"PYTHONPATH": path}, cwd=cwd, capture_output=True, text=True, timeout=120
    )
    return done.stdout + done.stderr


def test_the_folder_has_the_library_alone_and_is_made_once(tmp_path: Path) -> None:
    path = with_library("", tmp_path)
    folder = Path(path)
    assert folder.parent == tmp_path
    assert folder.name.startswith(NAME)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(each.name for each in (folder / "hpcdl").iterdir()) == ["__init__.py", "trainer"]
    (folder / "mark").touch()
    assert with_library("/a::/b", tmp_path) == f"/a::/b{os.pathsep}{folder}"
    assert with_library(f"/a:/elsewhere/{NAME}0123:{folder}", tmp_path) == f"/a:{folder}"  # from within a job
    assert (folder / "mark").exists()
    assert os.listdir(tmp_path) == [folder.name]


def test_older_ones_go_unless_a_trainer_has_them(tmp_path: Path) -> None:
    for name in ("used", "unused"):
        (tmp_path / f"{NAME}{name}" / "hpcdl").mkdir(parents=True)
    (tmp_path / "3.1").mkdir()
    (tmp_path / "3.1" / "start.json").write_text(f'{{"env": {{"PYTHONPATH": "/run/{NAME}used"}}}}')
    now = Path(with_library("", tmp_path)).name
    assert sorted(os.listdir(tmp_path)) == sorted(["3.1", f"{NAME}used", now])


def test_a_folder_that_cannot_be_made_is_left_out(tmp_path: Path) -> None:
    assert with_library("/a", tmp_path / "missing") == "/a"


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        ("import hpcdl.trainer; print(hpcdl.trainer.__file__)", "{library}/hpcdl/trainer/__init__.py"),
        ("from hpcdl import trainer; print(trainer.__file__)", "{library}/hpcdl/trainer/__init__.py"),
        ("import hpcdl; hpcdl.submit", "there is no hpcdl.submit here: "),
        ("import hpcdl; print(hpcdl.__version__, hasattr(hpcdl, 'submit'))", " False"),
        ("from hpcdl.trainer import ranks; print(ranks.USAGE)", "usage: "),
    ],
)
def test_what_hpcdl_is_where_none_is_installed(tmp_path: Path, script: str, answer: str) -> None:
    library = with_library("", tmp_path)
    (tmp_path / "job" / "hpcdl").mkdir(parents=True)  # a folder of that name is no package
    assert answer.format(library=library) in said(library, script, tmp_path / "job")


@pytest.mark.parametrize("order", ["library first", "library last"])
def test_an_installed_one_is_not_shadowed(tmp_path: Path, order: str) -> None:
    library = with_library("", tmp_path)
    own = tmp_path / "own" / "hpcdl"
    (own / "trainer").mkdir(parents=True)
    (own / "__init__.py").write_text("submit = 'theirs'\n")
    (own / "trainer" / "__init__.py").write_text("steps = 'theirs, too'\n")
    places = [library, str(own.parent)]
    path = os.pathsep.join(places if order == "library first" else reversed(places))
    script = "import hpcdl, hpcdl.trainer; print(hpcdl.submit, hpcdl.trainer.steps, hpcdl.trainer.__file__)"
    assert said(path, script, tmp_path) == f"theirs theirs, too {own / 'trainer' / '__init__.py'}\n"
    script = "import hpcdl.trainer.session"  # never of two versions
    assert "ModuleNotFoundError" in said(path, script, tmp_path)


def test_jobs_get_it_unless_they_do_without(daemon: Daemon, agents: Agents, home: Path) -> None:
    agents.start()
    command = (*ALONE, "import os, hpcdl.trainer as t; print(t.__file__); print(os.environ['PYTHONPATH'])")
    begin(daemon, 1, command=command, env=(("PYTHONPATH", "/mine"),))
    daemon.wait("GpusFreed", 1)
    printed = (home / "logs" / "1" / "1.n1.log").read_text().split()
    assert daemon.wait("Exited", 1).code == 0, printed
    library = printed[1].partition("/mine:")[2]
    assert Path(library).parent == agents.run
    assert printed[0] == f"{library}/hpcdl/trainer/__init__.py"
    begin(daemon, 2, command=command, env=(("PYTHONPATH", "/mine"),), trainer_library=False)
    daemon.wait("GpusFreed", 2)
    assert daemon.wait("Exited", 2).code == 1
    assert "No module named 'hpcdl'" in (home / "logs" / "2" / "1.n1.log").read_text()
