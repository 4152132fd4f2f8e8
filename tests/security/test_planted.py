"""What others put into the folders that a user works in: modules that Python would find, files where ours would be."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.security.stranger import ROOT

PLANTED = ("argparse", "asyncio", "json", "logging", "signal", "socket", "tempfile")


@pytest.fixture
def bait(tmp_path: Path) -> Path:
    """A folder with modules in it that have the names of Python's, and of hpcdl: to import one is told by `planted`."""
    folder = tmp_path / "bait"
    (folder / "hpcdl").mkdir(parents=True)
    for name in (*(f"{name}.py" for name in PLANTED), "hpcdl/__init__.py"):
        (folder / name).write_text(f"open({str(tmp_path / 'planted')!r}, 'a').write(__name__)\nraise SystemExit(1)\n")
    return folder


@pytest.mark.parametrize(
    "words,said",
    [
        (("daemon", "start", "--foreground"), "profiles: expected"),
        (("daemon", "start"), "profiles: expected"),
        (("agent",), "no daemon has been started"),
    ],
    ids=["in the foreground", "in the background", "agent"],
)
def test_nothing_is_imported_from_the_folder_that_a_command_is_called_in(
    bait: Path, tmp_path: Path, words: Sequence[str], said: str
) -> None:
    """The home is of no use, so that what is started ends soon: after its imports."""
    home = tmp_path / "home"
    (home / "profiles").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    (home / "profiles" / "wrong.yaml").write_text("profiles: 1\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HPCDL_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "hpcdl", *words],
        cwd=bait,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not (tmp_path / "planted").exists()
    assert (done.returncode, said in done.stdout + done.stderr) == (1, True), done
