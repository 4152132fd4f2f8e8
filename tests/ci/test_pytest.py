"""`.ci/pytest`: what failed runs once more, alone; the slowest tests are kept; whoever ends it ends everything."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.extent import one_of
from tests.support.leftovers import VARIABLE
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / ".ci" / "pytest"

TESTS = """
import os

import pytest

ALONE = "PYTEST_XDIST_WORKER" not in os.environ

@pytest.mark.parametrize("number", range(RACES))
def test_race(number):
    assert ALONE

def test_right():
    pass

@pytest.mark.skipif(not WRONG, reason="all is right")
def test_wrong():
    assert False
"""


def run(folder: Path, races: int, wrong: bool, **more: str) -> tuple[int, str]:
    """Exit code and output. `more`: of the environment."""
    (folder / ".ci").mkdir()
    shutil.copy(SCRIPT, folder / ".ci")
    (folder / "test_it.py").write_text(f"RACES, WRONG = {races}, {wrong}\n{TESTS}")
    argv = [str(folder / ".ci" / "pytest"), sys.executable, "-q", "--rootdir", str(folder), "--numprocesses", "1"]
    ours = ("PYTEST_", "HPCDL_TEST_")  # we may be a worker, and have been told to run nothing twice
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run([*argv, "test_it.py"], capture_output=True, text=True, cwd="/", env=env | more)
    return done.returncode, done.stdout


def test_a_race_is_named_and_refuses_nothing(tmp_path: Path) -> None:
    code, said = run(tmp_path, races=1, wrong=False)
    assert code == 0, said
    assert said.endswith("please mend it, or report it):\ntest_it.py::test_race[0]\n")


def test_what_fails_alone_is_an_error(tmp_path: Path) -> None:
    code, said = run(tmp_path, races=1, wrong=True)
    assert code == 1
    assert "1 failed, 1 passed" in said.rpartition("once more, alone:")[2]


@pytest.mark.parametrize(("races", "code"), [(0, 0), (4, 1)])
def test_nothing_runs_again(tmp_path: Path, races: int, code: int) -> None:
    """Where all passed, and where too many failed for these to be races."""
    found, said = run(tmp_path, races, wrong=False)
    assert found == code
    assert "once more" not in said


def test_nothing_runs_again_where_that_is_turned_off(tmp_path: Path) -> None:
    code, said = run(tmp_path, races=1, wrong=False, HPCDL_TEST_RERUN="0")
    assert code == 1
    assert "once more" not in said


STARTS = "tests/system/test_kills.py::test_daemon_and_agent_gone_for_long"
"""Has a daemon, an agent and a trainer for many seconds."""


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


@pytest.fixture(params=one_of("script", "group", "alone", "alone, as a daemon starts"))
def ended(request: pytest.FixtureRequest, temporary: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run that has SIGTERM in the middle of a test: the script, all of its group, or a pytest without workers."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_") and name != VARIABLE}
    alone = request.param.startswith("alone")
    workers = "0" if alone else "2"
    argv = [sys.executable, "-o", f"cache_dir={temporary.parent}/cache", "--numprocesses", workers, STARTS]
    first = [sys.executable, "-m", "pytest"] if alone else [str(SCRIPT), sys.executable]
    with subprocess.Popen(
        [*first, *argv[1:]], cwd=ROOT, env=env | {"TMPDIR": str(temporary)}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            begun = starts if request.param.endswith("starts") else trains
            until(lambda: process.poll() is not None or begun(temporary), "a process of it", folders=[temporary])
            assert process.poll() is None
            if request.param == "group":
                os.killpg(process.pid, signal.SIGTERM)
            else:
                process.terminate()
            process.wait(180)
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def environments(temporary: Path) -> dict[int, bytes]:
    """The environments of the processes whose temporary files are below this folder."""
    rows = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                environment = (entry / "environ").read_bytes()
                if f"TMPDIR={temporary}".encode() in environment:
                    rows[int(entry.name)] = environment
    return rows


def trains(temporary: Path) -> bool:
    return any(b"\0HPCDL_TAG=" in environment for environment in environments(temporary).values())


def starts(temporary: Path) -> bool:
    for pid in environments(temporary):
        with contextlib.suppress(OSError):
            if b"\0hpcdl.daemon\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
    return False


def test_a_run_that_is_ended_leaves_nothing(ended: subprocess.Popen[bytes], temporary: Path) -> None:
    assert ended.returncode != 0
    assert list(environments(temporary)) == []
    assert list(temporary.iterdir()) == []


def test_the_slowest_tests_are_kept(tmp_path: Path) -> None:
    run(tmp_path, races=1, wrong=True)
    rows = [line.split() for line in (tmp_path / "build" / "slowest-tests.txt").read_text().splitlines()]
    assert {name for _, name in rows} == {f"test_it.py::test_{each}" for each in ("race[0]", "right", "wrong")}
    assert [float(seconds) for seconds, _ in rows] == sorted((float(seconds) for seconds, _ in rows), reverse=True)
