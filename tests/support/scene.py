"""The scene of a failure: the stacks of all processes that a test started, and the last lines of their logs.

A process is concerned if it is below this one, if it (or one above it) was started by a test of the same file, or if it
names a folder of that test in its environment or its command line. Everything here is bounded: a scene takes seconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdl.agent.supervisor import processes
from tests.support.leftovers import VARIABLE

HEADING = "--- the processes of this test"
PY_SPY = Path(sys.executable).with_name("py-spy")
PROCESSES, LOGS, LINES = 40, 40, 20
SPY_S, STACKS_S = 5.0, 30.0
LONG_S = 60.0
"""Of a wait of `subprocess`: one that is shorter is the program's own, which goes on after it."""
SCENES = 10
"""So many failures of one pytest process are described, if their waits did not do so themselves."""
HOMES = ("HPCDL_HOME", "SLURM_CONF", "LSFEMU_HOME")
"""Variables that name a folder with logs, or a file two below it."""


def scene(folders: Iterable[Path] = ()) -> str:
    """What the processes of this test do, and what they wrote last; `folders`: those that the test works in, beside
    the ones that its fixtures made."""
    places = {*folders, *_places.values()}
    pids = _concerned(places)
    places |= {place for pid in pids for place in _homes(pid)}
    return "\n".join([HEADING, _own_stacks(), *_stacks(pids), *_logs(places)])


# --- which


_places: dict[object, Path] = {}
"""Folders of the fixtures that are set up."""


def _concerned(places: Iterable[Path]) -> list[int]:
    file = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
    of_the_file = f"\0PYTEST_CURRENT_TEST={file}::".encode()
    of_the_session = f"\0{VARIABLE}={os.environ.get(VARIABLE, '')}\0".encode()
    names = [os.fsencode(place) for place in places]

    def is_concerned(pid: int) -> bool:
        environment = b"\0" + _read(pid, "environ")
        if file and of_the_file in environment and of_the_session in environment:
            return True
        return any(name in environment or name in _read(pid, "cmdline") for name in names)

    pids = {int(name) for name in os.listdir("/proc") if name.isdigit() and is_concerned(int(name))} | {os.getpid()}
    pids |= {each.pid for pid in pids for each in processes.descendants(pid, tags=False)}
    return sorted(pids - {os.getpid()})


def _homes(pid: int) -> Iterator[Path]:
    temporary = Path(tempfile.gettempdir())
    for name in HOMES:
        path = Path(processes.variable(pid, name) or "/")
        if temporary in path.parents:
            yield path.parents[1] if path.is_file() else path


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


# --- what they do


def _own_stacks() -> str:
    """All threads of this process, the innermost frame first, without those of pytest."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = [f"{os.getpid()}: this process"]
    for ident, frame in sys._current_frames().items():
        stack = traceback.extract_stack(frame)
        ours = [each for each in stack if "/_pytest/" not in each.filename and "/pluggy/" not in each.filename]
        lines.append(f"  thread {names.get(ident, ident)}")
        lines += [f"    {each.name} ({each.filename}:{each.lineno})" for each in ours[:-13:-1]]
    return "\n".join(lines)


def _stacks(pids: list[int]) -> list[str]:
    """Each process with its stack, and those that are the same in one piece."""
    same: dict[str, list[int]] = {}
    end = time.monotonic() + STACKS_S
    for pid in pids[:PROCESSES]:
        text = _described(pid, end - time.monotonic())
        if text:
            same.setdefault(text, []).append(pid)
    lines = [f"{', '.join(map(str, each))}: {text}" for text, each in same.items()]
    return [*lines, *([f"and {len(pids) - PROCESSES} more processes"] if len(pids) > PROCESSES else [])]


def _described(pid: int, left_s: float) -> str:
    """ "" where it has ended."""
    command = " ".join(_read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").split())
    status = dict(
        line.split(":\t", 1) for line in _read(pid, "status").decode(errors="replace").split("\n") if ":\t" in line
    )
    if not status:
        return ""
    said = f"{command[:300] or status.get('Name', '')}, {status.get('State', '?').strip()}"
    with contextlib.suppress(OSError):
        if left_s > 0 and PY_SPY.exists() and os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python"):
            if stacks := _python_stacks(pid, min(SPY_S, left_s)):
                return f"{said}\n{stacks}"
    calls = [f"  waits in {wait}" for wait in [_read(pid, "wchan").decode()] if wait not in ("", "0")]
    kernel = [f"    {line}" for line in _read(pid, "stack").decode().splitlines()[:8]]
    return "\n".join([said, *calls, *kernel])


def _python_stacks(pid: int, within_s: float) -> str:
    """Its threads, read while it goes on: neither a stopped process nor one that is timed is disturbed."""
    argv = [str(PY_SPY), "dump", "--nonblocking", "--pid", str(pid)]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=within_s)
        _, thread, stacks = done.stdout.replace(str(pid), "PID").partition("\nThread ")
        lines = f"{thread}{stacks}".splitlines()
        return "\n".join(f"  {line}" for line in lines if line and "<frozen" not in line)
    return ""


# --- what they wrote


def _logs(places: Iterable[Path]) -> list[str]:
    """The last lines of every log below, the ones that were written last at the end."""
    changed: dict[Path, float] = {}
    for place in places:
        for folder, _, names in os.walk(place):
            for path in (Path(folder, name) for name in names):
                if path.suffix in (".log", ".out") or path.name == "log":
                    with contextlib.suppress(OSError):
                        if path.is_file() and (about := path.stat()).st_size:
                            changed[path] = about.st_mtime
    texts = []
    for path in sorted(changed, key=changed.__getitem__)[-LOGS:]:
        with contextlib.suppress(OSError):
            texts.append(f"--- {path}\n{last_lines(path)}")
    return texts


def last_lines(path: Path, number: int = LINES) -> str:
    """The end of a log; of a line of more than some thousand bytes, its end."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 300 * number))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-number:])


# --- when


class _Expired(subprocess.TimeoutExpired):
    """Describes the scene while the process that was waited for still lives: `subprocess.run` kills it then."""

    def __init__(self, cmd: Any, timeout: float, *more: Any, **named: Any) -> None:
        super().__init__(cmd, timeout, *more, **named)
        if timeout >= LONG_S and threading.current_thread() is threading.main_thread():
            self.add_note(scene())


class Scenes:
    """A plugin of pytest: a failure that has processes has their scene. Without a failure it costs nothing."""

    def __init__(self) -> None:
        self._left = SCENES
        self._late = ""
        """The scene of a test whose time was over: by the time of its report much has ended."""
        subprocess.TimeoutExpired = _Expired  # type: ignore[misc]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Generator[None, object, object]:
        value = yield
        attributes = getattr(value, "__dict__", {})
        for each in (value, *(attributes.get(name) for name in ("home", "folder", "base"))):
            if isinstance(each, Path) and Path(tempfile.gettempdir()) in each.parents:
                _places[fixturedef] = each
        return value

    def pytest_fixture_post_finalizer(self, fixturedef: Any) -> None:
        _places.pop(fixturedef, None)

    @pytest.hookimpl(wrapper=True, optionalhook=True)
    def pytest_timeout_set_timer(self) -> Generator[None, object, object]:
        """The timer of pytest-timeout looks at the scene first."""
        result = yield
        raises = signal.getsignal(signal.SIGALRM)
        if callable(raises):

            def look(number: int, frame: Any) -> None:
                self._late = scene()
                raises(number, frame)

            signal.signal(signal.SIGALRM, look)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and call.when != "teardown" and HEADING not in report.longreprtext:
            text, self._late = self._late, ""
            if not text and self._left and _concerned(()):
                self._left -= 1
                text = scene()
            if text:
                report.sections.append(("the scene", text))
        return report
