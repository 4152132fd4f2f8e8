"""What a session of tests must not leave: processes, and files in the home and the temporary folder of whoever runs it.

Every process that a test starts, however far below, has a variable in its environment that names the session; and where
pytest-xdist's workers run the tests, whatever loses its parent becomes a child of the process above them, whatever it
does to its environment, its session or its pid. HOME and TMPDIR of all are in a folder of the session, where pytest's
folders are, too; that goes when this process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import threading
import time
import uuid
from pathlib import Path

from hpcdl.agent.supervisor import launch, processes
from hpcdl.agent.supervisor.processes import Process

VARIABLE = "TESTS_OF_HPCDL"
PATIENCE_S = 60.0
"""For what is on its way out when the last test is over."""
REAP_S = 0.02
LOOK_S = 0.5


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


class Session:
    """Of the process that was started by hand; those that pytest-xdist starts are below it and belong to it."""

    def __init__(self) -> None:
        self.owner = VARIABLE not in os.environ
        self.kept = False
        """Whether the folder stays, for somebody to look at."""
        self.running: set[str] = set()
        """The tests that run now."""
        self.failed: set[str] = set()
        """The tests that failed."""
        self._workers: set[int] = set()
        self._adopts = False
        self._over = threading.Event()
        self._during: dict[str, str] = {}
        """Of each command that lost its parent, the tests that ran when it was first seen."""
        if self.owner:
            self.folder = Path(tempfile.mkdtemp(prefix="hpcdl-tests-"))
            self.folder.chmod(0o1777)  # as /tmp is: tests with a second uid use it, too
            home = self.folder / "home"
            home.mkdir(0o700)
            for name in [name for name in os.environ if name.startswith("XDG_")]:
                del os.environ[name]  # other ways to the real home
            tempfile.tempdir = str(self.folder)
            folders = {"TMPDIR": str(self.folder), "PYTEST_DEBUG_TEMPROOT": str(self.folder), "HOME": str(home)}
            os.environ |= {VARIABLE: uuid.uuid4().hex, **folders}
            self._pid = os.getpid()
            atexit.register(self._remove)  # after pytest's own, which were registered later

    def adopt(self) -> None:
        """Makes this process the parent of all that lose theirs below it. It must start none itself from now on: the
        children that it has are pytest-xdist's workers, and whoever ends beside them is waited for here."""
        self._workers.update(processes.children_of(os.getpid()))
        if not self._adopts:
            self._adopts = True
            launch.become_subreaper()
            threading.Thread(target=self._watch, daemon=True).start()

    def left(self) -> list[str]:
        """The processes that are left, each command of a test once, in words; they are ended."""
        self._over.set()
        end = time.monotonic() + PATIENCE_S
        while (found := self._pids()) and time.monotonic() < end:
            self._reap()
            time.sleep(0.1)
        said = {said: pid for pid in found if (said := self._described(pid))}
        processes.kill_all(self._named, PATIENCE_S)
        if self._adopts:  # a chain too, in which each starts the next and ends
            processes.kill_own_children(self._workers.__contains__, self._reap, PATIENCE_S)
        return [f"process {pid}: {each}" for each, pid in said.items()]

    def failed_in_the_file_of(self, said: str) -> bool:
        """Whether what `left` says is of a test in whose file one failed, which often ends before it has cleared up."""
        return any(f"{test.partition('::')[0]}::" in said for test in self.failed)

    def _described(self, pid: int) -> str:
        """Of a chain, another link may be all that can still be looked at."""
        for _ in range(100):
            for each in (pid, *self._orphans()):
                if command := _command(each):
                    test = processes.variable(each, "PYTEST_CURRENT_TEST") or self._during.get(command, "")
                    return command[:200] + (f", of {test}" if test else "")
        return "it started others and ended"

    def _watch(self) -> None:
        looked = 0.0
        while not self._over.wait(REAP_S):
            self._reap()
            if time.monotonic() - looked > LOOK_S:
                looked = time.monotonic()
                for command in filter(None, map(_command, self._orphans())):
                    self._during.setdefault(command, " or ".join(sorted(self.running)))

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid in self._workers:
                    return
                os.waitpid(ended.si_pid, os.WNOHANG)

    def _orphans(self) -> list[int]:
        """Those that lost their parent and are there, or were just now."""
        found = processes.children_of(os.getpid()) if self._adopts else []
        return [pid for pid in found if pid not in self._workers]

    def _remove(self) -> None:
        if os.getpid() == self._pid and not self.kept:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _named(self) -> list[Process]:
        """Those whose environment names the session."""
        mine = os.environ[VARIABLE]
        return [each for each, _ in processes.commands() if processes.variable(each.pid, VARIABLE) == mine]

    def _pids(self) -> list[int]:
        return sorted({each.pid for each in self._named()} | set(self._orphans()))
