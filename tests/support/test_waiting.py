"""A wait in vain shows who was waited for: stacks of Python processes, commands of others, the ends of logs."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.scene import HEADING
from tests.support.waiting import until, until_async

ROOT = Path(__file__).parents[2]
SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
READABLE = not SCOPE.exists() or SCOPE.read_text() == "0\n"
"""Whether a process may look into one that is not below it; where not, its command is all there is to see."""
FRAME = r"(\n .*)*waits_for_godot \(<string>:" if READABLE else "waits_for_godot"

STUCK = """
import time
def waits_for_godot():
    print("no sign of him", flush=True)
    time.sleep(600)
waits_for_godot()
"""


@pytest.fixture
def stuck(tmp_path: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A Python process whose log says that it has come to the function in which it stays."""
    with (tmp_path / "stuck.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-S", "-c", STUCK], stdout=log, start_new_session=True)
    until((tmp_path / "stuck.log").read_bytes, "the process to begin")
    yield process
    process.kill()
    process.wait()


def test_it_returns_the_value() -> None:
    values = iter([0, None, "", 7])
    assert until(lambda: next(values), "a value") == 7


def test_it_returns_the_value_in_an_event_loop() -> None:
    values = iter([0, None, "", 7])
    assert asyncio.run(until_async(lambda: next(values), "a value")) == 7


def test_errors_that_mean_not_yet_are_ignored(tmp_path: Path) -> None:
    def look() -> str:
        if len(seen) < 2:
            seen.append(tmp_path)
            raise FileNotFoundError
        return "there"

    seen: list[Path] = []
    assert until(look, "a file", ignores=FileNotFoundError) == "there"
    with pytest.raises(FileNotFoundError):
        until((tmp_path / "none").read_text, "a file")


def test_the_failure_shows_the_function_and_the_log(stuck: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as failure:
        until(lambda: stuck.poll() is not None, "Godot", 0.0, story=lambda: "Act 2")
    said = str(failure.value)
    assert said.startswith("waited 0 s in vain for Godot\nAct 2\n")
    assert re.search(rf"(?m)^{stuck.pid}: .*{FRAME}", said)
    assert said.endswith(f"--- {tmp_path / 'stuck.log'}\nno sign of him")
    assert "test_the_failure_shows_the_function_and_the_log" in said  # this process has a stack, too


def test_a_stopped_process_shows_where_it_was(stuck: "subprocess.Popen[bytes]") -> None:
    stuck.send_signal(signal.SIGSTOP)
    with pytest.raises(AssertionError, match=rf"(?m)^{stuck.pid}: .*T \(stopped\){FRAME if READABLE else ''}"):
        asyncio.run(until_async(lambda: None, "nothing", 0.0))
    assert stuck.poll() is None


def test_other_programs_show_their_command(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "123.25"])
    try:
        with pytest.raises(AssertionError, match=rf"(?m)^{process.pid}: sleep 123.25, S \(sleeping\)"):
            until(lambda: None, "nothing", 0.0)
    finally:
        process.kill()
        process.wait()


def test_identical_processes_are_shown_once() -> None:
    pair = [subprocess.Popen(["sleep", "123.5"]) for _ in range(2)]
    first, second = sorted(each.pid for each in pair)

    def as_one() -> bool:
        """Once the kernel says of both that they wait: of one that just fell asleep it may not yet."""
        with pytest.raises(AssertionError) as caught:
            until(lambda: None, "nothing", 0.0)
        return f"\n{first}, {second}: sleep 123.5" in str(caught.value)

    try:
        until(as_one, "one line for both")
    finally:
        for each in pair:
            each.kill()
            each.wait()


AWAY = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
def waits_for_godot():
    open(sys.argv[1], "w").write(str(os.getpid()))
    time.sleep(600)
waits_for_godot()
"""


def test_a_process_that_lost_its_parent_is_shown(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-S", "-c", AWAY, str(tmp_path / "pid")], check=True)
    pid = int(until((tmp_path / "pid").read_text, "its pid", ignores=FileNotFoundError))
    try:
        with pytest.raises(AssertionError, match=rf"(?m)^{pid}: .*{FRAME}"):
            until(lambda: None, "nothing", 0.0)
    finally:
        os.kill(pid, signal.SIGKILL)


INNER = """
import subprocess, sys, time
import pytest

def child():
    code = "import time\\ndef waits_for_godot(): time.sleep(600)\\nprint('on', flush=True)\\nwaits_for_godot()"
    process = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
    process.stdout.readline()
    return process

@pytest.mark.timeout(1)
def test_late(request):
    process = child()
    try:
        time.sleep(60)
    finally:
        process.kill()
        process.communicate()

def test_wrong(request):
    process = child()
    request.addfinalizer(process.communicate)
    request.addfinalizer(process.kill)
    assert False, "wrong"

def test_pure():
    assert False, "pure"
"""


def test_other_failures_show_the_scene_where_there_are_processes(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from tests.support.scene import Scenes\n"
        "def pytest_configure(config): config.pluginmanager.register(Scenes())\n"
    )
    (tmp_path / "test_inner.py").write_text(textwrap.dedent(INNER))
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*argv, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=180,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    _, late, wrong, pure = re.split("_ test_(?:late|wrong|pure) _", done.stdout.partition("short test summary")[0])
    assert HEADING in late
    assert re.search(FRAME, late)
    assert HEADING in wrong
    assert re.search(FRAME, wrong)
    assert HEADING not in pure
