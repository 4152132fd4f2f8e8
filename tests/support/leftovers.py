"""What a session of tests must not leave: processes, and files in the home and the temporary folder of whoever runs it.

Every process that a test starts, however far below, has a variable in its environment that names the session. Its HOME
and TMPDIR are in a folder of the session, where pytest's folders are, too; that goes when this process ends.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
import time
import uuid
from pathlib import Path

from hpcdl.agent.supervisor import processes
from hpcdl.agent.supervisor.processes import Process

VARIABLE = "TESTS_OF_HPCDL"
PATIENCE_S = 20.0
"""For what is on its way out when the last test is over."""


class Session:
    """Of the process that was started by hand; those that pytest-xdist starts are below it and belong to it."""

    def __init__(self) -> None:
        self.owner = VARIABLE not in os.environ
        self.kept = False
        """Whether the folder stays, for somebody to look at."""
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

    def left(self) -> list[str]:
        """The processes that are left, in words; they are ended."""
        end = time.monotonic() + PATIENCE_S
        while (found := self._processes()) and time.monotonic() < end:
            time.sleep(0.1)
        said, commands = [], {each.pid: command for each, command in processes.commands()}
        for each in found:
            said.append(f"process {each.pid} ({each.state}): {' '.join(commands.get(each.pid, []))[:200]}")
            processes.signal_process(each, signal.SIGKILL)
        return said

    def _remove(self) -> None:
        if os.getpid() == self._pid and not self.kept:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _processes(self) -> list[Process]:
        mine = os.environ[VARIABLE]
        return [each for each, _ in processes.commands() if processes.variable(each.pid, VARIABLE) == mine]
