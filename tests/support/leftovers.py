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
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from pathlib import Path
from types import FrameType

from hpcdl.agent.supervisor import launch, processes
from hpcdl.agent.supervisor.processes import Process

VARIABLE = "TESTS_OF_HPCDL"
PATIENCE_S = 60.0
"""For what is on its way out when the last test is over."""
KILL_S = 60.0
"""For what is killed to be gone: a chain, in which each starts the next and ends, is hard to catch under load."""
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
        self.interrupted = False
        """Whether somebody ended the session before its last test."""
        self.running: set[str] = set()
        """The tests that run now."""
        self.failed: set[str] = set()
        """The tests that failed."""
        self._workers: set[int] = set()
        self._adopts = False
        self._over = threading.Event()
        self._during: dict[str, str] = {}
        """Of each command that lost its parent, the tests that ran when it was first seen."""
        self._pid = os.getpid()
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
            atexit.register(self._remove)  # after pytest's own, which were registered later

    def adopt(self) -> None:
        """Makes this process the parent of all that lose theirs below it. It must start none itself from now on: the
        children that it has are pytest-xdist's workers, and whoever ends beside them is waited for here."""
        self._workers.update(processes.children_of(os.getpid()))
        if not self._adopts:
            self._adopts = True
            launch.become_subreaper()
            threading.Thread(target=self._watch, daemon=True).start()

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal that ends the session, as ^C does. What a test has forked has this handler, too, and ends
        by the signal."""
        if os.getpid() != self._pid:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        signal.signal(number, signal.SIG_IGN)
        self.interrupted = True
        if not self._over.is_set():  # else it ends already, and no longer waits for what is on its way out
            raise KeyboardInterrupt(f"{signal.Signals(number).name}: the tests end, and what they started")

    def end(self) -> None:
        """Kills, without waiting for it to end, all that the tests have started: nobody asks what would be left."""
        self._over.set()
        self._kill()

    def left(self) -> list[str]:
        """The processes that are left, each command of a test once, in words; they are ended."""
        self._over.set()
        end = time.monotonic() + PATIENCE_S
        while (found := self._pids()) and time.monotonic() < end and not self.interrupted:
            self._reap()
            time.sleep(0.1)
        said = {said: pid for pid in found if (said := self._described(pid))}
        self._kill()
        return [f"process {pid}: {each}" for each, pid in said.items()]

    def failed_in_the_file_of(self, said: str) -> bool:
        """Whether what `left` says is of a test in whose file one failed, which often ends before it has cleared up."""
        return any(f"{test.partition('::')[0]}::" in said for test in self.failed)

    def _kill(self) -> None:
        processes.kill_all(self._named, KILL_S)
        if self._adopts:  # a chain too, in which each starts the next and ends
            processes.kill_own_children(self._workers.__contains__, self._reap, KILL_S)

    def _described(self, pid: int) -> str:
        """Of a chain, another link may be all that can still be looked at."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and (os.path.exists(f"/proc/{pid}") or self._orphans()):
            self._reap()
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
        """One by one: a worker that was killed is waited for by pytest-xdist, and hides nobody behind it meanwhile."""
        for pid in self._orphans():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def _orphans(self) -> list[int]:
        """Those that lost their parent and are there, or were just now."""
        found = processes.children_of(os.getpid()) if self._adopts else []
        return [pid for pid in found if pid not in self._workers]

    def _remove(self) -> None:
        if os.getpid() != self._pid or self.kept:
            return
        for mount in reversed(Path("/proc/self/mounts").read_text().splitlines()):  # of a test that was interrupted
            if (point := Path(mount.split()[1])).is_relative_to(self.folder):
                subprocess.run(["umount", "--lazy", str(point)])
        shutil.rmtree(self.folder, ignore_errors=True)

    def _named(self) -> list[Process]:
        """Those whose environment names the session."""
        mine = os.environ[VARIABLE]
        return [each for each, _ in processes.commands() if processes.variable(each.pid, VARIABLE) == mine]

    def _pids(self) -> list[int]:
        return sorted({each.pid for each in self._named()} | set(self._orphans()))
